"""Searches in addresses, and values kept between two requests for one user."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from spamguard.errors import UsageError
from spamguard.web import pages
from spamguard.web.auth import Person, Visitor
from spamguard.web.pages import Notice, PageContext, SearchQuery

# ---- searches


@given(
    st.dictionaries(
        st.sampled_from(["q", "before", "next", "told"]),
        st.text(st.characters(codec="utf-8"), max_size=300),
    )
)
def test_a_query_survives_its_address(given_values: dict[str, str]) -> None:
    query = SearchQuery.from_parameters(given_values)
    assert SearchQuery.from_parameters(dict(parse_qsl(query.ending().removeprefix("?")))) == query
    assert all(
        len(value) <= 200 for value in dict(parse_qsl(query.ending().removeprefix("?"))).values()
    )


@pytest.mark.parametrize("day", ["never", "2026-13-01", "9999-12-31", "0000-00-00"])
def test_an_invalid_day_gets_an_error(day: str) -> None:
    with pytest.raises(UsageError, match="is not a day"):
        SearchQuery(f"until:{day}").to_search()


# ---- state between two requests

ANNA, BEN = Person("anna"), Person("ben")


def told(context: PageContext, person: Person, name: str) -> Notice | None:
    state = {"visitor": Visitor(person, "x")}
    query = f"told={name}".encode()
    return context.requested_notice(
        Request({"type": "http", "query_string": query, "state": state})
    )


def test_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MAX_NOTICES", 2)
    context = PageContext(Any, Any, Any)
    names = [context.keep_notice(ANNA, Notice(thing)) for thing in "abc"]
    assert [told(context, ANNA, name) for name in names] == [None, Notice("b"), Notice("c")]
    assert told(context, BEN, names[2]) is None
