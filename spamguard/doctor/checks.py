"""What an examination consists of. Data only.

What other programs say of their configuration. Must never wait for long, and never fail: of what is
not there nothing is known.

Whether the mailboxes in which moves should teach can be read by whoever is to read them.

Only looks: opens nothing of a message but a descriptor, as the daemon's user, and closes it.

Whether what we tag as spam is filed into Junk, where Dovecot delivers: asks `doveconf`, and looks
into the scripts that it names.

What people's own rules do cannot be seen from here.

Whether Postfix, where there is one, knows of the doors that it is to hand mail to: asks `postconf`,
and nothing else.

`unnamed` is pure.

Looking at what teaching by moving mail rests on: the state directory, the kernel's file events, the
watcher, Dovecot, the next hops.

Only looks: must never change or create anything.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shlex
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from spamguard import keys
from spamguard.aio import hostname
from spamguard.config.options import Endpoint, Position, Protocol, Settings
from spamguard.engine import store
from spamguard.errors import SpamguardError
from spamguard.folders import doveconf, reextract, status_file
from spamguard.folders.broker import is_maildir, make_mailboxes
from spamguard.folders.changes import Inotify
from spamguard.folders.local import LocalMailboxes
from spamguard.folders.mailboxes import Mailbox, Mailboxes
from spamguard.folders.roles import find_unmatched_watches
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import local_time
from spamguard.records import EXTRACTOR
from spamguard.storage import KEY_FILE, LEDGER_FILE, account_owner
from spamguard.web import metrics


class StepOutcome(StrEnum):
    """Of one step."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Step(NamedTuple):
    """name: what was looked at. detail: what was found. remedy: what to do about it, when it
    failed.
    """

    name: str
    outcome: StepOutcome
    detail: str = ""
    remedy: str = ""


def ok(name: str, detail: str = "") -> Step:
    """It is as it should be."""
    return Step(name, StepOutcome.OK, detail)


def failed(name: str, detail: str, remedy: str) -> Step:
    """It is not."""
    return Step(name, StepOutcome.FAILED, detail, remedy)


def skipped(name: str, detail: str) -> Step:
    """It could not be looked at, or is not there to be looked at; which is no failure."""
    return Step(name, StepOutcome.SKIPPED, detail)


_COMMAND_TIMEOUT = 10.0


