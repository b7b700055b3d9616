"""Bounds on what one message may cost. Checked before and during parsing; what is cut becomes evidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a message is looked at. Bytes are octets; everything beyond is not scanned and leaves a defect token.

    message_bytes: of the raw message. header_bytes, header_fields: of each header block.
    parts, depth: MIME leaves and nesting, small ones may nest deeper. text_bytes: decoded text of all leaves together, and a little of
    each later one.
    token_characters: text that becomes tokens, of the body, of hidden text and of markup each: three quarters from its start, one from
    its end (corpora/RESULTS.md, "How much text").
    """

    message_bytes: int = 4 << 20
    header_bytes: int = 256 << 10
    header_fields: int = 500
    parts: int = 100
    depth: int = 12
    text_bytes: int = 256 << 10
    token_characters: int = 8 << 10


DEFAULT_LIMITS = Limits()
