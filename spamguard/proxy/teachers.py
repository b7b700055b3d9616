"""Who may teach at a scanner: clients of listed networks, and whoever knows the password."""

from __future__ import annotations

import asyncio
import logging
from hashlib import blake2b
from hmac import compare_digest

from spamguard.reception.clients import Networks
from spamguard.settings import Scanner

_LONGEST = 512  # bytes of a password that count: what clients say is cut there
_GUESS_SECONDS = 1.0  # that a wrong password costs, one after the other, whoever says them

_log = logging.getLogger("spamguard.proxy")


class Teachers:
    """Reads the password once. Where it cannot be read there is none, and mail is judged all the same."""

    def __init__(self, scanner: Scanner) -> None:
        self._networks = Networks(scanner.teachers)
        self._listed = bool(scanner.teachers)
        self._password = b""
        self._guessing = asyncio.Lock()
        try:
            if scanner.password_file is not None:
                with scanner.password_file.open("rb") as file:
                    self._password = file.readline(_LONGEST).strip()
        except OSError as error:
            told = "%s: cannot be read (%s), so nobody can teach by a password: the daemon's user must be able to read it"
            _log.error(told, scanner.password_file, error.strerror)

    async def admit(self, peer: str, password: str) -> bool:
        """Whether this client may teach. Who is listed, or knows the password, is not kept waiting by those who guess."""
        if (self._listed and peer in self._networks) or self._knows(password):
            return True
        if password and self._password:
            _log.warning("%s: a wrong password", peer or "a client of the socket")
            async with self._guessing:
                await asyncio.sleep(_GUESS_SECONDS)
        return False

    def _knows(self, password: str) -> bool:
        """Comparing takes the same time whatever it says."""
        return bool(self._password) and compare_digest(_hash(password.encode("utf-8", "replace")), _hash(self._password))


def _hash(password: bytes) -> bytes:
    return blake2b(password[:_LONGEST]).digest()
