"""The compiled code strips punctuation from any text exactly as Python does."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.text import CHARACTER_RANGES, strip_punctuation
from tests.unit.native.both import both, needs_kernel, repeatable

pytestmark = needs_kernel
PIECES = (
    "a",
    " ",
    "é",
    "中",
    "🂡",
    "\u00a0",
    "\u00ad",
    "\u200b",
    "\u2019",
    "\u2028",
    "\ufeff",
    "\U000e0001",
    "\0",
    "\ud800",
)


def assert_same_letters(text: str) -> None:
    compiled, plain = both(lambda: strip_punctuation(text))
    assert compiled == plain


@repeatable
@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text(text: str) -> None:
    assert_same_letters(text)


def test_ranges_do_not_overlap() -> None:
    assert all(
        before < first <= last
        for (_, before, _), (first, last, _) in itertools.pairwise(CHARACTER_RANGES)
    )
