"""A message while it passes through: in memory while it is small, in an unlinked file of the state directory when it is not.

Must never leave a file behind, whatever happens to the process, and never hold a large message in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

IN_MEMORY = 512 << 10  # bytes; a larger message goes to a file
_CHUNK = 256 << 10


class Spool:
    """Bytes that are written once, then read any number of times. OSError from `write` when the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory = bytearray()
        self._file: int | None = None
        self.size = 0

    @classmethod
    def reading(cls, path: Path) -> Spool:
        """The message in a file, to be read only; OSError when it cannot be."""
        spool = cls(path.parent)
        spool._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        spool.size = os.fstat(spool._file).st_size
        return spool

    def write(self, data: bytes) -> None:
        """Append."""
        self.size += len(data)
        if self._file is None and self.size <= IN_MEMORY:
            self._memory += data
            return
        if self._file is None:
            self._file = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            _write_all(self._file, self._memory)
            self._memory = bytearray()
        _write_all(self._file, data)

    def head(self, length: int) -> bytes:
        """The first bytes."""
        return bytes(self._memory[:length]) if self._file is None else os.pread(self._file, length, 0)

    def read(self) -> bytes:
        """All of it, in memory."""
        return bytes(self._memory) if self._file is None else b"".join(self.chunks())

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, some at a time."""
        if self._file is None:
            yield bytes(self._memory[start:])
            return
        while chunk := os.pread(self._file, _CHUNK, start):
            yield chunk
            start += len(chunk)

    @property
    def descriptor(self) -> int | None:
        """The file it lies in, or None when it is in memory."""
        return self._file

    def close(self) -> None:
        """Give memory and file back; idempotent."""
        self._memory = bytearray()
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True, slots=True)
class Content:
    """A message as it goes out: `head` in place of the first `skip` bytes of the spool. CRLF line ends, not dot-stuffed."""

    head: bytes
    spool: Spool
    skip: int

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.head) + self.spool.size - self.skip

    def chunks(self) -> Iterator[bytes]:
        """All bytes, some at a time."""
        yield self.head
        yield from self.spool.chunks(self.skip)


def _write_all(file: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
