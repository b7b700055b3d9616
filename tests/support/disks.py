"""File systems mounted for a test: bind mounts, and small ones that are soon full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_disks = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a disk")


@contextmanager
def mounted(disk: Path, place: Path) -> Iterator[None]:
    """One directory over another, as if it were a disk; the test skips where only root could do
    that.
    """
    if (
        os.getuid()
        or subprocess.run(
            ["mount", "--bind", disk, place], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("cannot mount anything here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of so many bytes ("64k") mounted at a new directory; the test skips where only root
    could make one.
    """
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot make a small disk here")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
