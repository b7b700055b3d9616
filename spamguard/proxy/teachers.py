"""Who may teach at a scanner: clients of listed networks, and whoever knows the password."""

from __future__ import annotations

import logging
from hashlib import blake2b
from hmac import compare_digest

from spamguard.reception.clients import Networks
from spamguard.settings import Scanner

_LONGEST = 1000  # bytes of a password

_log = logging.getLogger("spamguard.proxy")


class Teachers:
    """Reads the password once. Where it cannot be read there is none, and mail is judged all the same."""

    def __init__(self, scanner: Scanner) -> None:
        self._networks = Networks(scanner.teachers)
        self._listed = bool(scanner.teachers)
        self._password = b""
        try:
            if scanner.password_file is not None:
                with scanner.password_file.open("rb") as file:
                    self._password = file.readline(_LONGEST).strip()
        except OSError as error:
            _log.error("%s: cannot be read (%s): nobody can teach by a password", scanner.password_file, error.strerror)

    def admit(self, peer: str, password: str) -> bool:
        """Whether this client may teach. Comparing takes the same time whatever it says."""
        known = bool(self._password) and compare_digest(_hash(password.encode("utf-8", "replace")), _hash(self._password))
        return known or (self._listed and peer in self._networks)


def _hash(password: bytes) -> bytes:
    return blake2b(password[:_LONGEST]).digest()
