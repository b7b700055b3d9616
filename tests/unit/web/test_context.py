"""Searches in addresses, and values kept between two requests for one user."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from spamguard.errors import UsageError
from spamguard.web import context
from spamguard.web.auth import AuthMethod, Person, Visitor
from spamguard.web.context import Notice, PageContext, SearchQuery

# ---- searches

FIELDS = ("q", "subject", "sender", "recipient", "label", "taught", "since", "until", "before")


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


@pytest.mark.parametrize("day", ["never", "2026-13-01", "9999-12-31", "0000-00-00"])
def test_an_invalid_day_gets_an_error(day: str) -> None:
    with pytest.raises(UsageError, match="is not a day"):
        SearchQuery.from_parameters({"until": day}).to_search()


# ---- state between two requests

ANNA, BEN = Person("anna"), Person("ben")


def put(pages: PageContext, text: str) -> str:
    return pages.redirect(ANNA, "/", Notice(text)).headers["location"].partition("told=")[2]


def told(pages: PageContext, person: Person, name: str) -> Notice | None:
    state = {"visitor": Visitor(person, AuthMethod.SESSION)}
    query = f"told={name}".encode()
    return pages.requested_notice(Request({"type": "http", "query_string": query, "state": state}))


def test_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_MAX_NOTICES", 2)
    pages = PageContext(Any, Any, Any)
    names = [put(pages, thing) for thing in "abc"]
    assert [told(pages, ANNA, name) for name in names] == [None, Notice("b"), Notice("c")]
