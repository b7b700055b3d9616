"""Acting with somebody else's rights for a moment, where root looks after others: who owns a directory may put anything into it."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
    return Owner(found.st_uid, found.st_gid, _groups(found.st_uid, found.st_gid))


def owner_from(account: pwd.struct_passwd) -> Owner:
    """With the groups that the account is in."""
    return Owner(account.pw_uid, account.pw_gid, _groups(account.pw_uid, account.pw_gid))


def _groups(user: int, group: int) -> tuple[int, ...]:
    if os.geteuid() != 0:  # nobody else can take them on, and who is in which group may be asked of another machine
        return ()
    try:
        return tuple(os.getgrouplist(pwd.getpwuid(user).pw_name, group))
    except KeyError:  # it has no name here
        return ()


@contextmanager
def as_owner_of(directory: Path) -> Iterator[None]:
    """With the rights of its owner; but where the owner cannot get there only root can put anything into it. OSError: as `owner_of`."""
    owner = owner_of(directory)
    with owner.acting():
        gets_there = os.access(directory, os.X_OK, effective_ids=True)
    with owner.acting() if gets_there else nullcontext():
        yield
