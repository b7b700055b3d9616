"""Whose mail it is that somebody asks for: an operator sees all, others what was sent to them, and of its recipients themselves.

Mail is the first candidate's who is known (`proxy.people`), as where verdicts are `personal`: who has ever said anything is, and whoever
asks. So two may see the mail of an address while the first of them has said nothing. Must never show anybody an address, or a message,
that is not theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from spamguard.errors import NotAllowedError
from spamguard.history.looks import part
from spamguard.ledger.users import Users
from spamguard.proxy.people import People
from spamguard.web.service.values import Person

_SECONDS = 5.0  # between two looks at who is known: a step or two into an index for each user, 70 ms for 20,000 of them


class Scope:
    """aliases: as in `settings.Settings`. Tell it who is known (`catch_up`) before it is asked."""

    def __init__(self, aliases: Sequence[tuple[str, str]]) -> None:
        self._aliases = aliases
        self._people = People(aliases)
        self._known: frozenset[str] = frozenset()
        self._good_until = -inf

    def catch_up(self, users: Users) -> None:
        """Who is known by now, or was some seconds ago. Any thread may call it. LedgerError."""
        now = time.monotonic()
        if now >= self._good_until:
            self._known, self._good_until = frozenset(users.last_times()), now + _SECONDS

    def theirs(self, person: Person, addresses: Iterable[str]) -> tuple[str, ...]:
        """Those of these addresses that a person may be told."""
        known = self._known
        return tuple(one for one in addresses if person.operator or self._people.may_be(one, person.name, known))

    def may_see(self, person: Person, addresses: Iterable[str]) -> bool:
        """Whether mail to these addresses is any of theirs; an operator's is all, also what nobody knows to whom it went."""
        return person.operator or bool(self.theirs(person, addresses))

    def parts(self, person: Person) -> Sequence[str]:
        """What the recipients have in them of every row that is theirs (`history.looks.Wanted.parts`); nothing: all is theirs.

        Of other rows too, perhaps: what is found must be looked at (`theirs`).
        """
        return () if person.operator else list(dict.fromkeys(self._parts(person.name)))

    def _parts(self, name: str) -> Iterator[str]:
        yield from _of_address(name)
        yield from (part(name + sign, begins=True) for sign in "@+")
        for address, user in self._aliases:
            if user == name:
                yield from [part(address[1:], ends=True)] if address.startswith("*@") else _of_address(address)


def _of_address(address: str) -> Iterator[str]:
    """Of an address, or of a part before the @; what may stand between the two (`+news`) is not known."""
    before, at, _ = address.rpartition("@")
    yield part(address, begins=True, ends=True)
    yield from (part((before or address) + sign, begins=True) for sign in ("+" if at else "@+"))


def voice(person: Person) -> str:
    """In whose name a person teaches: an operator for the site."""
    return "" if person.operator else person.name


def operators_only(person: Person) -> None:
    """NotAllowedError for all others."""
    if not person.operator:
        raise NotAllowedError("only operators may do that")
