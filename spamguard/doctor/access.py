"""Whether the mailboxes in which moves should teach can be read by whoever is to read them.

Only looks: opens nothing of a message but a descriptor, as the daemon's user, and closes it.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from spamguard.doctor.step import Step, failed, ok
from spamguard.errors import SpamguardError
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.reach import mailboxes, patterns
from spamguard.owner import owner_from
from spamguard.settings import Settings

_MOST = 1000  # mailboxes looked at
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
REMEDY = "let spamguard-watch.service open them: watch_socket: /run/spamguard-watch/mailboxes.sock"


class Access(NamedTuple):
    """Paths of mailboxes: those looked at, and those of them that cannot be read."""

    seen: Sequence[str]
    closed: Sequence[str]

    def told(self, name: str) -> str:
        """In words; name: of the user who cannot."""
        return f"{len(self.closed):,} of {len(self.seen):,} mailboxes cannot be read by {name}, such as {self.closed[0]}"


def of_user(settings: Settings, account: pwd.struct_passwd) -> Access | None:
    """How the daemon fares with its user's rights when it opens mailboxes itself; None: we are neither that user nor root, to tell."""
    if os.geteuid() not in (0, account.pw_uid):
        return None
    with closing(LocalMailboxes(patterns(settings.watch), notify=False)) as found:
        seen = [one.path for one in islice(found.users(), _MOST)]
    with owner_from(account).acting():
        return Access(seen, [path for path in seen if not _readable(path)])


def _readable(path: str) -> bool:
    """Whether its INBOX, as much as there is of it, can be listed, and one message in it be opened."""
    try:
        for part in ("new", "cur"):
            with os.scandir(f"{path}/{part}") as entries:
                for one in islice(entries, 1):
                    os.close(os.open(one.path, _FILE))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def step(settings: Settings, account: pwd.struct_passwd) -> Step:
    """As a line of the doctor's."""
    if settings.watch_socket is not None:
        return _of_socket(settings)
    found = of_user(settings, account)
    if found is not None and found.closed:
        return failed("mailboxes", found.told(account.pw_name), REMEDY)
    return ok("mailboxes", "to be read by the daemon itself" if found is None else f"{len(found.seen):,}, {account.pw_name} can read them")


def _of_socket(settings: Settings) -> Step:
    try:
        with closing(mailboxes(settings)) as found:
            count = len(list(found.users()))
    except (SpamguardError, OSError) as error:
        return failed("mailboxes", str(error), "systemctl status spamguard-watch")
    return ok("mailboxes", f"{count:,}, opened at {settings.watch_socket}")
