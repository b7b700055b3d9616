"""Examples: raw mail made ready for teaching, one message at a time or in batches.

This is the part of teaching that needs no tables and no ledger, so any process can do it;
`parallel_extract` does it on all cores. Must never read a ledger, nor load what only a pool of
processes needs: `judge` imports this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spamguard import keys
from spamguard.mail.extract import (
    ExtractedMessage,
    FeatureExtractor,
    WordFinder,
    drop_repeats,
)
from spamguard.mail.message import header_start, message_digest, remove_subject_prefix
from spamguard.records import Features

_FIELD_NAME = re.compile(rb"[!-9;-~]+[ \t]*:")
# The last message judged is kept as it was read, since teaching often follows at once.
_MAX_CACHED_BYTES = 256 << 10
BATCH_MESSAGES = 32
BATCH_BYTES = 1 << 20  # of mail

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """One message ready for teaching: its digest and its features."""

    digest: bytes
    features: Features


class SplitMessage:
    """A message taken apart once: its digest now, its features only if they are asked for.

    raw: as it came. digest: 16 bytes.
    """

    def __init__(self, raw: bytes, extractor: FeatureExtractor, digest_key: bytes) -> None:
        self.raw = raw
        self._written = remove_subject_prefix(check_bytes(raw))
        self._extractor = extractor
        self._message = extractor.split(self._written)
        self.digest = message_digest(self._written, digest_key, self._message)

    def example(self) -> Example:
        """Everything that teaching this message needs."""
        return Example(self.digest, self._extractor.features(self._written, self._message))


class ExampleReader:
    """Reads messages with the installation's key."""

    def __init__(self, key: bytes) -> None:
        self.extractor = FeatureExtractor(keys.derive_key(key, b"tokens"))
        self._digest_key = keys.derive_key(key, b"digest")
        self._last: tuple[bytes, ExtractedMessage] | None = None

    def digest(self, raw: bytes) -> bytes:
        """The identity of a message, whatever delivery has changed about it; 16 bytes."""
        return message_digest(remove_subject_prefix(check_bytes(raw)), self._digest_key)

    def split(self, raw: bytes) -> SplitMessage:
        """A message of which only the digest may be needed, taken apart once."""
        return SplitMessage(raw, self.extractor, self._digest_key)

    def read_features(self, raw: bytes) -> Features:
        """The features for judging one message; tokens may repeat."""
        extracted = self.extractor.read_with_repeats(check_bytes(raw))
        self._last = (raw, extracted) if len(raw) <= _MAX_CACHED_BYTES else None
        return extracted.features

    def read_example(self, raw: bytes) -> Example:
        """Everything that teaching one message needs."""
        written = remove_subject_prefix(check_bytes(raw))
        if self._last is not None and self._last[0] == written:
            message, features = self._last[1]
            unique = replace(features, tokens=drop_repeats(features.tokens))
            return self._make_example(written, ExtractedMessage(message, unique))
        return self._make_example(written, self.extractor.read_batch([written])[0])

    def read_examples(self, messages: Sequence[bytes]) -> list[Example]:
        """`read_example` for several messages, at less cost for each."""
        written = [remove_subject_prefix(raw) for raw in messages]
        extracted = self.extractor.read_batch(written)
        return list(map(self._make_example, written, extracted))

    def _make_example(self, raw: bytes, extracted: ExtractedMessage) -> Example:
        digest = message_digest(raw, self._digest_key, extracted.message)
        return Example(digest, extracted.features)

    def read_with_words(self, raw: bytes, extra_fields: bytes) -> tuple[Example, WordFinder]:
        """An example, with a way to the words of its message.

        extra_fields are header fields that count as if they stood on top of the message. They must
        not be among those that identify a message (Message-ID, Date, From, Subject, MIME's): its
        digest stays its own.
        """
        check_bytes(raw)
        extracted, words = self.extractor.read_with_words(_insert_fields(extra_fields, raw))
        same = not extra_fields or _FIELD_NAME.match(raw, header_start(raw))
        digest = message_digest(raw, self._digest_key, extracted.message if same else None)
        return Example(digest, extracted.features), words


def check_bytes(raw: bytes) -> bytes:
    """Return raw; TypeError unless it is bytes."""
    if not isinstance(raw, bytes):
        raise TypeError(
            f"a message is bytes, as it came, and this is {type(raw).__name__}: "
            "of an email.message take as_bytes()"
        )
    return raw


def _insert_fields(extra_fields: bytes, raw: bytes) -> bytes:
    """Put fields on top, but below an mbox `From ` line, which would end the header.

    A first line that begins with a blank must not become the tail of the field above it.
    """
    if not extra_fields:
        return raw
    start = header_start(raw)
    gap = b"\r\n" if raw[start : start + 1] in (b" ", b"\t") else b""
    return raw[:start] + extra_fields + gap + raw[start:]


def batch_by_size(items: Iterable[Item], raw: Callable[[Item], bytes]) -> Iterator[list[Item]]:
    """Items in lists worth reading in one go: at most BATCH_MESSAGES, and about BATCH_BYTES."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(raw(item))
        if len(chunk) == BATCH_MESSAGES or size >= BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
