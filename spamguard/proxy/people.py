"""Whose mail it is: from recipients' addresses to users, as those who teach are named. Pure.

Must never do more for a message with thousands of recipients than for one with `MOST`, and never ask for a name that no user can have.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from spamguard.teaching.lesson import is_user

# Recipients of a message, the first ones, who are judged for themselves: as many as Postfix names in one transaction. Each takes a
# fraction of a millisecond, but some 20 ms when what that user has said is not at hand, and a message has seconds.
MOST = 50


class People:
    """Who has which address. aliases: addresses, `*@DOMAIN` or parts before the @, each with a user, or with "" for nobody."""

    def __init__(self, aliases: Iterable[tuple[str, str]]) -> None:
        self._aliases = {address.lower(): user for address, user in aliases}

    def users(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Everybody whose mail a message to these addresses may be, at most three for each of the first `MOST`."""
        return tuple(dict.fromkeys(user for address in addresses[:MOST] for user in self.candidates(address)))

    def of(self, addresses: Sequence[str], known: Container[str]) -> list[str]:
        """For each address the user whose mail it is, of those who are `known`; "" where there is none."""
        found = [next((user for user in self.candidates(address) if user in known), "") for address in addresses[:MOST]]
        return found + [""] * (len(addresses) - len(found))

    def may_be(self, address: str, user: str, known: Container[str]) -> bool:
        """Whether that user's mail comes to this address: it does where `of` says so as soon as that user is known too."""
        for candidate in self.candidates(address):
            if candidate == user or candidate in known:
                return candidate == user
        return False

    def candidates(self, address: str) -> Sequence[str]:
        """Users whose mail this may be; the first who is known counts. An alias leaves no choice."""
        whole = address.lower()
        before, at, domain = whole.rpartition("@") if "@" in whole else (whole, "", "")
        plain = before.partition("+")[0] or before
        for name in (whole, plain + at + domain, f"*@{domain}", before, plain):
            if name in self._aliases:
                return [user for user in (self._aliases[name],) if user]
        return list(_users((whole, plain + at + domain, plain)))


def _users(names: Iterable[str]) -> Iterator[str]:
    return filter(is_user, dict.fromkeys(names))
