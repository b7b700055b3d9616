"""Addresses resolved to users: aliases first, then the usual forms, with bounded work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spamguard.users import UserResolver, is_user_name
from tests.unit.bayes.support import repeatable

ALIASES = (
    ("Sales@Example.org", "anna"),
    ("*@anna.example", "anna"),
    ("ben@anna.example", "ben@example.org"),
    ("postmaster", "carl"),
    ("lists@example.org", ""),
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
    found = people.resolve(addresses, set(users))
    assert len(found) == len(addresses)
    assert set(found) <= {*users, ""}
