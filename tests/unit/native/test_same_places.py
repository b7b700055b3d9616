"""The kernel finds the words behind buckets that numpy finds, whatever the text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.extract import FeatureExtractor
from spamguard.records import Word
from tests.unit.mail.support import messages
from tests.unit.mail.test_hostile import TEXTS, filled
from tests.unit.native.both import COMPILED, both, needs_kernel, repeatable

pytestmark = needs_kernel
EXTRACTOR = FeatureExtractor(b"a key of this installation")
SHIFTS = (0, 10, 20, 26)  # from a bucket for each token to some dozens for all


def named(raw: bytes, shift: int) -> tuple[Word, ...]:
    """The words of every bucket of a message."""
    reading, words = EXTRACTOR.read_with_words(raw)
    buckets = np.unique(reading.features.tokens >> np.uint32(shift)).astype(np.intp)
    return words.words(buckets, np.arange(len(buckets), dtype=np.float64), shift)


def assert_same_words(raw: bytes) -> None:
    for shift in SHIFTS:
        compiled, plain = both(lambda shift=shift: named(raw, shift))
        assert compiled == plain


@repeatable
@given(messages() | st.binary(max_size=400))
def test_any_message(raw: bytes) -> None:
    assert_same_words(raw)


def test_texts_made_to_cost_time() -> None:
    for unit in TEXTS:
        assert_same_words(
            b"Subject: " + filled(unit, 500).replace(b"\n", b" ") + b"\n\n" + filled(unit, 3000)
        )


def test_a_bucket_that_no_token_lies_in_is_a_mistake_of_the_caller() -> None:
    _, words = EXTRACTOR.read_with_words(b"Subject: a\n\nb\n")
    with pytest.raises(IndexError, match="no token lies in bucket 7"):
        words.words(np.array([7]), np.zeros(1), 0)


def test_arguments_that_do_not_fit() -> None:
    assert COMPILED is not None
    with pytest.raises(TypeError, match="places"):
        COMPILED.places((), b"")
    with pytest.raises(ValueError, match="32 bits"):
        COMPILED.places(
            (b"a",), bytes(16), b"\0", bytes(64), bytes(256), np.zeros(1, np.uint32), 0, 32
        )
