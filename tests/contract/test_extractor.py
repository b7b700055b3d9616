"""Features that change need a new version: else old and new ones mix, and nobody notices."""

from __future__ import annotations

from hashlib import blake2b

from corpora.synthetic import generate
from spamguard.engine.prepare import ExampleReader
from spamguard.records import EXTRACTOR, EXTRACTOR_FINGERPRINT
from tests.contract.test_record import KEY, odd_mail


def test_the_version_belongs_to_these_features() -> None:
    extractor, state = ExampleReader(KEY).extractor, blake2b(digest_size=6)
    for raw in [*(raw for _, raw in generate(50, 7)), *odd_mail()]:
        found = extractor.features(raw)
        for array in (found.tokens, found.traits, found.numbers):
            state.update(array.tobytes())
    assert state.hexdigest() == EXTRACTOR_FINGERPRINT, (
        "the features of mail have changed: in spamguard/records.py raise EXTRACTOR, which is "
        f"{EXTRACTOR}, once for each release, and write EXTRACTOR_FINGERPRINT = "
        f'"{state.hexdigest()}"'
    )
