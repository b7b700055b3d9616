"""Real malformed mail of many parsers: reading it never raises, nor takes a second."""

from __future__ import annotations

import tarfile
from functools import partial
from pathlib import Path

import pytest

from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.message import message_digest
from tests.unit.mail.support import KEY, seconds

ARCHIVE = Path(__file__).parents[4] / "shared" / "corpora" / "torture.tar.xz"


@pytest.mark.corpus
def test_every_file_is_read_within_a_second() -> None:
    if not ARCHIVE.exists():
        pytest.skip(f"the archive of malformed mail is not there: {ARCHIVE}")
    extractor = FeatureExtractor(KEY)
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is None:
                continue
            raw = stream.read()
            assert seconds(partial(extractor.features, raw), 1) < 1, member.name
            assert sorted(extractor.token_texts(raw)) == extractor.features(raw).tokens.tolist(), (
                member.name
            )
            assert len(message_digest(raw, KEY)) == 16, member.name
