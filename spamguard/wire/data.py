"""What follows 354: where a message ends, dots taken off and put on (RFC 5321, section 4.5.2).

Only CRLF.CRLF ends a message here, and what is sent on never holds anything that a more lenient server takes for an end. Works in
whole pieces: there is no loop over lines, however short they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spamguard import kernel

BARE_CR, BARE_LF, NUL = "bare-cr", "bare-lf", "nul"
_BITS = {1: BARE_CR, 2: BARE_LF, 4: NUL}

_CRLF = b"\r\n"
_DOT_LINE = b"\r\n."
_END = b"\r\n.\r\n"
_BLANK_FOR_CR = bytes.maketrans(b"\r", b" ")


class DataReader:
    """Reads one message as it comes, in chunks of any size; what it says does not depend on where they are cut.

    oddities: which of "bare-cr", "bare-lf" and "nul" the message holds so far. normalise: a bare CR comes out as a blank, a bare LF
    as CRLF, a NUL not at all; otherwise they come out as they are, and are no line ends. finished: the end has been seen;
    rest: what came behind it, which are the next commands.
    """

    def __init__(self, *, normalise: bool = False) -> None:
        self.oddities: set[str] = set()
        self.finished = False
        self.rest = b""
        self._normalise = normalise
        self._held = _CRLF  # a message begins at the beginning of a line: as if behind a line end, which is not given out
        self._skip = len(_CRLF)

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of the message, dots taken off, that are certain now. ValueError behind the end."""
        if self.finished:
            raise ValueError("the message has ended")
        text = self._held + chunk
        found, dot = _line_ends(text)
        end = text.find(_END, dot) if dot >= 0 else -1
        piece = self._certain(text, end)
        if self.rest:
            found, _ = _line_ends(piece)
        self.oddities |= _names(found)
        text = piece if dot == end else piece.replace(_DOT_LINE, _CRLF)
        return self._without_first_line_end(_normal(text) if found and self._normalise else text)

    def _certain(self, text: bytes, end: int) -> bytes:
        """What cannot change its meaning any more; the remainder is held back, or is what follows the end (-1: not seen)."""
        if end < 0:
            piece, self._held = _cut(text, _END)
            return piece
        self.finished, self.rest, self._held = True, text[end + len(_END) :], b""
        return text[: end + len(_CRLF)]

    def _without_first_line_end(self, text: bytes) -> bytes:
        if text and self._skip:
            text, self._skip = text[self._skip :], 0
        return text


def stuffed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A message with CRLF line ends as it goes over the wire: dots put on, the last line ended, CRLF.CRLF behind it.

    ValueError, before it is given out, for a bare CR, a bare LF or a NUL: servers that take one for a line end, or drop it, might
    see an end of the message there. Whoever has sent the pieces before must then close the session.
    """
    held, skip = _CRLF, len(_CRLF)  # as if behind a line end, which is not given out
    for chunk in chunks:
        text = held + chunk
        found, dot = _line_ends(text)
        if found:
            raise ValueError(f"a message to be sent holds {', '.join(sorted(_names(found)))}")
        piece, held = _cut(text, _DOT_LINE)
        if piece:
            yield (piece if dot < 0 else piece.replace(_DOT_LINE, b"\r\n.."))[skip:]
            skip = 0
    if held == b"\r":
        raise ValueError("a message to be sent holds bare-cr")
    yield (held or _CRLF)[skip:] + b".\r\n"


def _line_ends(text: bytes) -> tuple[int, int]:
    """Which oddities are in a text, as `_BITS`, and where the first line end with a dot behind it is, -1 where there is none.

    A CR at the end of the text may be half of a line end, and is not odd yet.
    """
    compiled = kernel.functions()
    if compiled is not None:
        return compiled.line_ends(text)
    return _odd_bytes(text.removesuffix(b"\r")), _first_dot(text)


def _odd_bytes(text: bytes) -> int:
    """Replacing single bytes is several times faster than counting pairs of them, and clean text is what nearly all text is."""
    lines = text.replace(b"\r", b"")
    found = 4 * (b"\0" in lines)
    if lines.replace(b"\n", _CRLF) != text:
        pairs = text.count(_CRLF)
        found |= (text.count(b"\r") > pairs) + 2 * (text.count(b"\n") > pairs)
    return found


def _first_dot(text: bytes) -> int:
    """Of most messages the end is the only one, and from behind it is seen in a quarter of the time that there is none before it."""
    last = text.rfind(_DOT_LINE)
    return text.find(_DOT_LINE) if last > 0 and text.rfind(_DOT_LINE, 0, last) >= 0 else last


def _names(found: int) -> set[str]:
    return {name for bit, name in _BITS.items() if found & bit}


def _normal(text: bytes) -> bytes:
    """Every line end a CRLF, no other CR or LF, no NUL. What a byte becomes is decided by its neighbours as they came."""
    return text.replace(_CRLF, b"\n").translate(_BLANK_FOR_CR, b"\0").replace(b"\n", _CRLF)


def _cut(text: bytes, sought: bytes) -> tuple[bytes, bytes]:
    """The text without the longest end of it that `sought` may begin with, and that end."""
    for length in range(min(len(sought) - 1, len(text)), 0, -1):
        if text.endswith(sought[:length]):
            return text[:-length], text[-length:]
    return text, b""
