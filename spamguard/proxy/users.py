"""Recipients' addresses resolved to users, and clients of a scanner admitted to teach.

`UserResolver` is pure. It must never do more for a message with thousands of recipients than for
one with `MAX_RECIPIENTS`, and never ask for a name that no user can have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence
from hashlib import blake2b
from hmac import compare_digest

from spamguard.config.options import Scanner
from spamguard.limits import Networks
from spamguard.users import is_user_name

_log = logging.getLogger("spamguard.proxy")

# The first recipients of a message are judged for themselves: as many as Postfix names in one
# transaction. Each takes a fraction of a millisecond, but some 20 ms when that user's lessons are
# not at hand, and a message has seconds.
MAX_RECIPIENTS = 50
_MAX_PASSWORD_BYTES = 512  # a longer password is cut there
_WRONG_PASSWORD_SECONDS = 1.0  # that each wrong password takes, one after the other


class UserResolver:
    """Resolves addresses to users.

    aliases: pairs of an address, `*@DOMAIN` or a part before the @, and a user, or "" for nobody.

    >>> resolver = UserResolver([("sales@example.org", "anna")])
    >>> list(resolver.candidates("sales@example.org"))
    ['anna']
    >>> list(resolver.candidates("Ben+news@example.org"))
    ['ben+news@example.org', 'ben@example.org', 'ben']
    """

    def __init__(self, aliases: Iterable[tuple[str, str]]) -> None:
        self._aliases = {address.lower(): user for address, user in aliases}

    def candidates(self, address: str) -> Sequence[str]:
        """Users whose mail this may be; the first that exists counts. An alias leaves no choice."""
        whole = address.lower()
        local_part, at, domain = whole.rpartition("@") if "@" in whole else (whole, "", "")
        plain = local_part.partition("+")[0] or local_part
        for name in (whole, plain + at + domain, f"*@{domain}", local_part, plain):
            if name in self._aliases:
                return [user for user in (self._aliases[name],) if user]
        names = dict.fromkeys((whole, plain + at + domain, plain))
        return [name for name in names if is_user_name(name)]

    def all_candidates(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Users whose mail a message to these addresses may be.

        At most three for each of the first `MAX_RECIPIENTS`.
        """
        counted = addresses[:MAX_RECIPIENTS]
        return tuple(
            dict.fromkeys(user for address in counted for user in self.candidates(address))
        )

    def resolve(self, addresses: Sequence[str], existing: Container[str]) -> list[str]:
        """For each address the user whose mail it is, among the `existing`; "" if there is none."""
        users = [
            next((user for user in self.candidates(address) if user in existing), "")
            for address in addresses[:MAX_RECIPIENTS]
        ]
        return users + [""] * (len(addresses) - len(users))

    def could_belong_to(self, address: str, user: str, existing: Container[str]) -> bool:
        """Whether mail to this address is that user's, or would be if the user existed."""
        for candidate in self.candidates(address):
            if candidate == user or candidate in existing:
                return candidate == user
        return False


class TrainingAcl:
    """Admits clients of listed networks, and those that know the password, to teach at a scanner.

    The password is read once. If it cannot be read there is none, and mail is judged all the same.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._networks = Networks(scanner.teachers)
        self._has_networks = bool(scanner.teachers)
        self._password = b""
        self._guess_lock = asyncio.Lock()
        try:
            if scanner.password_file is not None:
                with scanner.password_file.open("rb") as file:
                    self._password = file.readline(_MAX_PASSWORD_BYTES).strip()
        except OSError as error:
            _log.error(
                "%s: cannot be read (%s), so nobody can teach by a password: "
                "the daemon's user must be able to read it",
                scanner.password_file,
                error.strerror,
            )

    async def admit(self, peer: str, password: str) -> bool:
        """Whether this client may teach.

        Wrong passwords wait for each other; a listed client, or a right password, never does.
        """
        if self._has_networks and peer in self._networks:
            return True
        if self._password and compare_digest(
            _hash(password.encode("utf-8", "replace")), _hash(self._password)
        ):
            return True
        if password and self._password:
            _log.warning("%s: a wrong password", peer or "a client of the socket")
            async with self._guess_lock:
                await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
        return False


def _hash(password: bytes) -> bytes:
    return blake2b(password[:_MAX_PASSWORD_BYTES]).digest()
