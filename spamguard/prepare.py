"""Raw mail made ready for teaching: the part that needs no tables and no ledger, so that any process can do it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spamguard import secret
from spamguard.mail.extract import Extractor, Named, Reading, without_repeats
from spamguard.mail.identity import digest
from spamguard.mail.rewrite import header_start, without_prefix
from spamguard.records import Features

_FIELD = re.compile(rb"[!-9;-~]+[ \t]*:")

# The last message that was judged is kept as it was read: whoever teaches at once what was just judged has it read once.
_KEPT = 256 << 10  # bytes of it at most

CHUNK = 32  # messages
CHUNK_BYTES = 1 << 20  # of mail

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Teaching:
    """One message ready for teaching: which it is, and what it says."""

    digest: bytes
    features: Features


class Preparer:
    """Reads messages with the installation's key."""

    def __init__(self, key: bytes) -> None:
        self.extractor = Extractor(secret.derived(key, b"tokens"))
        self._digest_key = secret.derived(key, b"digest")
        self._last: tuple[bytes, Reading] | None = None

    def digest(self, raw: bytes) -> bytes:
        """Which message this is, whatever delivery has changed about it; 16 bytes."""
        return digest(without_prefix(message(raw)), self._digest_key)

    def judged(self, raw: bytes) -> Features:
        """What judging one message needs; tokens may repeat."""
        found = self.extractor.repeating(message(raw))
        self._last = (raw, found) if len(raw) <= _KEPT else None
        return found.features

    def ready(self, raw: bytes) -> Teaching:
        """Everything that teaching one message needs."""
        written = without_prefix(message(raw))
        if self._last is None or self._last[0] != written:
            return self._teaching(written, self.extractor.read([written])[0])
        parsed, said = self._last[1]
        return self._teaching(written, Reading(parsed, replace(said, tokens=without_repeats(said.tokens))))

    def named(self, raw: bytes, on_top: bytes) -> tuple[Teaching, Named]:
        """The same with a way to its words. on_top: header fields that count as if they stood on top of the message.

        They must be none that a message is known by (Message-ID, Date, From, Subject, MIME's): its identity stays its own.
        """
        found, words = self.extractor.read_named(_below(on_top, message(raw)))
        same = not on_top or _FIELD.match(raw, header_start(raw))
        return Teaching(digest(raw, self._digest_key, found.message if same else None), found.features), words

    def all_ready(self, messages: Sequence[bytes]) -> list[Teaching]:
        """The same for several messages, at less cost for each."""
        written = [without_prefix(raw) for raw in messages]
        return [self._teaching(raw, found) for raw, found in zip(written, self.extractor.read(written), strict=True)]

    def _teaching(self, raw: bytes, found: Reading) -> Teaching:
        return Teaching(digest(raw, self._digest_key, found.message), found.features)


def message(raw: bytes) -> bytes:
    """The same, of whatever a caller took for a message. TypeError: it is none."""
    if not isinstance(raw, bytes):
        raise TypeError(f"a message is bytes, as it came, and this is {type(raw).__name__}: of an email.message take as_bytes()")
    return raw


def _below(on_top: bytes, raw: bytes) -> bytes:
    """Under an mbox `From ` line, where they are put when it is delivered: above it, it would end the header. A first line that begins
    with a blank must not become the tail of the field above it."""
    if not on_top:
        return raw
    start = header_start(raw)
    gap = b"\r\n" if raw[start : start + 1] in (b" ", b"\t") else b""
    return raw[:start] + on_top + gap + raw[start:]


def chunks(items: Iterable[Item], raw: Callable[[Item], bytes]) -> Iterator[list[Item]]:
    """Items in lists that are worth reading in one go: not many, and not many bytes of mail unless one item has them."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(raw(item))
        if len(chunk) == CHUNK or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
