"""A message as a mail server shows it, field by field and piece by piece, put together again.

What comes out are the bytes that the server got, but for what it has changed itself: it ends lines, and drops blanks before the colon
of a field. Must never fail because a message is too much.
"""

from __future__ import annotations

from spamguard.doors.milter.forged import Forged
from spamguard.proxy.asking import TOO_LARGE
from spamguard.reception.arriving import Arriving, NoRoom

_CRLF = b"\r\n"
_PROBLEMS = {NoRoom.TOO_LARGE: TOO_LARGE, NoRoom.NOT_NOW: "no-room"}


class Incoming:
    """One message. gap: what stands between the colon of a field and the value that the server shows."""

    def __init__(self, arriving: Arriving, forged: Forged, gap: bytes) -> None:
        self.arriving = arriving
        self.forged = forged
        self._gap = gap

    @property
    def problem(self) -> str:
        """Why it cannot be judged, a word of `proxy.contract.NotScanned`; "" while it can."""
        return _PROBLEMS[self.arriving.refused] if self.arriving.refused else ""

    def field(self, name: bytes, value: bytes) -> None:
        """The next field of the header."""
        self.forged.see(name)
        self.arriving.write(name + b":" + self._gap + value.replace(_CRLF, b"\n").replace(b"\n", _CRLF) + _CRLF)

    def end_of_header(self) -> None:
        """What comes now is the body."""
        self.arriving.write(_CRLF)

    def body(self, piece: bytes) -> None:
        """The next piece of it."""
        self.arriving.write(piece)
