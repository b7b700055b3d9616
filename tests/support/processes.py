"""Processes as /proc tells of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(process: int, module: str = "") -> list[int]:
    """Numbers of the processes that this one has started and that are still there; module: of those that run it."""
    with suppress(FileNotFoundError):
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [number for number in map(int, found) if module in command(number)]
    return []


def command(process: int) -> str:
    """With what it was started; empty when it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def has_open(process: int, file: Path) -> bool:
    """Whether it has this file open."""
    with suppress(FileNotFoundError):  # it, or one of its descriptors, has gone
        return any(one.readlink() == file for one in Path(f"/proc/{process}/fd").iterdir())
    return False
