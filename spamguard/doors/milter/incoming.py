"""A message as a mail server shows it, field by field and piece by piece, put together again into a spool.

Must never hold more than the limits allow, never fail because a message is too much, and gives everything back in `close`. What comes
out are the bytes that the server got, but for what it has changed itself: it ends lines, and drops blanks before the colon of a field.
"""

from __future__ import annotations

import logging
from pathlib import Path

from spamguard.doors.milter.forged import Forged
from spamguard.reception.clients import Load
from spamguard.settings import ScannerLimits
from spamguard.spool import Spool

TOO_BIG, NO_SPACE = "too-big", "no-space"
_CRLF = b"\r\n"

_log = logging.getLogger("spamguard.doors")


class Incoming:
    """One message. problem: why it cannot be judged, a word of `proxy.contract.NotScanned`; "" while it can.

    gap: what stands between the colon of a field and the value that the server shows.
    """

    def __init__(self, directory: Path, limits: ScannerLimits, load: Load, forged: Forged, gap: bytes) -> None:
        self.spool = Spool(directory)
        self.forged = forged
        self.problem = ""
        self._limits = limits
        self._load = load
        self._gap = gap
        self._counted = 0

    def field(self, name: bytes, value: bytes) -> None:
        """The next field of the header."""
        self.forged.see(name)
        self._write(name + b":" + self._gap + value.replace(_CRLF, b"\n").replace(b"\n", _CRLF) + _CRLF)

    def end_of_header(self) -> None:
        """What comes now is the body."""
        self._write(_CRLF)

    def body(self, piece: bytes) -> None:
        """The next piece of it."""
        if piece:
            self._write(piece)

    def close(self) -> None:
        """Give everything back; idempotent."""
        self.spool.close()
        self._load.bytes_in_flight -= self._counted
        self._counted = 0

    def _write(self, data: bytes) -> None:
        if self.problem:
            return
        if self.spool.size + len(data) > self._limits.message_bytes:
            self._give_up(TOO_BIG)
        elif not self._load.room_for(len(data)):
            self._give_up(NO_SPACE)
        else:
            self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._load.bytes_in_flight += len(data)
        self._counted += len(data)
        try:
            self.spool.write(data)
        except OSError as error:
            _log.error("a message cannot be kept: %s", error)
            self._give_up(NO_SPACE)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.close()
