"""Bytes that came in, cut into command lines. Only CRLF ends a line (RFC 5321, section 2.3.8);
an overlong line costs no more memory than a long one.

Pure; must never look twice at the same byte for a line end, however slowly a line comes in.
"""

from __future__ import annotations

from spamguard.doors.smtp.dialogue import LONG_LINE_BYTES, BadLineError

_CRLF = b"\r\n"


class Lines:
    """A buffer. `bytes` is added to by whoever reads; what is left over after a message is put back in front."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._searched = 0
        self._skipping = False

    def next(self) -> bytes | None:
        """The next line without its end, None when there is no whole one. BadLineError once an overlong one has ended."""
        end = self.bytes.find(_CRLF, self._searched)
        if end < 0:
            self._wait()
            return None
        line = bytes(self.bytes[:end])
        del self.bytes[: end + 2]
        self._searched = 0
        if self._skipping:
            self._skipping = False
            raise BadLineError
        return line

    @property
    def end_in_bare_lf(self) -> bool:
        """Whether the last byte is LF without CR, if there is no whole line.

        The client that sent it waits for an answer in vain.
        """
        return self.bytes.endswith(b"\n")

    def take(self) -> bytes:
        """All that is there."""
        taken = bytes(self.bytes)
        self.clear()
        return taken

    def put_back(self, rest: bytes) -> None:
        """What was taken and is not data."""
        self.bytes[:0] = rest

    def clear(self) -> None:
        """Forget what is there."""
        self.bytes.clear()
        self._searched = 0
        self._skipping = False

    def _wait(self) -> None:
        if len(self.bytes) > LONG_LINE_BYTES:
            self._skipping = True
        if self._skipping:
            del self.bytes[:-1]  # it may be the CR of the end
        self._searched = max(len(self.bytes) - 1, 0)
