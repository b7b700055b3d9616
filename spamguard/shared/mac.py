"""What tells a row that a node wrote from one that anybody else wrote: a MAC by our key.

The password of the database opens a connection, and no more. Its functions ask for `secret`, which
is derived from the installation's key, and the rows that nodes believe (votes, credentials, nodes)
carry a MAC (keyed BLAKE2b, RFC 7693). So the database can lose, but not lie.

Must never let one row stop the reading of others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from hmac import compare_digest

from spamguard.keys import derive_key, key_fingerprint
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.shared")

_MAC_BYTES = 16
_MAX_COUNTED = 10_000  # rows that are ignored; memory


class RowMac:
    """Makes and checks the MACs of rows, and counts the rows without a right one.

    secret: lets a connection call the functions of the database. fingerprint: of the key.
    """

    def __init__(self, installation_key: bytes) -> None:
        self._key = derive_key(installation_key, b"shared rows")
        self._forged: set[bytes] = set()
        self._warnings = WarnOnce(_log, logging.ERROR)
        self.secret = derive_key(installation_key, b"shared database").hex()
        self.fingerprint = key_fingerprint(installation_key)

    def sign(self, kind: str, values: Iterable[object]) -> bytes:
        """The MAC of a row. kind: what it is, at most 16 bytes. values: bytes, or anything that
        `str` tells from all others of its place.
        """
        mac = blake2b(key=self._key, digest_size=_MAC_BYTES, person=kind.encode())
        for value in values:
            data = value if isinstance(value, bytes) else str(value).encode()
            mac.update(len(data).to_bytes(4, "big") + data)
        return mac.digest()

    def is_ours(self, kind: str, values: Iterable[object], mac: bytes) -> bool:
        """Whether a row has its MAC. One that has not is counted, and told once for each kind."""
        expected = self.sign(kind, values)
        if compare_digest(expected, mac):
            return True
        if len(self._forged) < _MAX_COUNTED:
            self._forged.add(expected)
        self._warnings.warn(
            kind,
            "the shared database has a row (%s) that no node of this key wrote: such rows are "
            "ignored, and counted in `spamguard shared status`",
            kind,
        )
        return False

    @property
    def forged(self) -> int:
        """How many rows were ignored so far, up to 10,000."""
        return len(self._forged)

    def alarms(self) -> Iterator[str]:
        """What an operator must look at."""
        if self._forged:
            yield (
                f"rows that no node of this key wrote, and that are ignored: {self.forged:,}; "
                "somebody else can write to the database"
            )
