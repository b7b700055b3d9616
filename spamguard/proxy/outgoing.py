"""A message between coming in and going out: its header section, what is put on top of it, and the whole as it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from email.header import Header

from spamguard.mail.rewrite import rewritten_head
from spamguard.settings import Listener
from spamguard.spool import Content, Spool

_USUAL = 64 << 10  # bytes that hold the header section of all but very odd mail
_END = b"\r\n\r\n"


class Outgoing:
    """One message. spool: as it came, CRLF line ends. received: our own Received field where we are a server, else b"".

    header: the header section, cut at the limit of the listener; then `header_cut`.
    """

    def __init__(self, spool: Spool, listener: Listener, received: bytes) -> None:
        self.spool = spool
        self._policy = listener.policy
        self._received = received
        self._head = _head(spool, listener.limits.header_bytes)
        end = _header_end(self._head)
        self.header_cut = end is None and spool.size > len(self._head)
        self.header = self._head if end is None else self._head[:end]

    def on_top(self, forwarded: bytes) -> bytes:
        """Fields that are evidence as if they stood on top of the message: who sent it, where no server has said so in it yet.

        forwarded: a Received field that tells what XFORWARD told, or b"".
        """
        if self._received:
            return self._received + b"\r\n"
        return forwarded + b"\r\n" if forwarded and not self.header[:9].lower().startswith(b"received:") else b""

    def tagged(self, fields: Sequence[bytes], subject_prefix: str = "") -> Content:
        """The message as it leaves: these fields on top, under our own Received, and forged ones out of it.

        A header section beyond the limit is left alone.
        """
        on_top = [*fields, *([self._received] if self._received else [])]
        forged = [name.encode("ascii", "ignore") for name in self._policy.forged]
        whole = self.spool.size == len(self._head)
        found = rewritten_head(self._head, on_top, forged, _encoded(subject_prefix), whole=whole)
        head, replaced = found or (b"".join([field + b"\r\n" for field in on_top]), 0)
        return Content(head, self.spool, replaced)


def _encoded(text: str) -> bytes:
    """A text as it can stand in a header field (RFC 2047 where it must)."""
    return text.encode() if text.isascii() else Header(text, "utf-8").encode(maxlinelen=0).encode("ascii")


def _head(spool: Spool, limit: int) -> bytes:
    head = spool.head(_USUAL)
    return head if _header_end(head) is not None or spool.size <= len(head) else spool.head(limit)


def _header_end(head: bytes) -> int | None:
    """Where the header section ends, its last line end included; None when it does not end here."""
    if head.startswith(b"\r\n"):
        return 0
    end = head.find(_END)
    return None if end < 0 else end + 2
