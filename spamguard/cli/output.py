"""Where `export` and `backup` write to: a file has its name only when it is complete, and nobody but its owner may read it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spamguard.errors import UsageError, remedy
from spamguard.files import draft_of, naming, sync_directory


def is_file(name: str) -> bool:
    """Whether it is, or will be, a regular file."""
    return name != "-" and (not Path(name).exists() or Path(name).is_file())


def directory_of(name: str) -> Path:
    """Where a file is to be made. UsageError: it cannot be."""
    found = Path(name).parent
    if not found.is_dir():
        raise UsageError(f"{found}: there is no such directory: make it, or name another file")
    try:
        tempfile.TemporaryFile(dir=found).close()
    except OSError as error:
        what_to_do = remedy(error, "give us the right to, or name another file")
        raise UsageError(f"{found}: no file can be made there ({error.strerror}): {what_to_do}") from error
    return found


@contextmanager
def output(name: str, check: Callable[[BinaryIO], object] = lambda _: None) -> Iterator[BinaryIO]:
    """A stream to write to. check: is given what was written to a regular file, to be read, before the file has its name."""
    path = Path(name)
    if name == "-":
        yield sys.stdout.buffer
    elif not is_file(name):  # a pipe or a device is written as it is, never replaced
        with naming(path), path.open("wb") as stream:
            yield stream
    else:
        with draft_of(directory_of(name) / path.name) as draft:
            with naming(path), open(draft, "xb", opener=_private) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            with draft.open("rb") as written:
                check(written)
            draft.replace(path)
            sync_directory(draft.parent)


def _private(name: str, flags: int) -> int:
    """For us alone, unlike `files.create_private`: what root writes must not be given to whoever owns the directory."""
    return os.open(name, flags, 0o600)
