"""Maildirs for tests, and what mail servers and users do in them."""

from __future__ import annotations

import errno
import itertools
import os
import re
from pathlib import Path

import pytest

_numbers = itertools.count(1)


def maildir(path: Path, *folders: str) -> Path:
    """Make a Maildir with folders, named by their directories."""
    for folder in ("", *folders):
        for part in ("new", "cur", "tmp"):
            (path / folder / part).mkdir(parents=True, exist_ok=True)
    return path


def deliver(folder: Path, raw: bytes, part: str = "new", flags: str = "") -> Path:
    """Deliver a message as Dovecot does, with its size in the name."""
    sizes = f"S={len(raw)},W={len(raw) + raw.count(10)}"
    name = f"{1_700_000_000 + next(_numbers)}.M1P{os.getpid()}.host,{sizes}"
    path = folder / part / (f"{name}:2,{flags}" if part == "cur" else name)
    temporary = folder / "tmp" / name
    temporary.write_bytes(raw)
    temporary.rename(path)
    return path


def move(message: Path, folder: Path) -> Path:
    """Move a message as Dovecot does: the base name stays, and unseen messages come into `new`."""
    return message.rename(folder / message.parent.name / message.name)


def came(message: Path) -> tuple[int, int]:
    """When a mail server delivered a message, by its name: seconds and microseconds, the latter
    without leading zeros.
    """
    found = re.match(r"(\d+)\.(?:[^.]*M(\d+))?", message.name)
    assert found is not None, message
    return int(found[1]), int(found[2] or 0)


def forbid(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let no user open a directory, not even root."""
    real, place = os.open, directory.stat()

    def opened(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = real(path, flags, mode, dir_fd=dir_fd)
        if os.path.samestat(os.fstat(descriptor), place):
            os.close(descriptor)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return descriptor

    monkeypatch.setattr(os, "open", opened)
