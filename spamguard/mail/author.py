"""Who a message says has written it: the From of its header (RFC 5322, 3.6.2) as one short text. Never raises; linear time.

Must never let a name hide the address: whatever names look like, what stands behind the last "<" is the address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spamguard.mail.decode import unstructured

_NAME, _ADDRESS = 48, 64  # characters
_CUT = "..."  # all of a text in ASCII is kept but once (`history.row`)
_TOLD = 2  # of several authors
_END = 500  # bytes at either end of a field, of which more is never read: the address is in the last ones

_COMMENT = rb"\((?:[^()\\]|\\.|)*+\)"
for _ in range(3):  # comments in comments (RFC 5322, 3.2.2)
    _COMMENT = rb"\((?:[^()\\]|\\.|%b|)*+\)" % _COMMENT
# what is quoted, a comment, an address in brackets, what stands between authors; else words
_PIECE = re.compile(rb'"(?:[^"\\]|\\.|)*+"|%b|<[^<>]*+>?|[,;]|[^"(<,;\\]++|\\?.' % _COMMENT, re.S)
_BETWEEN = b" \t\r\n,;"
_QUOTED_PAIR = re.compile(rb"\\(.)", re.S)

_Mailbox = tuple[bytes, bytes]  # its name, as it was written but for quotes, and its address


def author(value: bytes) -> str:
    """Of a From's value: `Name <address>`, or the address alone; `Name <>` where there is none. The name is as strangers wrote it.

    Of several authors the first, then the second's address, then dots for others. Long names are cut, and long addresses in
    front: whose they are, the end says.
    """
    *found, (name, address) = _mailboxes(value if len(value) <= 2 * _END else value[:_END] + value[-_END:])
    if found:
        name, address = found[0]
    text = " ".join(unstructured(name)[0].split())
    text = text if len(text) <= _NAME else text[: _NAME - 3] + _CUT
    told = [f"{text} <{_shown(address)}>" if text else _shown(address), *[_shown(one) for _, one in found[1:_TOLD]]]
    return ", ".join(told) + (f", {_CUT}" if len(found) > _TOLD else "")


def parts(told: str) -> tuple[str, str]:
    """Of what `author` gives: the name, "" without one; and the rest, which is the address, behind a name in its brackets."""
    name, bracket, address = told.rpartition(" <")
    return name, bracket.strip() + address


def is_sender(told: str, sender: str) -> bool:
    """Whether what `author` gives is, beside a name, that envelope sender, whatever their case."""
    return parts(told)[1].strip("<>").lower() == sender.lower()


def _mailboxes(value: bytes) -> Iterator[_Mailbox]:
    """One after the other. What has no address goes with what follows it: groups' names, and commas that were not quoted."""
    name, comment, address = b"", b"", None
    for piece in (*_PIECE.findall(value), b","):
        kind = piece[:1] if len(piece) > 1 or piece in b",;" else b""
        if kind in (b",", b";") or (kind == b"<" and address is not None):
            if address is None:
                name, address = _bare(name)
            if address is None:
                name += piece
                continue
            yield name.strip(_BETWEEN) or comment, address
            name, comment, address = b"", b"", None
        if kind == b"<":
            address = piece.strip(b"<>")
        elif kind == b'"':
            name += _QUOTED_PAIR.sub(rb"\1", piece[1:-1])
        elif kind == b"(":
            comment = comment or piece[1:-1]
        elif kind not in (b",", b";"):
            name += piece
    yield name.strip(_BETWEEN) or comment, b""


def _bare(name: bytes) -> tuple[bytes, bytes | None]:
    """What of these words is an address without brackets, if any is."""
    words = name.split() if b"@" in name else []
    found = next((word for word in reversed(words) if b"@" in word and not word.startswith(b"=?")), None)
    return (name, None) if found is None else (b" ".join([word for word in words if word is not found]), found)


def _shown(address: bytes) -> str:
    """Without what is not seen, wherever it stands."""
    text = "".join(address.decode("utf-8", "replace").split())
    text = text if text.isprintable() else "".join([letter if letter.isprintable() else "\ufffd" for letter in text])
    return text if len(text) <= _ADDRESS else _CUT + text[3 - _ADDRESS :]
