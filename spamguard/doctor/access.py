"""Whether the mailboxes in which moves should teach can be read by whoever is to read them.

Only looks: opens nothing of a message but a descriptor, as the daemon's user, and closes it.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from spamguard.doctor.step import Step, failed, ok, skipped
from spamguard.errors import SpamguardError
from spamguard.folders.contract import Mailbox, Mailboxes
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.reach import is_maildir, mailboxes_of
from spamguard.folders.rules import idle
from spamguard.owner import owner_from
from spamguard.settings import Settings

_SECONDS = 10.0  # for a Maildir among them: homes may have thousands of directories, and somebody waits
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
NAME_MAILDIRS = "name the Maildirs themselves, such as /home/*/Maildir; mbox, mdbox and sdbox cannot be watched"
REMEDY = "let spamguard-watch.service open them: watch_socket: /run/spamguard-watch/mailboxes.sock"


class Access(NamedTuple):
    """Paths of mailboxes: those looked at, and those of them that cannot be read. wrong: as of `no_maildirs`. idle: as of `rules.idle`."""

    seen: Sequence[str]
    closed: Sequence[str]
    wrong: str = ""
    idle: Sequence[str] = ()

    def trouble(self, name: str) -> tuple[str, str] | None:
        """What is wrong, and what to do about it. name: of the user."""
        if self.closed:
            told = f"{len(self.closed):,} of {len(self.seen):,} mailboxes cannot be read by {name}, such as {self.closed[0]}"
            return f"{told}: moving mail there teaches nothing", REMEDY
        return (self.wrong, NAME_MAILDIRS) if self.wrong else None


def of_user(settings: Settings, account: pwd.struct_passwd) -> Access | None:
    """How the daemon fares with its user's rights when it opens mailboxes itself; None: we are neither that user nor root, to tell."""
    if os.geteuid() not in (0, account.pw_uid):
        return None
    with closing(LocalMailboxes(settings.watch, notify=False)) as found:
        there = found.users()
        wrong = no_maildirs(found, there)
    seen = [one.path for one in there]
    with owner_from(account).acting():
        return Access(seen, [path for path in seen if not _readable(path)], wrong, idle(settings, there))


def no_maildirs(found: Mailboxes, seen: Sequence[Mailbox]) -> str:
    """In words, if none of these is a Maildir; empty: one is, or cannot be looked at, or there are none yet, or it takes too long."""
    until = time.monotonic() + _SECONDS
    if not seen or any(is_maildir(found, one, closed=True) or time.monotonic() > until for one in seen):
        return ""
    return f"no directory that `watch` names is a Maildir, with `cur` in it, such as {seen[0].path}: moving mail there teaches nothing"


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
    if found is None:
        return ok("mailboxes", "to be read by the daemon itself")
    if trouble := found.trouble(account.pw_name):
        return failed("mailboxes", *trouble)
    if not found.seen:
        return _none(settings)
    return ok("mailboxes", f"{len(found.seen):,}, {account.pw_name} can read them")


def _none(settings: Settings) -> Step:
    """They may come yet, with the first mail."""
    return skipped("mailboxes", f"there are none yet: nothing fits {', '.join(watch.maildir for watch in settings.watch)}")


def _of_socket(settings: Settings) -> Step:
    try:
        with closing(mailboxes_of(settings.watch, settings.watch_socket)) as found:
            seen = list(found.users())
            wrong = no_maildirs(found, seen)
    except (SpamguardError, OSError) as error:
        return failed("mailboxes", str(error), "systemctl status spamguard-watch")
    if wrong:
        return failed("mailboxes", wrong, NAME_MAILDIRS)
    return ok("mailboxes", f"{len(seen):,}, opened at {settings.watch_socket}") if seen else _none(settings)
