"""Addresses resolved to users: aliases first, then the usual forms, with bounded work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.proxy import scorer
from spamguard.users import MAX_RECIPIENTS, UserResolver, is_user_name
from tests.unit.bayes.support import repeatable

ALIASES = (
    ("Sales@Example.org", "anna"),
    ("*@anna.example", "anna"),
    ("ben@anna.example", "ben@example.org"),
    ("postmaster", "carl"),
    ("lists@example.org", ""),
)


@pytest.mark.parametrize(
    ("address", "users"),
    [
        ("anna@example.org", ["anna@example.org", "anna"]),
        ("Anna@Example.ORG", ["anna@example.org", "anna"]),
        ("anna+news@example.org", ["anna+news@example.org", "anna@example.org", "anna"]),
        ("anna-news@example.org", ["anna-news@example.org", "anna-news"]),
        ("anna", ["anna"]),
        ("+news@example.org", ["+news@example.org", "+news"]),
        ("sales@example.org", ["anna"]),
        ("sales+x@example.org", ["anna"]),
        ("sales@elsewhere.example", ["sales@elsewhere.example", "sales"]),
        ("whoever+x@anna.example", ["anna"]),
        ("ben@anna.example", ["ben@example.org"]),
        ("Postmaster+x@anywhere.example", ["carl"]),
        ("lists@example.org", []),
        ('"a b"@example.org', ['"a b"@example.org', '"a b"']),
        ('"a@b"@example.org', ['"a@b"@example.org', '"a@b"']),
        ("\udcff@example.org", []),
        ("x" * 300 + "@example.org", []),
        ("grüße@example.org", ["grüße@example.org", "grüße"]),
        ("", []),
        ("@", ["@"]),
    ],
)
def test_whose_mail_it_may_be(address: str, users: list[str]) -> None:
    assert list(UserResolver(ALIASES).candidates(address)) == users


def test_the_first_existing_user_counts() -> None:
    people = UserResolver(ALIASES)
    addresses = ["anna+x@example.org", "ben@example.org", "lists@example.org", "sales@example.org"]
    assert people.resolve(addresses, {"anna", "anna@example.org", "lists"}) == [
        "anna@example.org",
        "",
        "",
        "anna",
    ]
    assert people.all_candidates(addresses) == (
        "anna+x@example.org",
        "anna@example.org",
        "anna",
        "ben@example.org",
        "ben",
    )


@repeatable
@given(
    st.sampled_from(
        [
            "anna+x@example.org",
            "Anna@example.org",
            "sales@example.org",
            "lists@example.org",
            "",
            "carl@elsewhere.example",
        ]
    ),
    st.sampled_from(
        ["anna", "anna@example.org", "anna+x@example.org", "carl", "carl@elsewhere.example", ""]
    ),
    st.sets(
        st.sampled_from(
            [
                "anna",
                "anna@example.org",
                "anna+x@example.org",
                "carl",
                "carl@elsewhere.example",
                "ben",
            ]
        )
    ),
)
def test_it_may_be_theirs_if_it_would_be_were_they_known(
    address: str, user: str, known: set[str]
) -> None:
    people = UserResolver(ALIASES)
    assert people.could_belong_to(address, user, known) == (
        bool(user) and people.resolve([address], {*known, user}) == [user]
    )


def test_a_message_to_thousands_asks_for_some() -> None:
    addresses = [f"user{number}+x@example.org" for number in range(5000)]
    people = UserResolver(())
    users = people.all_candidates(addresses)
    assert len(users) == 3 * MAX_RECIPIENTS <= scorer.MAX_USERS
    assert people.resolve(addresses, set(users)) == addresses[:MAX_RECIPIENTS] + [""] * (
        5000 - MAX_RECIPIENTS
    )


@repeatable
@given(
    st.lists(
        st.text(max_size=300) | st.from_regex(r"[ -~]{0,20}@[a-z.]{0,20}", fullmatch=True),
        max_size=20,
    )
)
def test_whatever_the_addresses_are_only_users_are_asked_for(addresses: list[str]) -> None:
    people = UserResolver(ALIASES)
    users = people.all_candidates(addresses)
    assert all(map(is_user_name, users))
    assert scorer.decode_users(scorer.encode_users(users)) == users
    found = people.resolve(addresses, set(users))
    assert len(found) == len(addresses)
    assert set(found) <= {*users, ""}
