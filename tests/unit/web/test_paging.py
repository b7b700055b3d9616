"""Where the next page of a list starts: no row is left out or repeated, and the start does not
reveal whose row was last.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.keys import id_time, is_id, new_id
from spamguard.web.queries import AFTER_LAST_ID, next_page_start
from tests.unit.bayes.support import repeatable

NAMES = st.builds(new_id, st.floats(0, 2**48 / 1000 - 1), st.binary(min_size=4, max_size=4))
NEAR = st.builds(new_id, st.floats(1e9, 1e9 + 300), st.binary(min_size=4, max_size=4))


@repeatable
@given(NEAR, st.none() | NEAR)
def test_the_start_is_between_the_last_seen_and_the_last_shown_row(
    one: str, other: str | None
) -> None:
    seen, last = (min(one, other), max(one, other)) if other else (one, "")
    start = next_page_start(seen, last)
    assert seen <= start <= (last or AFTER_LAST_ID)
    assert start == last or (id_time(start) % 60, start[-4:]) == (0, "0000")
    assert id_time(start) - id_time(seen) <= 60


@repeatable
@given(NAMES)
def test_every_name_gives_a_start(name: str) -> None:
    assert is_id(next_page_start(name, ""))


def test_where_all_was_seen_nothing_follows() -> None:
    assert next_page_start("", "") == next_page_start("", new_id(1e9, b"rand")) == ""
