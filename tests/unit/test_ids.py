"""Names of messages: unlike, in order of time, and harmless as names of files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.keys import id_time, is_id, new_id

TIMES = st.floats(0, 2**48 / 1000 - 1)
RANDOM = st.binary(min_size=4, max_size=4)


@given(TIMES, RANDOM)
def test_every_name_has_the_form_of_one(now: float, random: bytes) -> None:
    assert is_id(new_id(now, random))


@given(TIMES, TIMES, RANDOM, RANDOM)
def test_names_sort_by_time(first: float, second: float, one: bytes, other: bytes) -> None:
    if int(first * 1000) < int(second * 1000):
        assert new_id(first, one) < new_id(second, other)


@given(TIMES, RANDOM)
def test_names_tell_when_they_were_made(now: float, random: bytes) -> None:
    assert id_time(new_id(now, random)) == int(now * 1000) / 1000


def test_the_random_part_tells_names_of_one_moment_apart() -> None:
    assert new_id(1e9, b"\0\0\0\0") != new_id(1e9, b"\0\0\0\1")


@pytest.mark.parametrize("random", [b"", b"\0\0\0", b"\0\0\0\0\0"])
def test_too_little_or_too_much_randomness_is_refused(random: bytes) -> None:
    with pytest.raises(ValueError, match="random bytes"):
        new_id(0, random)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../../etc/passwd",
        "0" * 15,
        "0" * 17,
        "A" * 16,
        "w" * 16,
        "0" * 16 + "\n",
        "000000000000000/",
    ],
)
def test_what_is_no_name(text: str) -> None:
    assert not is_id(text)
