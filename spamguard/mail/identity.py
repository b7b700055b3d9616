"""The identity of a message: what stays the same on its way through mail servers, mailing programs and folders.

Two copies of one message have one identity whatever line ends, folding, transfer encoding or header fields put on top they
have; two messages that differ in what they say, in Message-ID, date, sender or subject do not. It must never depend on
fields that servers and mail programs add, and never raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from spamguard.mail.decode import to_text, transfer_decode, unstructured
from spamguard.mail.limits import Limits
from spamguard.mail.split import Leaf, Named, Split, split

SIZE = 16  # bytes of a digest
_LIMITS = Limits(message_bytes=32 << 20, header_bytes=256 << 10, header_fields=1000, parts=1000)
_CUT = frozenset((b"message-size", b"part-count", b"part-depth"))
_SHORTENED = _CUT | {b"header-size", b"header-count", b"boundary-flood"}
_FIELDS = (b"message-id", b"date", b"from", b"subject")
_WHITE_SPACE = b" \t\n\r\v\f"
_TEXT_BYTES = 1 << 20  # of one part; a longer one is compared without undoing its charset
_ENCODINGS = frozenset((b"base64", b"quoted-printable"))  # those that servers change; others are compared as they are


def digest(raw: bytes, key: bytes, message: Split | None = None) -> bytes:
    """Sixteen bytes that name a message. key: the installation's secret, at most 64 bytes.

    message: the same taken apart already, if it was: used when no limit cut it short.
    """
    whole = message if message is not None and _SHORTENED.isdisjoint(message.defects) else split(raw, _LIMITS)
    state = blake2b(key=key, digest_size=SIZE, person=b"identity")
    for component in _components(raw, whole):
        state.update(len(component).to_bytes(8, "little"))  # no component can pass for a part of its neighbour
        state.update(component)
    return state.digest()


def _components(raw: bytes, message: Split) -> Iterator[bytes]:
    for name in _FIELDS:
        yield _field(message.named, name)
    for leaf in message.leaves:
        yield _content(leaf)
    if not _CUT.isdisjoint(message.defects):
        yield from _remainder(raw, message)


def _field(named: Named, name: bytes) -> bytes:
    """A field's text in UTF-8, each run of white space one blank; quotes go, since rewriting programs drop those not needed."""
    text = unstructured(named.get(name, b""))[0].replace('"', "")
    return " ".join(text.split()).encode("utf-8", "replace")


def _content(leaf: Leaf) -> bytes:
    """A leaf's decoded content without white space, text as UTF-8."""
    encoding = leaf.encoding
    data = transfer_decode(leaf.body, encoding)[0] if encoding in _ENCODINGS else leaf.body
    if leaf.type.main == b"text" and len(data) <= _TEXT_BYTES:
        data = to_text(data, leaf.type.parameters.get(b"charset", b""))[0].encode("utf-8", "replace")
    return data.translate(None, _WHITE_SPACE)


def _remainder(raw: bytes, message: Split) -> Iterator[bytes]:
    """All of a message that is too large or too deep to be taken apart: what the leaves do not cover is in here."""
    yield message.body.translate(None, _WHITE_SPACE)
    yield raw[_LIMITS.message_bytes :].translate(None, _WHITE_SPACE)
