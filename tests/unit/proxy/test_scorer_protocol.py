"""An answer of a scorer is accepted only if every part has the right form."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.proxy import scorer
from spamguard.proxy.scorer import ScorerAnswer, ScorerAnswerReader, decode_scan, encode_scan
from spamguard.records import Scan, Verdict, Word
from tests.unit.bayes.support import repeatable

VERDICT = Verdict("spam", 0.99, 4.5, {"ham": 0.01, "spam": 0.99})
SCAN = Scan(
    VERDICT,
    b"d" * 16,
    b"packed",
    (Word(7, "from:x … y", 1.5), Word(2**32 - 1, "日本", -0.5)),
    0.95,
    True,
)


OWN = {
    "anna": replace(VERDICT, probability=0.5, log_odds=0.0),
    "ben@example.org": Verdict("ham", 0.01, -4.5, {"ham": 0.99, "spam": 0.01}),
}


def only(data: bytes) -> ScorerAnswer:
    (found,) = ScorerAnswerReader().feed(data)
    return found


@repeatable
@given(
    st.floats(0, 1),
    st.floats(-1000, 1000),
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9_-]{0,31}", fullmatch=True), st.floats(0, 1), max_size=5
    ),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=100),
    st.lists(
        st.builds(
            Word,
            st.integers(0, 2**32 - 1),
            st.text(st.characters(exclude_characters="\0"), max_size=30),
            st.floats(-50, 50),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_a_scan_comes_as_it_was(
    probability, log_odds, shares, digest, packed, words, settle
) -> None:
    scan = Scan(
        Verdict("unsure", probability, log_odds, shares),
        digest,
        packed,
        tuple(words),
        0.9871,
        settle,
    )
    assert decode_scan(only(encode_scan(scan))) == scan
    names = ["anna", "grüße", "ben@example.org"]
    own = {
        name: Verdict(
            "ham", probability, -log_odds, {name: 1 - share for name, share in shares.items()}
        )
        for name in names
    }
    personal = replace(scan, personal=own)
    assert decode_scan(only(encode_scan(personal)), [*names, "carl"]) == personal


def test_answers_come_in_pieces_of_any_size() -> None:
    data = (
        scorer.encode_answer(scorer.READY)
        + encode_scan(SCAN)
        + scorer.encode_answer(scorer.NOT_SCANNED, b"no-model")
    )
    for size in (1, 7, 1000):
        answers = ScorerAnswerReader()
        found = [
            one for at in range(0, len(data), size) for one in answers.feed(data[at : at + size])
        ]
        assert [one.kind for one in found] == [scorer.READY, scorer.SCANNED, scorer.NOT_SCANNED]
        assert decode_scan(found[1]) == SCAN
        assert scorer.decode_reason(found[2]) == "no-model"


@pytest.mark.parametrize(
    "head",
    [
        b"\x07" + bytes(8),
        b"\1" + b"\xff" * 8,
        b"\1" + struct.pack(">II", 2 << 20, 0),
        b"\1" + struct.pack(">II", 0, 5 << 20),
    ],
)
def test_what_cannot_be_an_answer_is_known_by_its_head(head: bytes) -> None:
    with pytest.raises(ValueError, match="not an answer"):
        list(ScorerAnswerReader().feed(head))


@repeatable
@given(st.binary(max_size=200), st.integers(0, 200))
def test_rubbish_is_a_value_error_or_a_scan(rubbish: bytes, at: int) -> None:
    whole = only(encode_scan(replace(SCAN, personal=OWN))).text
    for text in (
        rubbish,
        whole[:at],
        whole[:at] + rubbish,
        whole[:at] + rubbish + whole[at + len(rubbish) :],
    ):
        try:
            decoded = decode_scan(ScorerAnswer(scorer.SCANNED, text, b""), list(OWN))
        except ValueError:
            continue
        assert all(
            0 <= one.probability <= 1 for one in (decoded.verdict, *decoded.personal.values())
        )
        assert set(decoded.personal) <= set(OWN)
        assert all(math.isfinite(word.part) for word in decoded.words)


@pytest.mark.parametrize("text", [b"", b"two words", b"\xff", b"UPPER", b"x" * 33, b"a\nb"])
def test_a_reason_is_one_plain_word(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  its text is never shown
        scorer.decode_reason(ScorerAnswer(scorer.NOT_SCANNED, text, b""))
