"""A message on its way through us, in memory that is not the process's own: of that, several large
ones at once take no more than a piece of each.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from hashlib import blake2b

PIECE_BYTES = 1 << 20
_KEPT_BYTES = 64 << 20  # in `RecentBodies`
_LEAST_BYTES = 512 << 10  # what a small one counts for, as each is a file that is open
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Body:
    """A message. Its memory is given back when nobody has it any more."""

    def __init__(self) -> None:
        self._file = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._hash, self.size = blake2b(digest_size=16), 0

    def __del__(self) -> None:
        os.close(self._file)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def write(self, piece: bytes) -> None:
        self.size += os.write(self._file, piece)
        self._hash.update(piece)

    def pieces(self) -> Iterator[bytes]:
        for start in range(0, self.size, PIECE_BYTES):
            yield os.pread(self._file, PIECE_BYTES, start)

    def seal(self) -> int:
        """A descriptor, at its start, of what nobody can change any more."""
        fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        os.utime(self._file, (0, 0))  # it is whole, whoever asks by its age
        os.lseek(self._file, 0, os.SEEK_SET)
        return os.dup(self._file)


class RecentBodies:
    """What was fetched just now, for who wants it again: the newest, of all accounts together."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], Body] = {}
        self._lock = threading.Lock()

    def keep(self, account: str, name: str, body: Body) -> None:
        """Keep a message of this name, so long as there is room."""
        with self._lock:
            self._bodies[account, name] = body
            while sum(max(each.size, _LEAST_BYTES) for each in self._bodies.values()) > _KEPT_BYTES:
                del self._bodies[next(iter(self._bodies))]

    def take(self, account: str, name: str) -> Body | None:
        """A message that is kept, and is not any more from now on."""
        with self._lock:
            return self._bodies.pop((account, name), None)
