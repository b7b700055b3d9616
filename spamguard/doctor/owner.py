"""Acting with somebody else's rights for a moment, where root looks after others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose rights to act with; of no use unless we are root. groups: further ones."""

    user: int
    group: int
    groups: tuple[int, ...] = ()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """With these rights, in this process."""
        if os.geteuid() != 0 or self.user == 0:
            yield
            return
        groups = os.getgroups()
        group = os.getegid()
        os.setgroups([self.group, *self.groups])
        os.setegid(self.group)
        os.seteuid(self.user)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(group)
            os.setgroups(groups)


def owner_of(path: Path) -> Owner:
    """OSError: there is no such directory."""
    found = path.stat()
    return Owner(found.st_uid, found.st_gid)
