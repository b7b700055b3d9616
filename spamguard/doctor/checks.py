"""Looking at what teaching by moving mail rests on: the state directory, the kernel's file events, the watcher, Dovecot, the next hops.

Only looks: must never change or create anything.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from spamguard import renewal, secret
from spamguard.doctor.step import Step, failed, ok, skipped
from spamguard.errors import SpamguardError
from spamguard.files import KEY, LEDGER
from spamguard.folders import doveconf, notes
from spamguard.folders.inotify import Inotify
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.reach import mailboxes_of
from spamguard.hostname import hostname
from spamguard.ledger import SqliteLedger
from spamguard.metrics import readiness
from spamguard.model import directory
from spamguard.records import EXTRACTOR
from spamguard.settings import Settings
from spamguard.times import moment

_LIMIT = Path("/proc/sys/fs/inotify/max_user_watches")
_LEAST_ROOM = 64 << 20  # bytes: what one message may take, before anything is learnt
_CLOCK_SECONDS = 60.0  # that clocks of machines which share a disk may be apart
_SHOWN = 5  # troubles, and doubts


def installation(state: Path) -> Iterator[Step]:
    """The state directory and the key in it; whether there is room, and whether the clock goes right."""
    try:
        found, files = state.stat(), _files(state)
    except OSError as error:
        remedy = "name it with --state, or start the daemon once, which makes it"
        if isinstance(error, PermissionError):
            remedy = "run this as root, or as the user of the daemon"
        yield failed("state directory", f"{state}: {error.strerror}", remedy)
        return
    yield _directory(state, found, files)
    begun = (state / KEY).exists() or (state / LEDGER).exists()
    yield _key(state / KEY) if begun else skipped("key", "there is none yet: the daemon makes it, or the first lesson")
    yield _room(state)
    yield _clock(max(((one.st_mtime, name) for name, one in files.items()), default=(0.0, "")), time.time())


def _files(state: Path) -> dict[str, os.stat_result]:
    """All that lies there, by name. A daemon makes and removes some all the time."""
    found = {}
    with os.scandir(state) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def _directory(state: Path, found: os.stat_result, files: Mapping[str, os.stat_result]) -> Step:
    """Who may write into it, and read what lies there: files, for sockets may be meant for everybody."""
    told = f"{state}, of {_user(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & 0o022:
        return failed("state directory", f"{told}: others may write into it", f"chmod go-w {state}")
    if os.statvfs(state).f_flag & os.ST_RDONLY:
        return failed("state directory", f"{told}: its file system is read-only", "mount it so that it can be written, or name another")
    if not os.access(state, os.W_OK):
        ours = found.st_uid == os.geteuid()
        return failed(
            "state directory", f"{told}: we may not write into it", f"chmod u+w {state}" if ours else f"run as {_user(found.st_uid)}"
        )
    if not found.st_mode & 0o005:
        return ok("state directory", told)
    if readable := sorted(name for name, one in files.items() if stat.S_ISREG(one.st_mode) and one.st_mode & 0o004):
        closing_them = shlex.join(["chmod", "o=", *(f"{state}/{name}" for name in readable)])
        return failed("state directory", f"{told}: others may read {', '.join(readable)}", closing_them)
    return ok("state directory", f"{told}: others may see what its files are called, but read none of them")


def is_closed(state: Path) -> bool:
    """Whether we have no right to look into the state directory."""
    try:
        os.scandir(state).close()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _room(state: Path) -> Step:
    """Settling writes the tables anew beside the old ones."""
    found = os.statvfs(state)
    free, needed = found.f_bavail * found.f_frsize, max(directory.bytes_of_tables(state), _LEAST_ROOM)
    told = f"{free / 1e6:,.0f} MB are free"
    if found.f_files and not found.f_favail:
        return failed("disk", f"{told}, but no file can be made (inodes)", "remove files from that disk")
    if free < needed:
        return failed("disk", f"{told}, {needed / 1e6:,.0f} MB are needed to make the tables anew", "make room on that disk")
    return ok("disk", told)


def _clock(newest: tuple[float, str], now: float) -> Step:
    """newest: of the files in the state directory, when it was written and what it is called."""
    written, name = newest
    if written > now + _CLOCK_SECONDS:
        told = f"it is {moment(now, exact=True)}, and {name} was written at {moment(written, exact=True)}"
        return failed("clock", told, "set the clock, as with `timedatectl set-ntp true`")
    return ok("clock", moment(now, exact=True))


def _key(path: Path) -> Step:
    try:
        key = secret.load(path, create=False)
        mode = path.stat().st_mode
    except SpamguardError as error:
        return failed("key", str(error), "")
    if mode & 0o077:
        return failed("key", f"{path}: others may read it (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {path}")
    return ok("key", secret.fingerprint(key))


def left_behind(ledger: SqliteLedger) -> Iterator[Step]:
    """Lessons of no use since an upgrade, if any. A few may stay so for ever, as their mail is gone: that is no failure."""
    number = renewal.left_behind(ledger)
    if number > sum(ledger.lesson_counts(EXTRACTOR).values()):
        yield failed("lessons", renewal.told(number), renewal.REMEDY)
    elif number:
        yield skipped("lessons", f"{renewal.told(number)}; {renewal.REMEDY}")


def watching(state: Path, *, wanted: bool) -> Iterator[Step]:
    """The watcher of the daemon, as far as it has left notes. wanted: the configuration names mailboxes."""
    noted, now = notes.read(state), time.time()
    remedy = "start the daemon, with `watch` in its configuration"
    if noted is None:
        told = "none has run with this state directory"
        yield failed("watcher", told, remedy) if wanted else skipped("watcher", told)
        return
    seen = f"last seen {moment(noted.seen, exact=True)}"
    if noted.alive(now):
        yield ok("watcher", f"{seen}, watches {noted.mailboxes:,} mailbox{'' if noted.mailboxes == 1 else 'es'}")
    else:
        yield failed("watcher", seen, remedy)
    yield from [failed("watcher", one.text, "see the log of the daemon") for one in noted.troubles if not one.doubt][-_SHOWN:]
    yield from [skipped("watcher", one.text) for one in noted.troubles if one.doubt][-_SHOWN:]


def file_events(settings: Settings | None) -> Step:
    """The kernel's, and whether it has enough of them for all folders that are to be watched."""
    try:
        Inotify().close()
        limit = int(_LIMIT.read_text())
    except (OSError, ValueError) as error:
        told = f"there are none ({error}): folders are polled, moves teach some seconds later"
        return failed("file events", told, "raise sysctl fs.inotify.max_user_instances, if this system has inotify")
    needed = _to_be_watched(settings) if settings else 0
    if needed > limit:
        return failed("file events", f"{needed:,} needed, {limit:,} allowed", f"sysctl fs.inotify.max_user_watches={2 * needed}")
    return ok("file events", f"{limit:,} directories allowed" + (f", {needed:,} needed" if settings else ""))


def _to_be_watched(settings: Settings) -> int:
    """Directories: of folders, and on the way to them."""
    with closing(LocalMailboxes(settings.watch, notify=False)) as mailboxes:
        for mailbox in mailboxes.users():
            with suppress(OSError):
                mailboxes.folders(mailbox)
        return mailboxes.watched()


def dovecot(settings: Settings | None) -> Step:
    """How Dovecot keeps mail, where there is one. Without mailboxes to watch it may do so as it likes."""
    found = doveconf.read()
    if not found.store:
        return skipped("Dovecot", "there is none here, or it does not say how it keeps mail")
    if found.notes and settings is not None and settings.watch:
        with closing(mailboxes_of(settings.watch, settings.watch_socket, notify=False)) as mailboxes:
            hindrances = doveconf.hindrances(found, settings, mailboxes)
        if not hindrances:
            return skipped("Dovecot", f"keeps its mail as {found.store}, so the Maildirs that are watched are not its own")
        return failed("Dovecot", "; ".join(hindrances), "see Dovecot's configuration, `doveconf -n`")
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
