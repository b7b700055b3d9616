"""The compiled code strips punctuation from any text exactly as Python does."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.text import CHARACTER_RANGES, strip_punctuation
from tests.unit.mail.test_hostile import TEXTS, filled
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


def test_every_character_of_the_first_plane_and_where_ranges_begin_and_end_beyond() -> None:
    beyond = [
        number + step
        for first, last, _ in CHARACTER_RANGES.tolist()
        for number in (first, last)
        for step in (-1, 0, 1)
    ]
    for character in map(chr, (*range(0x10000), *beyond, 0x10FFFF)):
        assert_same_letters(f"a{character}b")


def test_ranges_do_not_overlap() -> None:
    assert all(
        before < first <= last
        for (_, before, _), (first, last, _) in itertools.pairwise(CHARACTER_RANGES)
    )


def test_text_made_to_cost_time() -> None:
    for unit in (*TEXTS, *(piece.encode("utf-8", "replace") for piece in PIECES)):
        assert_same_letters(filled(unit, 100_000).decode("utf-8", "replace"))
