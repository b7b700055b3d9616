"""Durations and sizes, there and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spamguard.config import values
from spamguard.config.values import KeptLessons


@given(st.integers(1, 1 << 50))
@example(512 << 20)
@example(10**9)
def test_sizes_there_and_back(value):
    assert values.parse_size(values.size_text(value)) == value


@pytest.mark.parametrize(
    "given", ["", "5", 5, None, True, "5 x", "-5s", "5s5", "1e3s", "9999999d", [], {}, "٣s", "5s\n"]
)
def test_invalid_units(given):
    for read in (values.parse_seconds, values.parse_size, values.parse_days):
        with pytest.raises(ValueError, match="expected"):
            read(given)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (1000, KeptLessons(number=1000)),
        (2_000_000, KeptLessons(number=2_000_000)),
        ("2 years", KeptLessons(days=730)),
        ("1year", KeptLessons(days=365)),
        ("6 months", KeptLessons(days=182)),
        ("3 weeks", KeptLessons(days=21)),
        ("1 day", KeptLessons(days=1)),
        ("90d", KeptLessons(days=90)),
    ],
)
def test_kept_lessons_there_and_back(value, kept):
    assert values.parse_kept_lessons(value) == kept
    assert values.parse_kept_lessons(kept.number or str(kept)) == kept


@pytest.mark.parametrize(
    "value", [999, 0, "2000000", "2 decades", "0 years", "10h", True, 2.5, None, []]
)
def test_invalid_kept_lessons(value):
    with pytest.raises(ValueError, match="expected a number of lessons"):
        values.parse_kept_lessons(value)
