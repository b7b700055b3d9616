"""An answer of a scorer is accepted only if every part has the right form."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.proxy.scorer import decode_answer, encode_answer
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


def test_an_answer_comes_in_pieces() -> None:
    data = encode_answer(SCAN)
    assert {decode_answer(data[:end]) for end in range(len(data))} == {None}
    assert decode_answer(data) == SCAN
    with pytest.raises(ValueError, match="not an answer"):
        decode_answer(data + b"x")
    with pytest.raises(ValueError, match="not an answer"):
        decode_answer(struct.pack(">I", 1 << 28))


def test_long_words_and_odd_lines_are_cut() -> None:
    scan = replace(SCAN, words=(Word(1, "x" * 500, 0.0),) * 1000, line="\ud800" * 120)
    found = decode_answer(encode_answer(scan))
    assert isinstance(found, Scan)
    assert (len(found.words), len(found.words[0].text), found.line) == (1000, 100, "?" * 120)


@pytest.mark.parametrize(
    "change",
    [
        {"personal": {"mallory": VERDICT}},
        {"sender": b"d" * 16},
        {"digest": b"d" * 15},
        {"threshold": 1.5},
        {"verdict": replace(VERDICT, probability=math.nan)},
        {"verdict": replace(VERDICT, log_odds=math.inf)},
        {"verdict": replace(VERDICT, label="spam\n")},
        {"verdict": replace(VERDICT, probabilities={"<b>": 0.5})},
        {"words": (Word(1, "x", math.nan),)},
        {"words": (Word(1, "x", 0.0),) * 1001},
        {"line": "x" * 121},
    ],
)
def test_a_scan_that_is_none_of_ours(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a"):
        decode_answer(encode_answer(replace(SCAN, **change)), list(OWN))


@repeatable
@given(st.binary(max_size=200), st.integers(0, 200))
def test_rubbish_is_a_value_error_or_a_scan(rubbish: bytes, at: int) -> None:
    whole = encode_answer(replace(SCAN, personal=OWN))[4:]
    for text in (
        rubbish,
        whole[:at],
        whole[:at] + rubbish,
        whole[:at] + rubbish + whole[at + len(rubbish) :],
    ):
        try:
            decoded = decode_answer(struct.pack(">I", len(text)) + text, list(OWN))
        except ValueError:
            continue
        if isinstance(decoded, Scan):
            assert all(
                0 <= one.probability <= 1 for one in (decoded.verdict, *decoded.personal.values())
            )
            assert set(decoded.personal) <= set(OWN)
            assert all(math.isfinite(word.part) for word in decoded.words)


@pytest.mark.parametrize("text", ["", "two words", "UPPER", "x" * 33, "a\nb", "a\n"])
def test_a_reason_is_one_plain_word(text: str) -> None:
    with pytest.raises(ValueError, match="not an answer"):
        decode_answer(encode_answer(text))