def run_command(*command: str) -> str:
    """Standard output of a program; empty where there is no such program, or where it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=_COMMAND_TIMEOUT,
        )  # noqa: RUF100, S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


_SEARCH_TIMEOUT = (
    10.0  # for a Maildir among them: homes may have thousands of directories, and somebody waits
)
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
MAILDIR_REMEDY = (
    "name the Maildirs themselves, such as /home/*/Maildir; mbox, mdbox and sdbox cannot be watched"
)
BROKER_REMEDY = (
    "let spamguard-watch.service open them: watch_socket: /run/spamguard-watch/mailboxes.sock"
)


class MailboxAccess(NamedTuple):
    """Paths of mailboxes: those looked at, and those of them that cannot be read. wrong: as of
    `no_maildirs`. idle: as of `rules.idle`.
    """

    paths: Sequence[str]
    unreadable: Sequence[str]
    no_maildir: str = ""
    unmatched: Sequence[str] = ()

    def find_trouble(self, name: str) -> tuple[str, str] | None:
        """What is wrong, and what to do about it. name: of the user."""
        if self.unreadable:
            told = f"{len(self.unreadable):,} of {len(self.paths):,} mailboxes cannot be read by {name}, such as {self.unreadable[0]}"
            return f"{told}: moving mail there teaches nothing", BROKER_REMEDY
        return (self.no_maildir, MAILDIR_REMEDY) if self.no_maildir else None


def check_access(settings: Settings, account: pwd.struct_passwd) -> MailboxAccess | None:
    """How the daemon fares with its user's rights when it opens mailboxes itself; None: we are
    neither that user nor root, to tell.
    """
    if os.geteuid() not in (0, account.pw_uid):
        return None
    with closing(LocalMailboxes(settings.watch, notify=False)) as found:
        there = found.find_mailboxes()
        wrong = explain_no_maildir(found, there)
    seen = [one.path for one in there]
    with account_owner(account).impersonate():
        return MailboxAccess(
            seen,
            [path for path in seen if not _is_readable(path)],
            wrong,
            find_unmatched_watches(settings, there),
        )


def explain_no_maildir(found: Mailboxes, seen: Sequence[Mailbox]) -> str:
    """In words, if none of these is a Maildir; empty: one is, or cannot be looked at, or there are
    none yet, or it takes too long.
    """
    until = time.monotonic() + _SEARCH_TIMEOUT
    if not seen or any(
        is_maildir(found, one, if_unreadable=True) or time.monotonic() > until for one in seen
    ):
        return ""
    return f"no directory that `watch` names is a Maildir, with `cur` in it, such as {seen[0].path}: moving mail there teaches nothing"


def _is_readable(path: str) -> bool:
    """Whether its INBOX, as much as there is of it, can be listed, and one message in it be opened."""
    try:
        for part in ("new", "cur"):
            with os.scandir(f"{path}/{part}") as entries:
                for one in islice(entries, 1):
                    os.close(os.open(one.path, _OPEN_FLAGS))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def check_mailboxes(settings: Settings, account: pwd.struct_passwd) -> Step:
    """As a line of the doctor's."""
    if settings.watch_socket is not None:
        return _check_broker(settings)
    found = check_access(settings, account)
    if found is None:
        return ok("mailboxes", "to be read by the daemon itself")
    if trouble := found.find_trouble(account.pw_name):
        return failed("mailboxes", *trouble)
    if not found.paths:
        return _no_mailboxes(settings)
    return ok("mailboxes", f"{len(found.paths):,}, {account.pw_name} can read them")


def _no_mailboxes(settings: Settings) -> Step:
    """They may come yet, with the first mail."""
    return skipped(
        "mailboxes",
        f"there are none yet: nothing fits {', '.join(watch.maildir for watch in settings.watch)}",
    )


def _check_broker(settings: Settings) -> Step:
    try:
        with closing(make_mailboxes(settings.watch, settings.watch_socket)) as found:
            seen = list(found.find_mailboxes())
            wrong = explain_no_maildir(found, seen)
    except (SpamguardError, OSError) as error:
        return failed("mailboxes", str(error), "systemctl status spamguard-watch")
    if wrong:
        return failed("mailboxes", wrong, MAILDIR_REMEDY)
    return (
        ok("mailboxes", f"{len(seen):,}, opened at {settings.watch_socket}")
        if seen
        else _no_mailboxes(settings)
    )


_SCRIPT_SETTING = re.compile(
    r"^\s*(?:sieve_(?:before|after|default)\w*|path)\s*=\s*(?:file:)?(/[^;\s]+)", re.MULTILINE
)
_SIEVE_SETTING = re.compile(r"^\s*(?:mail_plugins\s*=.*\bsieve\b|sieve\s*=\s*yes)", re.MULTILINE)
_MAX_SCRIPT_BYTES = 1 << 20  # bytes of a script that are looked at


def check_filing(settings: Settings, configuration: str = "") -> Iterator[Step]:
    """Nothing where no mailboxes are watched, where we file ourselves, or without Dovecot.
    configuration: its file, if not the usual.
    """
    if not settings.watch or any(
        one.next_hop.to.protocol is Protocol.MAILDIR for one in settings.listeners
    ):
        return
    told = run_command("doveconf", "-n", *(("-c", configuration) if configuration else ()))
    if not told:
        return
    if script := next(
        (path for path in map(Path, _SCRIPT_SETTING.findall(told)) if _files_spam(path)), None
    ):
        yield ok("filing", f"{script} files what is tagged as spam")
        return
    text = "what is tagged as spam stays in INBOX, unless people's own rules file it: Dovecot runs "
    text += (
        "no script for all that asks for X-Spam-Flag"
        if _SIEVE_SETTING.search(told)
        else "no Sieve where it delivers"
    )
    expected = any(watch.we_file for watch in settings.watch)
    remedy = "see config/dovecot, lmtp.conf and file-by-header.sieve"
    yield failed("filing", text, remedy) if expected else skipped("filing", f"{text} ({remedy})")


