"""A message on its way through us, in memory that is not the process's own: of that, several large
ones at once take no more than a piece of each.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from hashlib import blake2b

PIECE_BYTES = 1 << 20
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
