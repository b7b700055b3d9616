"""Where disks have been mounted, which no event of a directory tells: the kernel's own list of them (proc(5)), and its word that it is
another one now.
"""

from __future__ import annotations

import os
import re

_LIST = "/proc/self/mountinfo"
_AT_ONCE = 1 << 16  # bytes
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # blanks and the like


class Mounts:
    """One descriptor. OSError: this system has no such list."""

    def __init__(self) -> None:
        self._descriptor = os.open(_LIST, os.O_RDONLY | os.O_CLOEXEC)
        self._known = self._all()

    def fileno(self) -> int:
        """To wait on, for POLLPRI, which tells of each change once."""
        return self._descriptor

    def new(self) -> set[str]:
        """Where something was mounted since this was last asked for; paths without any link."""
        before, self._known = self._known, self._all()
        return {place for _, place in self._known - before}

    def close(self) -> None:
        """Wait for nothing any more."""
        os.close(self._descriptor)

    def _all(self) -> set[tuple[bytes, str]]:
        """Number and place of each: the same place may be mounted over again."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        text = b"".join(iter(lambda: os.read(self._descriptor, _AT_ONCE), b""))
        # of all that ends a line elsewhere the kernel escapes only this: whoever mounts, as users may by FUSE, chooses the rest
        fields = (line.split(b" ", 5) for line in text.split(b"\n") if line)
        return {(number, os.fsdecode(_ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), place))) for number, _, _, _, place, _ in fields}