def _files_spam(path: Path) -> bool:
    """Whether it is a script, or a directory of such, that files by our header."""
    with suppress(OSError):
        scripts = sorted(path.glob("*.sieve")) if path.is_dir() else [path]
        return any(
            re.search(r"(?i)X-Spam-", text) and "fileinto" in text
            for text in map(_read_script, filter(Path.is_file, scripts))
        )
    return False


def _read_script(script: Path) -> str:
    with script.open(errors="replace") as file:
        return file.read(_MAX_SCRIPT_BYTES)


_TABLE_SETTING = re.compile(r"\w*transport_maps(?= = \S)|header_checks(?= = \S)|check_\w+_access")


def check_postfix(settings: Settings) -> Iterator[Step]:
    """Nothing, where Postfix would not need to know."""
    doors = _postfix_endpoints(settings)
    if not doors:
        return
    told = read_postconf()
    if not told:
        yield skipped("Postfix", "there is none here, or it does not say how it is configured")
    elif lacking := find_unnamed(told, doors):
        text = f"no parameter of it (postconf -n, -P) names {', '.join(map(str, lacking))}"
        if table := _TABLE_SETTING.search(told):
            yield skipped("Postfix", f"{text}; whether a table does ({table[0]}) is not looked at")
        else:
            yield failed(
                "Postfix",
                f"{text}, nor are there tables that might",
                "see config/postfix, then `postfix reload`",
            )
    else:
        yield ok("Postfix", f"names {', '.join(map(str, doors))}")


def _postfix_endpoints(settings: Settings) -> list[Endpoint]:
    """Doors that Postfix connects to: the world connects to others."""
    listeners = [
        one.listen for one in settings.listeners if one.position is not Position.STANDALONE
    ]
    return [
        *listeners,
        *(one.listen for one in settings.scanners if one.listen.protocol is Protocol.MILTER),
    ]


def read_postconf(configuration: str = "") -> str:
    """What `postconf` says of main.cf and master.cf, of the given directory or the usual one: lines
    of `parameter = value`.
    """
    where = ("-c", configuration) if configuration else ()
    return "".join(run_command("postconf", *where, option) for option in ("-n", "-P"))


def find_unnamed(told: str, doors: Sequence[Endpoint]) -> list[Endpoint]:
    """Those that no value names: a port by its number, a socket by its name, as where Postfix sees
    it depends on its chroot.
    """
    values = "\n".join(line.partition(" = ")[2] for line in told.splitlines())
    return [
        one
        for one in doors
        if not re.search(
            rf":{one.port}\b" if one.path is None else rf"/{re.escape(one.path.name)}\b", values
        )
    ]


_WATCH_LIMIT_FILE = Path("/proc/sys/fs/inotify/max_user_watches")
_MIN_FREE_BYTES = 64 << 20  # bytes: what one message may take, before anything is learnt
_MAX_CLOCK_SKEW = 60.0  # that clocks of machines which share a disk may be apart
_MAX_LINES = 5  # troubles, and doubts


def check_installation(state: Path) -> Iterator[Step]:
    """The state directory and the key in it; whether there is room, and whether the clock goes
    right.
    """
    try:
        found, files = state.stat(), _list_state_files(state)
    except OSError as error:
        remedy = "name it with --state, or start the daemon once, which makes it"
        if isinstance(error, PermissionError):
            remedy = "run this as root, or as the user of the daemon"
        yield failed("state directory", f"{state}: {error.strerror}", remedy)
        return
    yield _check_directory(state, found, files)
    begun = (state / KEY_FILE).exists() or (state / LEDGER_FILE).exists()
    yield (
        _check_key(state / KEY_FILE)
        if begun
        else skipped("key", "there is none yet: the daemon makes it, or the first lesson")
    )
    yield _check_room(state)
    yield _check_clock(
        max(((one.st_mtime, name) for name, one in files.items()), default=(0.0, "")), time.time()
    )


