"""Raw mail made ready for teaching: the part that needs no tables and no ledger, so that any process can do it."""

from __future__ import annotations

from dataclasses import dataclass

from spamguard import secret
from spamguard.mail.extract import Extractor
from spamguard.mail.identity import digest
from spamguard.records import Features


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
        return Teaching(self.digest(raw), self.extractor.features(raw))
