"""The data of one message as it comes in: into a spool while it may, read to the end and thrown away once it may not.

Must never hold more than the limits allow, and gives everything back in `close`.
"""

from __future__ import annotations

from pathlib import Path

from spamguard.doors.smtp import dialogue
from spamguard.reception.arriving import Arriving, NoRoom
from spamguard.reception.clients import Load
from spamguard.settings import DoorLimits
from spamguard.spool import Spool
from spamguard.wire.values import Reply

HEADER_SIZE = "header-size"  # the oddity of a header section beyond its limit, where it may not be refused
_BLANK_LINE = b"\r\n\r\n"
_REFUSALS = {NoRoom.TOO_LARGE: dialogue.SIZE_LIMIT, NoRoom.NOT_NOW: dialogue.NO_SPACE}


class Incoming:
    """One message. client: as in `Load.room_for`. refusal: why it will not be taken, None while it will."""

    def __init__(self, directory: Path, limits: DoorLimits, load: Load, client: str, *, refuse_header: bool) -> None:
        self.refusal: Reply | None = None
        self.oddities: set[str] = set()
        self._arriving = Arriving(directory, limits, load, client)
        self._most_header = limits.header_bytes
        self._refuse_header = refuse_header
        self._header_bytes = 0
        self._header_tail: bytes | None = b"\r\n"  # last bytes of the header section so far; None: it has ended, or is too long

    @property
    def spool(self) -> Spool:
        """What came so far."""
        return self._arriving.spool

    def write(self, data: bytes) -> None:
        """Some more bytes; never raises."""
        if self.refusal is not None or not data:
            return
        self._arriving.write(data)
        if self._arriving.refused is not None:
            self.refusal = _REFUSALS[self._arriving.refused]
        elif self._header_tail is not None:
            self._follow_header(self._header_tail, data)

    def refuse(self, reply: Reply) -> None:
        """Keep nothing of it."""
        self.refusal = self.refusal or reply
        self.close()

    def close(self) -> None:
        """Give everything back; idempotent."""
        self._arriving.close()

    def _follow_header(self, tail: bytes, data: bytes) -> None:
        """Whether the header section ends here, and where. A message that begins with an empty line has none."""
        end = (tail + data).find(_BLANK_LINE)
        self._header_bytes += len(data) if end < 0 else end - len(tail) + 2
        self._header_tail = (tail + data)[-3:] if end < 0 else None
        if self._header_bytes > self._most_header:
            self._header_tail = None
            if self._refuse_header:
                self.refuse(dialogue.HEADER_LIMIT)
            else:
                self.oddities.add(HEADER_SIZE)