def _list_state_files(state: Path) -> dict[str, os.stat_result]:
    """All that lies there, by name. A daemon makes and removes some all the time."""
    found = {}
    with os.scandir(state) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat(follow_symlinks=False)
    return found


def _check_directory(
    state: Path, found: os.stat_result, files: Mapping[str, os.stat_result]
) -> Step:
    """Who may write into it, and read what lies there: files, for sockets may be meant for
    everybody.
    """
    told = f"{state}, of {_user_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}"
    if found.st_mode & 0o022:
        return failed("state directory", f"{told}: others may write into it", f"chmod go-w {state}")
    if os.statvfs(state).f_flag & os.ST_RDONLY:
        return failed(
            "state directory",
            f"{told}: its file system is read-only",
            "mount it so that it can be written, or name another",
        )
    if not os.access(state, os.W_OK):
        ours = found.st_uid == os.geteuid()
        return failed(
            "state directory",
            f"{told}: we may not write into it",
            f"chmod u+w {state}" if ours else f"run as {_user_name(found.st_uid)}",
        )
    if not found.st_mode & 0o005:
        return ok("state directory", told)
    if readable := sorted(
        name for name, one in files.items() if stat.S_ISREG(one.st_mode) and one.st_mode & 0o004
    ):
        closing_them = shlex.join(["chmod", "o=", *(f"{state}/{name}" for name in readable)])
        return failed(
            "state directory", f"{told}: others may read {', '.join(readable)}", closing_them
        )
    return ok(
        "state directory",
        f"{told}: others may see what its files are called, but read none of them",
    )


def is_unreadable(state: Path) -> bool:
    """Whether we have no right to look into the state directory."""
    try:
        os.scandir(state).close()
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _check_room(state: Path) -> Step:
    """Settling writes the tables anew beside the old ones."""
    found = os.statvfs(state)
    free, needed = (
        found.f_bavail * found.f_frsize,
        max(store.snapshot_bytes(state), _MIN_FREE_BYTES),
    )
    told = f"{free / 1e6:,.0f} MB are free"
    if found.f_files and not found.f_favail:
        return failed(
            "disk", f"{told}, but no file can be made (inodes)", "remove files from that disk"
        )
    if free < needed:
        return failed(
            "disk",
            f"{told}, {needed / 1e6:,.0f} MB are needed to make the tables anew",
            "make room on that disk",
        )
    return ok("disk", told)


def _check_clock(newest: tuple[float, str], now: float) -> Step:
    """newest: of the files in the state directory, when it was written and what it is called."""
    written, name = newest
    if written > now + _MAX_CLOCK_SKEW:
        told = f"it is {local_time(now, exact=True)}, and {name} was written at {local_time(written, exact=True)}"
        return failed("clock", told, "set the clock, as with `timedatectl set-ntp true`")
    return ok("clock", local_time(now, exact=True))


def _check_key(path: Path) -> Step:
    try:
        key = keys.load_key(path, create=False)
        mode = path.stat().st_mode
    except SpamguardError as error:
        return failed("key", str(error), "")
    if mode & 0o077:
        return failed(
            "key",
            f"{path}: others may read it (mode {stat.S_IMODE(mode):04o})",
            f"chmod 600 {path}",
        )
    return ok("key", keys.key_fingerprint(key))


def check_old_lessons(ledger: SqliteLedger) -> Iterator[Step]:
    """Lessons of no use since an upgrade, if any. A few may stay so for ever, as their mail is
    gone: that is no failure.
    """
    number = reextract.count_outdated(ledger)
    if number > sum(ledger.lesson_counts(EXTRACTOR).values()):
        yield failed("lessons", reextract.describe_outdated(number), reextract.REEXTRACT_REMEDY)
    elif number:
        yield skipped(
            "lessons", f"{reextract.describe_outdated(number)}; {reextract.REEXTRACT_REMEDY}"
        )


