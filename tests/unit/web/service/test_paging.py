"""Where a list goes on: nothing is left out or told twice, and whose the last was that was looked at is not told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.ids import is_id, new_id, time_of
from spamguard.web.service.paging import AFTER_ALL, onward
from tests.unit.bayes.support import repeatable

NAMES = st.builds(new_id, st.floats(0, 2**48 / 1000 - 1), st.binary(min_size=4, max_size=4))
NEAR = st.builds(new_id, st.floats(1e9, 1e9 + 300), st.binary(min_size=4, max_size=4))


@repeatable
@given(NEAR, st.none() | NEAR)
def test_it_goes_on_between_what_was_seen_and_what_was_shown(one: str, other: str | None) -> None:
    seen, last = (min(one, other), max(one, other)) if other else (one, "")
    found = onward(seen, last)
    assert seen <= found <= (last or AFTER_ALL)
    assert found == last or (time_of(found) % 60, found[-4:]) == (0, "0000")
    assert time_of(found) - time_of(seen) <= 60


@repeatable
@given(NAMES)
def test_whatever_the_name_is_one_comes_of_it(name: str) -> None:
    assert is_id(onward(name, ""))


def test_where_all_was_seen_nothing_follows() -> None:
    assert onward("", "") == onward("", new_id(1e9, b"rand")) == ""
