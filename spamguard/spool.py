"""A message on its way through: in memory while it is small, else in an unlinked file.

A `Spool` is written once and then read any number of times. Must never leave a file behind,
whatever happens to the process, never hold a large message in memory, and never give out a message
that is not whole: once writing has failed, or after `close`, every use is an OSError.

It is written by hand because `tempfile.SpooledTemporaryFile` has one position for all its readers.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spamguard.storage import open_unnamed

MAX_MEMORY_BYTES = 512 << 10
"""A larger message goes to a file."""
_CHUNK_BYTES = 256 << 10


class Spool:
    """The bytes of one message. size: how many were written.

    Parameters
    ----------
    directory
        Where the file is made, if one is needed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # bytes once it is read, so that chunks are no copies
        self._memory: bytearray | bytes = bytearray()
        self._file: int | None = None
        self._failure: OSError | None = None
        self.size = 0

    @classmethod
    def open_file(cls, path: Path) -> Spool:
        """The message in a file, only to be read. OSError: it cannot be, or is a symbolic link."""
        spool = cls(path.parent)
        spool._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        spool.size = os.fstat(spool._file).st_size
        return spool

    def write(self, data: bytes) -> None:
        """Append all of it, or fail for good, as on a full disk."""
        self._raise_failure()
        try:
            self._append(data)
        except OSError as error:
            self._release(error)
            raise
        self.size += len(data)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            if self.size + len(data) <= MAX_MEMORY_BYTES:
                if not isinstance(self._memory, bytearray):
                    self._memory = bytearray(self._memory)
                self._memory += data
                return
            self._file = _open_unlinked(self._directory)
            _write_all(self._file, self._memory)
            self._memory = bytearray()
        _write_all(self._file, data)

    def read_start(self, length: int) -> bytes:
        """The first bytes."""
        self._raise_failure()
        if self._file is None:
            return self._freeze_memory()[:length]
        return os.pread(self._file, length, 0)

    def read(self) -> bytes:
        """All bytes, in memory."""
        return b"".join(self.chunks())

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on, a chunk at a time."""
        self._raise_failure()
        while start < self.size:
            chunk = self._read_chunk(start)
            yield chunk
            start += len(chunk)

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

    @property
    def descriptor(self) -> int | None:
        """The file; None while the message is in memory."""
        return self._file

    def close(self) -> None:
        """Give memory and file back; idempotent."""
        self._release(OSError(errno.EBADF, "the message is no longer kept"))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror)

    def _release(self, failure: OSError) -> None:
        self._failure = self._failure or failure
        self._memory = bytearray()
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True, slots=True)
class SpoolView:
    """A message as it goes out: `head` in the place of the first `skip` bytes of the spool.

    Line ends are CRLF; lines are not dot-stuffed.
    """

    head: bytes
    spool: Spool
    skip: int

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.head) + self.spool.size - self.skip

    def chunks(self) -> Iterator[bytes]:
        """All bytes, a chunk at a time."""
        yield self.head
        yield from self.spool.chunks(self.skip)


def _open_unlinked(directory: Path) -> int:
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
