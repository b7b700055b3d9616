"""The search of the history, as the address of the page has it."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.errors import UsageError
from spamguard.web.context import HISTORY_ROWS, SearchQuery
from spamguard.web.queries import Search
from tests.unit.web.fixed import NAME

FIELDS = ("subject", "sender", "recipient", "label", "taught", "since", "until", "before")


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "next", "told"]),
        st.text(st.characters(codec="utf-8"), max_size=300),
    )
)
def test_a_query_survives_its_address(given_values: dict[str, str]) -> None:
    query = SearchQuery.from_parameters(given_values)
    assert SearchQuery.from_parameters(dict(parse_qsl(query.ending().removeprefix("?")))) == query
    assert all(
        len(value) <= 200 for value in dict(parse_qsl(query.ending().removeprefix("?"))).values()
    )


def test_days_are_whole_and_both_included() -> None:
    search = SearchQuery.from_parameters(
        {
            "since": "2026-11-20",
            "until": "2026-11-20",
            "sender": " roofs ",
            "label": "spam",
            "before": NAME,
        }
    ).to_search()
    assert search == Search(
        "roofs", "", "", "spam", "", 1795132800.0, 1795219200.0, NAME, HISTORY_ROWS
    )
    assert SearchQuery.from_parameters({"before": "../x"}).to_search().before == ""


@pytest.mark.parametrize("day", ["yesterday", "2026-13-01", "9999-12-31", "0000-00-00", "1" * 400])
def test_an_invalid_day_gets_an_error(day: str) -> None:
    with pytest.raises(UsageError, match="is not a day"):
        SearchQuery.from_parameters({"until": day}).to_search()
