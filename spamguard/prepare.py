"""Raw mail made ready for teaching: the part that needs no tables and no ledger, so that any process can do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spamguard import secret
from spamguard.mail.extract import Extractor
from spamguard.mail.identity import digest
from spamguard.records import Features

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

    def digest(self, raw: bytes) -> bytes:
        """Which message this is, whatever delivery has changed about it; 16 bytes."""
        return digest(raw, self._digest_key)

    def ready(self, raw: bytes) -> Teaching:
        """Everything that teaching one message needs."""
        return self.all_ready([raw])[0]

    def all_ready(self, messages: Sequence[bytes]) -> list[Teaching]:
        """The same for several messages, at less cost for each."""
        return [
            Teaching(digest(raw, self._digest_key, found.message), found.features)
            for raw, found in zip(messages, self.extractor.read(messages), strict=True)
        ]


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
