"""The messages that a report is about: what somebody forwards as an attachment, or a mail service sends in ARF (RFC 5965).

Never raises, whatever the report is like. What was forwarded as text is another matter: `inline`.
"""

from __future__ import annotations

from spamguard.mail.decode import transfer_decode
from spamguard.mail.limits import Limits
from spamguard.mail.split import NESTED, Leaf, split

_LIMITS = Limits(message_bytes=64 << 20)
_ABUSE = b"message/feedback-report"
_HEADERS = b"text/rfc822-headers"  # of a report that leaves the body out (RFC 6522, section 4)


def attached(raw: bytes) -> list[bytes]:
    """Every attached message, line ends as LF; of an ARF report without one, its header fields as a message. Else nothing."""
    leaves = split(raw, _LIMITS, into_messages=False).leaves
    found = [content for leaf in leaves if leaf.type.media in NESTED and (content := _content(leaf)).strip()]
    if found or not any(leaf.type.media == _ABUSE for leaf in leaves):
        return found
    headers = [_content(leaf).strip() for leaf in leaves if leaf.type.media == _HEADERS]
    return [fields + b"\n\n" for fields in headers if fields]


def _content(leaf: Leaf) -> bytes:
    return transfer_decode(leaf.body, leaf.encoding)[0]
