"""The message within an opaque signature: mail programs show it like any other, though it stands in the bytes of a signature.

S/MIME (RFC 8551 section 3.5.2) wraps it in CMS (RFC 5652), BER or DER. Checks no signature, decrypts nothing, and never raises.
"""

from __future__ import annotations

MEDIA = frozenset((b"application/pkcs7-mime", b"application/x-pkcs7-mime"))
_SIGNED_DATA = bytes.fromhex("06092a864886f70d010702")  # OBJECT IDENTIFIER, as it stands in front of what it names
_DATA = bytes.fromhex("06092a864886f70d010701")
_NEAR = 100, 1000  # bytes in which they must stand: lists of algorithms between the two are short
_MOST_PIECES = 50_000  # programs write a thousand bytes or more in each
_EXPLICIT, _PIECES, _PIECE = 0xA0, 0x24, 0x04  # [0], OCTET STRING in pieces, OCTET STRING


def signed(data: bytes) -> bytes:
    """What was signed; empty where nothing that can be read was."""
    outer = data.find(_SIGNED_DATA, 0, _NEAR[0])
    inner = data.find(_DATA, outer, _NEAR[1])
    if outer < 0 or inner < 0:
        return b""
    tag, at, _ = _head(data, inner + len(_DATA))
    if tag != _EXPLICIT:
        return b""
    tag, at, size = _head(data, at)
    if tag == _PIECE:
        return data[at : at + size]
    pieces: list[bytes] = []
    tag, at, size = _head(data, at if tag == _PIECES else len(data))
    while tag == _PIECE and len(pieces) < _MOST_PIECES:
        pieces.append(data[at : at + size])
        tag, at, size = _head(data, at + size)
    return b"".join(pieces)


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, beginning and size of an element; size 0: an end mark tells. Tag -1: there is none."""
    if at + 2 > len(data):
        return -1, at, 0
    more = data[at + 1] & 0x7F if data[at + 1] & 0x80 else 0
    begin = at + 2 + more
    return data[at], begin, int.from_bytes(data[at + 2 : begin], "big") if more else data[at + 1] & 0x7F
