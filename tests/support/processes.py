"""Processes as /proc shows them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(process: int, module: str = "") -> list[int]:
    """Ids of the running children of a process. module: only those that run it."""
    with suppress(FileNotFoundError):
        file = Path(f"/proc/{process}/task/{process}/children")
        found, before = file.read_text(), ""
        while found != before:  # while one of them ends, others may be left out (proc(5))
            found, before = file.read_text(), found
        return [number for number in map(int, found.split()) if module in command(number)]
    return []


def descendants(process: int) -> list[int]:
    """Ids of its running children, of theirs, and so on."""
    found = children(process)
    return [*found, *(number for child in found for number in descendants(child))]


def command(process: int) -> str:
    """The command line of a process; empty when it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def alive(process: int) -> bool:
    """Whether the process exists and is no zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):  # gone before, or while it was being read
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def own_descriptors() -> int:
    """The number of files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def has_open(process: int, file: Path) -> bool:
    """Whether it has this file open."""
    with suppress(FileNotFoundError):  # it, or one of its descriptors, has gone
        return any(path.readlink() == file for path in Path(f"/proc/{process}/fd").iterdir())
    return False