def check_watcher(state: Path, *, wanted: bool) -> Iterator[Step]:
    """The watcher of the daemon, as far as it has left notes. wanted: the configuration names
    mailboxes.
    """
    noted, now = status_file.read_watcher_status(state), time.time()
    remedy = "start the daemon, with `watch` in its configuration"
    if noted is None:
        told = "none has run with this state directory"
        yield failed("watcher", told, remedy) if wanted else skipped("watcher", told)
        return
    seen = f"last seen {local_time(noted.seen, exact=True)}"
    if noted.is_alive(now):
        yield ok(
            "watcher",
            f"{seen}, watches {noted.mailboxes:,} mailbox{'' if noted.mailboxes == 1 else 'es'}",
        )
    else:
        yield failed("watcher", seen, remedy)
    yield from [
        failed("watcher", one.text, "see the log of the daemon")
        for one in noted.troubles
        if not one.doubt
    ][-_MAX_LINES:]
    yield from [skipped("watcher", one.text) for one in noted.troubles if one.doubt][-_MAX_LINES:]


def check_file_events(settings: Settings | None) -> Step:
    """The kernel's, and whether it has enough of them for all folders that are to be watched."""
    try:
        Inotify().close()
        limit = int(_WATCH_LIMIT_FILE.read_text())
    except (OSError, ValueError) as error:
        told = f"there are none ({error}): folders are polled, moves teach some seconds later"
        return failed(
            "file events",
            told,
            "raise sysctl fs.inotify.max_user_instances, if this system has inotify",
        )
    needed = _count_directories(settings) if settings else 0
    if needed > limit:
        return failed(
            "file events",
            f"{needed:,} needed, {limit:,} allowed",
            f"sysctl fs.inotify.max_user_watches={2 * needed}",
        )
    return ok(
        "file events",
        f"{limit:,} directories allowed" + (f", {needed:,} needed" if settings else ""),
    )


def _count_directories(settings: Settings) -> int:
    """Directories: of folders, and on the way to them."""
    with closing(LocalMailboxes(settings.watch, notify=False)) as mailboxes:
        for mailbox in mailboxes.find_mailboxes():
            with suppress(OSError):
                mailboxes.list_folders(mailbox)
        return mailboxes.count_watched()


def check_dovecot(settings: Settings | None) -> Step:
    """How Dovecot keeps mail, where there is one. Without mailboxes to watch it may do so as it
    likes.
    """
    found = doveconf.read()
    if not found.mail_format:
        return skipped("Dovecot", "there is none here, or it does not say how it keeps mail")
    if found.obstacles and settings is not None and settings.watch:
        with closing(
            make_mailboxes(settings.watch, settings.watch_socket, notify=False)
        ) as mailboxes:
            hindrances = doveconf.find_obstacles(found, settings, mailboxes)
        if not hindrances:
            return skipped(
                "Dovecot",
                f"keeps its mail as {found.mail_format}, so the Maildirs that are watched are not its own",
            )
        return failed(
            "Dovecot", "; ".join(hindrances), "see Dovecot's configuration, `doveconf -n`"
        )
    if found.obstacles:
        return skipped("Dovecot", "; ".join(found.obstacles))
    return ok(
        "Dovecot",
        f"keeps mail as {found.mail_format}, special uses of {len(found.special_uses)} folders known",
    )


def check_next_hops(settings: Settings) -> Iterator[Step]:
    """Whether each welcomes us, or can be written. Nothing is sent but a greeting."""
    hops = [listener.next_hop for listener in settings.listeners]
    for endpoint, trouble in asyncio.run(metrics.probe_next_hops(hops, hostname())).items():
        if trouble:
            yield failed(
                "next hop",
                f"{endpoint}: {trouble}",
                "start it, or correct `next_hop` in the configuration",
            )
        else:
            yield ok("next hop", str(endpoint))


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
