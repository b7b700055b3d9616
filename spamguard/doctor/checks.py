"""Looking at what teaching by moving mail rests on: the state directory, the kernel's file events, the watcher, Dovecot, the next hops.

Only looks: must never change or create anything.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import stat
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from spamguard import secret
from spamguard.doctor.step import Step, failed, ok, skipped
from spamguard.errors import SpamguardError
from spamguard.folders import doveconf, notes
from spamguard.folders.inotify import Inotify
from spamguard.folders.opener import LocalMailboxes, Pattern
from spamguard.hostname import hostname
from spamguard.metrics import readiness
from spamguard.settings import Settings

_LIMIT = Path("/proc/sys/fs/inotify/max_user_watches")
_WATCHES_OF_FOLDER = 3  # itself, new and cur
_SHOWN = 5  # troubles


def installation(state: Path) -> Iterator[Step]:
    """The state directory and the key in it."""
    try:
        found = state.stat()
        os.scandir(state).close()
    except OSError as error:
        remedy = "start the daemon once, which makes it, or name it with --state; run as the user of the daemon"
        yield failed("state directory", f"{state}: {error.strerror}", remedy)
        return
    told = f"{state}, of {_user(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & 0o022:
        yield failed("state directory", f"{told}: others may write into it", f"chmod go-w {state}")
    elif not os.access(state, os.W_OK):
        yield failed("state directory", f"{told}: we may not write into it", f"run as {_user(found.st_uid)}")
    else:
        yield ok("state directory", told)
    begun = (state / "key").exists() or (state / "ledger.sqlite").exists()
    yield _key(state / "key") if begun else skipped("key", "there is none yet: the daemon makes it, or the first lesson")


def _key(path: Path) -> Step:
    try:
        key = secret.load(path, create=False)
        mode = path.stat().st_mode
    except SpamguardError as error:
        return failed("key", str(error), "restore it from a backup")
    if mode & 0o077:
        return failed("key", f"{path}: others may read it (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
    return ok("key", secret.fingerprint(key))


def watching(state: Path) -> Iterator[Step]:
    """The watcher of the daemon, as far as it has left notes."""
    noted, now = notes.read(state), time.time()
    if noted is None:
        yield skipped("watcher", "none has run with this state directory")
        return
    seen = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(noted.seen))
    if noted.alive(now):
        yield ok("watcher", f"last seen {seen}, watches {noted.mailboxes:,} mailbox{'' if noted.mailboxes == 1 else 'es'}")
    else:
        yield failed("watcher", f"last seen {seen}", "start the daemon, with `watch` in its configuration")
    for trouble in noted.troubles[-_SHOWN:]:
        yield failed("watcher", trouble.text, "see the log of the daemon")


def file_events(settings: Settings | None) -> Step:
    """The kernel's, and whether it has enough of them for all folders that are to be watched."""
    try:
        Inotify().close()
        limit = int(_LIMIT.read_text())
    except (OSError, ValueError) as error:
        told = f"there are none ({error}): folders are polled, moves teach some seconds later"
        return failed("file events", told, "raise sysctl fs.inotify.max_user_instances, if this system has inotify")
    needed = _folders(settings) * _WATCHES_OF_FOLDER if settings else 0
    if needed > limit:
        return failed("file events", f"{needed:,} needed, {limit:,} allowed", f"sysctl fs.inotify.max_user_watches={2 * needed}")
    return ok("file events", f"{limit:,} directories allowed" + (f", {needed:,} needed" if settings else ""))


def _folders(settings: Settings) -> int:
    if not settings.watch:
        return 0
    count = 0
    with closing(LocalMailboxes([Pattern(watch.maildir, watch.user) for watch in settings.watch], notify=False)) as mailboxes:
        for mailbox in mailboxes.users():
            with suppress(OSError):
                count += len(mailboxes.folders(mailbox))
    return count


def dovecot(settings: Settings | None) -> Step:
    """How Dovecot keeps mail, where there is one. Without mailboxes to watch it may do so as it likes."""
    found = doveconf.read()
    if not found.store:
        return skipped("Dovecot", "there is none here, or it does not say how it keeps mail")
    if found.notes and settings is not None and settings.watch:
        return failed("Dovecot", "; ".join(found.notes), "see Dovecot's configuration, `doveconf -n`")
    if found.notes:
        return skipped("Dovecot", "; ".join(found.notes))
    return ok("Dovecot", f"keeps mail as {found.store}, special uses of {len(found.special)} folders known")


def next_hops(settings: Settings) -> Iterator[Step]:
    """Whether each welcomes us, or can be written. Nothing is sent but a greeting."""
    hops = [listener.next_hop for listener in settings.listeners]
    for endpoint, trouble in asyncio.run(readiness.troubles(hops, hostname())).items():
        if trouble:
            yield failed("next hop", f"{endpoint}: {trouble}", "start it, or correct `next_hop` in the configuration")
        else:
            yield ok("next hop", str(endpoint))


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
