"""A message as it comes in, kept within the limits of its door. Gives everything back in `close`."""

from __future__ import annotations

import logging
from enum import Enum, auto
from pathlib import Path

from spamguard.reception.clients import Load
from spamguard.settings import DoorLimits, ScannerLimits
from spamguard.spool import Spool

_log = logging.getLogger("spamguard.doors")


class NoRoom(Enum):
    """Why a message is not taken."""

    TOO_LARGE = auto()  # for ever
    NOT_NOW = auto()  # too much is under way, or the disk is full


class Arriving:
    """One message. client: as in `Load.room_for`. refused: why it is not taken, None while it is; what came of it is gone then."""

    def __init__(self, directory: Path, limits: DoorLimits | ScannerLimits, load: Load, client: str = "") -> None:
        self.spool = Spool(directory)
        self.refused: NoRoom | None = None
        self._most = limits.message_bytes
        self._load = load
        self._client = client
        self._counted = 0

    def write(self, data: bytes) -> None:
        """Some more bytes; never raises."""
        if self.refused is not None or not data:
            return
        if self.spool.size + len(data) > self._most:
            self._refuse(NoRoom.TOO_LARGE)
        elif not self._load.take(len(data), self._client):
            self._refuse(NoRoom.NOT_NOW)
        else:
            self._counted += len(data)
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        try:
            self.spool.write(data)
        except OSError as error:
            _log.error("a message cannot be kept: %s", error)
            self._refuse(NoRoom.NOT_NOW)

    def _refuse(self, why: NoRoom) -> None:
        self.refused = why
        self.close()

    def close(self) -> None:
        """Give everything back; idempotent."""
        self.spool.close()
        self._load.give_back(self._counted, self._client)
        self._counted = 0
