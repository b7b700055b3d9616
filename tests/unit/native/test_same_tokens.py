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
from tests.unit.mail.test_hostile import MARKUP, TEXTS, filled
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


def test_tokens_of_every_length_at_every_place_in_a_window() -> None:
    for before in range(70):
        assert_same_tokens(
            [
                (
                    b"",
                    b" " * before
                    + b" ".join(
                        b"x" * size for size in (1, 7, 8, 9, 15, 16, 17, 24, 63, 64, 65, 128)
                    ),
                )
            ]
        )
    for size in range(200):
        assert_same_tokens(
            [(b"", b"x" * size), (b"subject", b"x" * size + b" "), (b"x", b" " * size)]
        )


def test_many_tokens_and_many_repeats() -> None:
    random = Random(3)
    for number in (1, 2, 3, 99, 100, 101, 255, 256, 257, 3000, 70_000):
        words = [b"%d" % random.randrange(number) for _ in range(number)]
        assert_same_tokens(
            [(b"", b" ".join(words[: number // 2])), (b"subject", b" ".join(words[number // 2 :]))]
        )
        assert_same_tokens([(b"x", b"same " * number)])


def test_every_section_empty() -> None:
    assert_same_tokens([(b"", b"")])
    assert_same_tokens([(b"", b""), (b"subject", b" "), (b"tags", b"\n")])


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


def test_several_messages_read_together() -> None:
    mail = [raw for _, raw in generate(40, 9)]
    compiled, plain = both(
        lambda: [message.features.tokens.tolist() for message in EXTRACTOR.read_all(mail)]
    )
    assert compiled == plain == [EXTRACTOR.features(raw).tokens.tolist() for raw in mail]


def test_mail_made_to_cost_time() -> None:
    for unit in (*MARKUP, *TEXTS):
        assert_same_features(b"Subject: x\nContent-Type: text/html\n\n" + filled(unit, 100_000))
        assert_same_features(
            b"Subject: "
            + filled(unit, 20_000).replace(b"\n", b" ")
            + b"\n\n"
            + filled(unit, 100_000)
        )
