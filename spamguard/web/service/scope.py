"""Whose mail it is that somebody asks for: an operator sees all, others what may have been sent to them, and of its recipients themselves.

Must never show anybody an address, or a message, that is not theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spamguard.errors import NotAllowedError
from spamguard.history.looks import part
from spamguard.proxy.people import People
from spamguard.web.service.values import Person


class Scope:
    """aliases: as in `settings.Settings`."""

    def __init__(self, aliases: Sequence[tuple[str, str]]) -> None:
        self._aliases = aliases
        self._people = People(aliases)

    def theirs(self, person: Person, addresses: Iterable[str]) -> tuple[str, ...]:
        """Those of these addresses that a person may be told."""
        return tuple(one for one in addresses if person.operator or person.name in self._people.candidates(one))

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
