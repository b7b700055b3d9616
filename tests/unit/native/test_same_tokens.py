"""The kernel finds the tokens that numpy finds, whatever the text."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.content import MessageContent
from spamguard.mail.extract import FeatureExtractor, TokenHasher
from spamguard.mail.mime import DEFAULT_LIMITS, parse_message
from tests.unit.mail.support import messages
from tests.unit.mail.test_fuzz import damaged
from tests.unit.native.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
KEY = b"a key of this installation"
EXTRACTOR, HASHER = FeatureExtractor(KEY), TokenHasher(KEY)
NAMES = (b"", b"subject", b"tags", b"url", b"x")  # some make pairs, some make none

_runs = st.builds(
    bytes.__mul__, st.sampled_from((b"a", b" ", b"\xe4", b"a ", b"\0")), st.integers(0, 200)
)
_texts = st.binary(max_size=300) | st.lists(_runs | st.binary(max_size=9), max_size=12).map(
    b"".join
)
_sections = st.lists(st.tuples(st.sampled_from(NAMES), _texts), min_size=1, max_size=8)


def assert_same_tokens(sections: list[tuple[bytes, bytes]]) -> None:
    content = MessageContent(parse_message(b"", DEFAULT_LIMITS), sections=sections)
    compiled, plain = both(lambda: HASHER.find_tokens(content).distinct_tokens())
    np.testing.assert_array_equal(compiled, plain)
    assert compiled.dtype == plain.dtype == np.uint32


@repeatable
@given(_sections)
def test_any_sections(sections: list[tuple[bytes, bytes]]) -> None:
    assert_same_tokens(sections)


def assert_same_features(raw: bytes) -> None:
    compiled, plain = both(lambda: EXTRACTOR.features(raw))
    np.testing.assert_array_equal(compiled.tokens, plain.tokens)
    np.testing.assert_array_equal(compiled.traits, plain.traits)
    np.testing.assert_array_equal(compiled.numbers, plain.numbers)


@repeatable
@given(messages() | st.binary(max_size=400))
def test_any_message(raw: bytes) -> None:
    assert_same_features(raw)


def test_generated_mail_and_damaged_mail() -> None:
    for _, raw in generate(300, 5):
        assert_same_features(raw)
    random = Random(8)
    for _ in range(300):
        assert_same_features(damaged(random))
