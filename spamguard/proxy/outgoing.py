"""A message between coming in and going out: its header section, what is put on top of it, and the whole as it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from email.header import Header

from spamguard.mail.rewrite import rewritten_head
from spamguard.proxy import heads
from spamguard.settings import Listener
from spamguard.spool import Content, Spool


class Outgoing:
    """One message. spool: as it came, CRLF line ends. received: our own Received field where we are a server, else b"".

    header: the header section, or its complete fields within the limit of the listener when there is more of it.
    """

    def __init__(self, spool: Spool, listener: Listener, received: bytes) -> None:
        self.spool = spool
        self._policy = listener.policy
        self._received = received
        self.header = heads.header(spool, listener.limits.header_bytes)

    def on_top(self, evidence: bytes) -> bytes:
        """Fields that count as if they stood on top of the message: who sent it, unless a server has said so in it already.

        evidence: a Received field that tells what we know of the client, or b"".
        """
        known = not self._received and self.header[:9].lower().startswith(b"received:")
        return evidence + b"\r\n" if evidence and not known else b""

    def tagged(self, fields: Sequence[bytes], subject_prefix: str = "") -> Content:
        """The message as it leaves: these fields on top, above our own Received, and forged ones out of its `header`."""
        on_top = [*fields, *([self._received] if self._received else [])]
        forged = [name.encode("ascii", "ignore") for name in self._policy.forged]
        head, replaced = rewritten_head(self.header, on_top, forged, _encoded(subject_prefix))
        return Content(head, self.spool, replaced)


def _encoded(text: str) -> bytes:
    """A text as it can stand in a header field (RFC 2047 where it must)."""
    return text.encode() if text.isascii() else Header(text, "utf-8").encode(maxlinelen=0).encode("ascii")
