"""A message while it passes through: in memory while it is small, in an unlinked file of the state
directory when it is not.

Must never leave a file behind, whatever happens to the process, never hold a large message in
memory, and never give out a message that is not whole: once writing has failed, or after `close`,
every use is an OSError.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spamguard.storage import open_unnamed

MAX_MEMORY_BYTES = 512 << 10  # bytes; a larger message goes to a file
_CHUNK_BYTES = 256 << 10


class Spool:
    """Bytes that are written once, then read any number of times. OSError from `write` when the
    disk is full.

    size: bytes that were written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory: bytearray | bytes = (
            bytearray()
        )  # bytes once it is read: giving out pieces of them costs no second copy
        self._file: int | None = None
        self._failure: OSError | None = None
        self.size = 0

    @classmethod
    def open_file(cls, path: Path) -> Spool:
        """The message in a file, to be read only; OSError when it cannot be, or is a symbolic link."""
        spool = cls(path.parent)
        spool._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        spool.size = os.fstat(spool._file).st_size
        return spool

    def write(self, data: bytes) -> None:
        """Append all of it, or fail for good."""
        self._raise_failure()
        try:
            self._append(data)
        except OSError as error:
            self._release(error)
            raise
        self.size += len(data)

    def read_start(self, length: int) -> bytes:
        """The first bytes."""
        self._raise_failure()
        return (
            self._freeze_memory()[:length]
            if self._file is None
            else os.pread(self._file, length, 0)
        )

    def read(self) -> bytes:
        """All of it, in memory."""
        return b"".join(self.chunks())

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, some at a time."""
        self._raise_failure()
        while start < self.size:
            chunk = self._read_chunk(start)
            yield chunk
            start += len(chunk)

    @property
    def descriptor(self) -> int | None:
        """The file it lies in, or None when it is in memory."""
        return self._file

    def close(self) -> None:
        """Give memory and file back; idempotent."""
        self._release(OSError(errno.EBADF, "the message is no longer kept"))

    def _append(self, data: bytes) -> None:
        if self._file is None and self.size + len(data) <= MAX_MEMORY_BYTES:
            self._memory = (
                self._memory if isinstance(self._memory, bytearray) else bytearray(self._memory)
            )
            self._memory += data
            return
        if self._file is None:
            self._file = _unnamed_file(self._directory)
            _write_all(self._file, self._memory)
            self._memory = bytearray()
        _write_all(self._file, data)

    def _read_chunk(self, start: int) -> bytes:
        self._raise_failure()
        if self._file is None:
            return self._freeze_memory()[start:]
        chunk = os.pread(self._file, min(_CHUNK_BYTES, self.size - start), start)
        if not chunk:
            raise OSError(errno.EIO, "the message has become shorter")
        return chunk

    def _freeze_memory(self) -> bytes:
        self._memory = bytes(self._memory)
        return self._memory

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)

    def _release(self, why: OSError) -> None:
        self._failure = self._failure or why
        self._memory = bytearray()
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True, slots=True)
class SpoolView:
    """A message as it goes out: `head` in place of the first `skip` bytes of the spool. CRLF line
    ends, not dot-stuffed.
    """

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


def _unnamed_file(directory: Path) -> int:
    unnamed = open_unnamed(directory)
    if unnamed is not None:
        return unnamed
    file, name = tempfile.mkstemp(dir=directory)
    try:
        Path(name).unlink()
    except OSError:
        os.close(file)
        raise
    return file


def _write_all(file: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
