"""What several layers need of the file system: files that nobody else may read, and names that are on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def create_private(path: Path) -> BinaryIO:
    """A new file, mode 0600, to be written. FileExistsError when there is one; OSError when it cannot be made."""
    return open(path, "xb", opener=_private)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
