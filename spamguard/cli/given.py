"""A file given to a command that looks at it twice. Standard input and pipes are kept in a temporary file meanwhile."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from spamguard.errors import SourceError
from spamguard.files import naming


@contextmanager
def given(name: str) -> Iterator[BinaryIO]:
    """The file; what cannot be read twice is kept in a temporary file meanwhile."""
    with nullcontext(sys.stdin.buffer) if name == "-" else _opened(name) as stream:
        if name != "-" and stream.seekable():
            yield stream
        else:
            with _kept(stream) as copy:
                yield copy


def _opened(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise SourceError(f"{name}: cannot be read ({error.strerror}); check the path and its permissions") from error


@contextmanager
def _kept(stream: BinaryIO) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile() as copy:
        with naming(Path(tempfile.gettempdir())):
            shutil.copyfileobj(stream, copy)
            copy.flush()
        yield copy
