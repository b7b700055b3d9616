"""The message after 354: its end, and dots taken off and put on (RFC 5321, section 4.5.2).

Only CRLF.CRLF ends a message here. What is sent on must never hold anything that a more lenient
server takes for an end (SMTP smuggling). The code works on whole pieces, without a loop over lines,
so short lines cost no more than long ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BARE_CR, BARE_LF, NUL = "bare-cr", "bare-lf", "nul"
_ODDITY_BITS = {1: BARE_CR, 2: BARE_LF, 4: NUL}

_CRLF = b"\r\n"
_DOT_LINE = b"\r\n."
_END = b"\r\n.\r\n"
_BLANK_FOR_CR = bytes.maketrans(b"\r", b" ")


class DataReader:
    """Reads one message in chunks of any size; where they are cut makes no difference.

    oddities: which of "bare-cr", "bare-lf" and "nul" the message holds so far. normalise: a bare CR
    comes out as a blank, a bare LF as CRLF, a NUL not at all; otherwise they stay, and are no line
    ends. rest: what came behind the end, which are the next commands.
    """

    def __init__(self, *, normalise: bool = False) -> None:
        self.oddities: set[str] = set()
        self.is_finished = False
        self.rest = b""
        self._normalise = normalise
        # A message begins at the beginning of a line, as if behind a line end. That line end is
        # not part of the message: `_skip` bytes are dropped from the first output.
        self._held = _CRLF
        self._skip = len(_CRLF)

    def feed(self, chunk: bytes) -> bytes:
        """The bytes of the message, dots taken off, that are certain now.

        Raises
        ------
        ValueError
            The message has ended already.
        """
        if self.is_finished:
            raise ValueError("the message has ended")
        text = self._held + chunk
        oddities, dot = _scan_line_ends(text)
        end = text.find(_END, dot) if dot >= 0 else -1
        if end < 0:  # hold back what the next chunk may turn into an end
            piece, self._held = _hold_back(text, _END)
        else:
            self.is_finished, self.rest, self._held = True, text[end + len(_END) :], b""
            piece = text[: end + len(_CRLF)]
        if self.rest:
            oddities, _ = _scan_line_ends(piece)
        self.oddities |= _oddity_names(oddities)
        if dot != end:
            piece = piece.replace(_DOT_LINE, _CRLF)
        if oddities and self._normalise:
            piece = _normalise(piece)
        if piece and self._skip:
            piece, self._skip = piece[self._skip :], 0
        return piece


def dot_stuff(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A message with CRLF line ends as it goes over the wire: dots put on, CRLF.CRLF at the end.

    Raises
    ------
    ValueError
        Before a bare CR, a bare LF or a NUL is given out: a server that takes one for a line end,
        or drops it, might see an end of the message there. Close the session to which earlier
        pieces were sent.

    >>> b"".join(dot_stuff([b"a\\r\\n.b\\r\\n"]))
    b'a\\r\\n..b\\r\\n.\\r\\n'
    """
    held, skip = _CRLF, len(_CRLF)  # as if behind a line end, which is not given out
    for chunk in chunks:
        text = held + chunk
        oddities, dot = _scan_line_ends(text)
        if oddities:
            names = ", ".join(sorted(_oddity_names(oddities)))
            raise ValueError(f"a message to be sent holds {names}")
        piece, held = _hold_back(text, _DOT_LINE)
        if piece:
            yield (piece if dot < 0 else piece.replace(_DOT_LINE, b"\r\n.."))[skip:]
            skip = 0
    if held == b"\r":
        raise ValueError("a message to be sent holds bare-cr")
    yield (held or _CRLF)[skip:] + b".\r\n"


def _scan_line_ends(text: bytes) -> tuple[int, int]:
    """The oddities in a text (`_ODDITY_BITS`), and where the first CRLF before a dot is, or -1.

    A CR at the end of the text may be half of a line end, and is not odd yet.
    """
    last = text.rfind(_DOT_LINE)
    # In most messages the only dot line is the end, and from behind a search for another one is
    # four times as fast.
    is_only = last <= 0 or text.rfind(_DOT_LINE, 0, last) < 0
    first = last if is_only else text.find(_DOT_LINE)
    text = text.removesuffix(b"\r")
    lines = text.replace(b"\r", b"")
    oddities = 4 * (b"\0" in lines)
    # Replacing single bytes is several times faster than counting pairs, and nearly all text is
    # clean.
    if lines.replace(b"\n", _CRLF) != text:
        pairs = text.count(_CRLF)
        oddities |= (text.count(b"\r") > pairs) + 2 * (text.count(b"\n") > pairs)
    return oddities, first


def _oddity_names(oddities: int) -> set[str]:
    return {name for bit, name in _ODDITY_BITS.items() if oddities & bit}


def _normalise(text: bytes) -> bytes:
    """The text with CRLF for every line end, and no other CR, LF or NUL."""
    return text.replace(_CRLF, b"\n").translate(_BLANK_FOR_CR, b"\0").replace(b"\n", _CRLF)


def _hold_back(text: bytes, sought: bytes) -> tuple[bytes, bytes]:
    """The text without the longest end that `sought` may begin with, and that end."""
    for length in range(min(len(sought) - 1, len(text)), 0, -1):
        if text.endswith(sought[:length]):
            return text[:-length], text[-length:]
    return text, b""
