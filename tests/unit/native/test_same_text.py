"""The kernel counts bytes and drops what is no letter as Python does, whatever the text."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail import traits
from spamguard.mail.text import CHARACTER_RANGES, strip_punctuation
from tests.unit.kernel.both import both, needs_kernel, repeatable
from tests.unit.mail.test_hostile import TEXTS, filled

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
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    compiled, plain = both(lambda: traits.count_kinds(data))
    assert compiled == plain


def test_every_byte_is_of_its_kind() -> None:
    for byte in map(bytes, zip(range(256), strict=True)):
        compiled, plain = both(lambda byte=byte: traits.count_kinds(byte * 33))
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
