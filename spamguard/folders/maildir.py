"""The Maildirs of users: the values of this room, and those of this machine.

A mailbox is a Maildir of one user. A folder is named by its directory below the mailbox: "" (the
INBOX), ".Junk" (Maildir++) or "Lists/Python" (Dovecot's LAYOUT=fs). Names are as `os.fsdecode`
makes them, and users choose them as they like.

A pattern of `watch:` has a fixed part, which is the operator's own word, and parts with wildcards.
Below the fixed part no symbolic link is ever followed, at any step, because users write there: each
directory is opened relative to the one above it. Every directory in which something could appear is
watched (`changes`).

This module runs with rights that nothing else should have: it never writes, never parses mail, and
needs little but the standard library and watchdog.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import translate
from hashlib import blake2b
from itertools import takewhile
from typing import Annotated, NamedTuple

from msgspec import Meta

from spamguard.config.options import Watch
from spamguard.folders.changes import DirectoryMonitor, is_below
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.folders")

CLOSED_WARNING = "%s: cannot be looked at (%s): mail below it teaches nothing until it can"
"""The warning about one of `unreadable_directories`."""

# In this order: a message that moves from new to cur while we list must not be missed.
PARTS = ("new", "cur")
_MAILDIR_PARTS = {"new", "cur", "tmp"}
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_DEPTH = 12  # folders within folders
_MAX_DIRECTORIES = 10_000  # of a mailbox
_MAX_LINKS = 20  # warnings: users make as many links as they like, which would hide other trouble
_MAX_LISTING = 80 << 20  # characters of names: a million names and more
_OTHER_FORMATS = {"mailboxes", "storage", "dbox-Mails"}  # directories of sdbox and mdbox
_SIEVE_SUFFIX = ".sieve"  # `.dovecot.sieve` lies in the Maildir where that is the home directory
_LINK_WARNING = "is a symbolic link, which is not followed: name the directory itself in `watch`"
_WILDCARD = re.compile(r"[*?]")


# ---- mailboxes, folders, files


FileText = Annotated[str, Meta(pattern=r"\A[^\0\ud800-\udc7f\udd00-\udfff]*\Z")]
"""A text that can be the name of a file: a byte that is not UTF-8 is a low surrogate (PEP 383)."""


class Mailbox(NamedTuple):
    """One Maildir. path: absolute. watch: index of the entry of `watch:` that names it."""

    user: FileText
    path: FileText
    watch: int


class Folder(NamedTuple):
    """A folder on the disk. directory: below the mailbox; "" is the mailbox's own."""

    mailbox: Mailbox
    directory: FileText = ""


class MessageFile(NamedTuple):
    """A message of a folder. part: new or cur."""

    part: FileText
    name: FileText


class Changes(NamedTuple):
    """What may have changed since the last call."""

    folders: frozenset[Folder] = frozenset()  # their messages
    mailboxes: frozenset[Mailbox] = frozenset()  # which folders they have
    users: bool = False  # which mailboxes there are
    everything: bool = False  # events were lost


def iter_files(names: Mapping[str, Sequence[str]]) -> Iterator[MessageFile]:
    return (MessageFile(part, name) for part, in_part in names.items() for name in in_part)


# ---- names of files

_FLAGS_SUFFIX = re.compile(r"[:;!]2,([A-Za-z]*)")
_SIZE_FIELDS = re.compile(r",[SW]=[0-9]+")
# Servers keep files of such names beside the messages.
_SERVER_FILES = (".", "dovecot", "maildir", "courierimap", "subscriptions")


class FileName(NamedTuple):
    """A file name of a Maildir, taken apart."""

    base: str  # stays the same when flags or sizes change
    flags: str = ""  # the letters behind ":2,"


def parse_file_name(name: str) -> FileName | None:
    """Base name and flags of a file in `cur` or `new`; None: it is no message.

    Dovecot's sizes (",S=…,W=…") are no part of the base name. File systems without the colon have
    "!2," or ";2," instead of ":2,".

    >>> parse_file_name("1.M2.host,S=340:2,FS")
    FileName(base='1.M2.host', flags='FS')
    """
    if name.startswith(_SERVER_FILES):
        return None
    suffix = _FLAGS_SUFFIX.search(name, 1)
    base, flags = (name[: suffix.start()], suffix[1]) if suffix else (name, "")
    return FileName(_SIZE_FIELDS.sub("", base) or base, flags) if base else None


def base_name_key(base: str) -> int:
    """A signed 64-bit hash of a base name, enough to tell the files of one mailbox apart."""
    hashed = blake2b(base.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(hashed, "big", signed=True)


def file_key(file: str) -> int:
    """`base_name_key` of a file; 0: it is no message."""
    name = parse_file_name(file)
    return base_name_key(name.base) if name else 0


# ---- the Maildirs of this machine


class LocalMailboxes:
    """Users' mail on this machine, read only. An OSError concerns only what a method was asked
    about.

    A mailbox belongs to the user that its pattern names; else to the user that the pattern's
    wildcards stand for; else to the owner of its directory. The last wildcard is the name or the
    whole address, and one above it the domain: the nearest one with a dot in it, so
    /var/vmail/*/*/*/Maildir works with a directory for each letter, too. If there are parts with
    `*`, those with `?` alone are such directories.
    """

    def __init__(self, watches: Iterable[Watch], *, notify: bool = True) -> None:
        self._patterns: list[tuple[str, list[str], str]] = []  # the fixed part, the rest, the user
        for watch in watches:
            parts = _path_parts(watch.maildir)
            fixed = list(takewhile(lambda part: not _WILDCARD.search(part), parts))
            self._patterns.append(("/" + "/".join(fixed), parts[len(fixed) :], watch.user))
        self._watches = DirectoryMonitor(notify=notify)
        self._mailboxes: list[Mailbox] = []
        self._unreadable: dict[str, str] = {}
        self._links: set[str] = set()  # to Maildirs, where a Maildir would be watched
        self._warnings = WarnOnce(_log)

    # ---- mailboxes

    def find_mailboxes(self) -> list[Mailbox]:
        """All mailboxes that are there, and those last found below directories that cannot be read
        now. From now on `wait_for_changes` reports new ones. Of several patterns the first one
        counts.
        """
        mailboxes: dict[str, Mailbox] = {}
        before, self._unreadable = self._unreadable, {}
        self._links = set()
        for number, (fixed, rest, user) in enumerate(self._patterns):
            matches: list[tuple[str, ...]] = []
            try:
                with _open_below(fixed) as root:
                    matches += self._find_matches(root, fixed, (), rest)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._unreadable[fixed] = str(error.strerror)
            if not matches:
                self._watches.wait_for(fixed, None)
            for names in matches:
                path = os.path.join(fixed, *names)
                owner = user or _mailbox_user(path, rest, names)
                mailboxes.setdefault(path, Mailbox(owner, path, number))
        if self._links:  # a second name of a watched Maildir is no trouble
            real = {os.path.realpath(path) for path in mailboxes}
            unwatched = [link for link in sorted(self._links) if os.path.realpath(link) not in real]
            self._unreadable |= dict.fromkeys(unwatched[:_MAX_LINKS], _LINK_WARNING)
        for mailbox in self._mailboxes:
            if is_below(mailbox.path, self._unreadable):
                mailboxes.setdefault(mailbox.path, mailbox)
        if readable := before.keys() - self._unreadable:
            self._warnings.clear(*readable)
        for path, why in self._unreadable.items():
            self._warnings.warn(path, CLOSED_WARNING, path, why)
        self._mailboxes = list(mailboxes.values())
        return self._mailboxes.copy()

    def unreadable_directories(self) -> dict[str, str]:
        return self._unreadable.copy()

    def _find_matches(
        self, above: int, path: str, names: tuple[str, ...], rest: Sequence[str]
    ) -> Iterator[tuple[str, ...]]:
        if not rest:
            yield names
            return
        self._watches.add(above, path, None, directories_only=True)
        part = rest[0]
        found = [part]
        if _WILDCARD.search(part):  # hidden ones only if the part begins with a dot
            matches = re.compile(translate(part.replace("[", "[[]"))).match
            found = [
                name
                for name in sorted(_list_directories(above, links=True))
                if matches(name) and (part[0] == "." or name[0] != ".")
            ]
        for name in found:
            below = os.path.join(path, name)
            try:
                with _open_below(above, (name,)) as directory:
                    yield from self._find_matches(directory, below, (*names, name), rest[1:])
            except FileNotFoundError:
                continue
            except OSError as error:
                if self._may_open_later(below, error):
                    self._unreadable[below] = str(error.strerror)
                elif not rest[1:] and os.path.isdir(f"{below}/cur"):
                    self._links.add(below)

    def _may_open_later(self, path: str, error: OSError) -> bool:
        """Whether a directory may be opened later. A link is logged, except the one to the Sieve
        script in force; a file is nothing to speak of.
        """
        if os.path.islink(path):
            if not path.endswith(_SIEVE_SUFFIX):
                self._warnings.warn(path, "%s: %s", path, _LINK_WARNING)
            return False
        return error.errno != errno.ENOTDIR

    # ---- folders

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        """All folders of a mailbox: every directory with a `cur`, however deep it lies. From now on
        `wait_for_changes` reports changes in them. FileNotFoundError: the mailbox is gone.
        """
        budget = iter(range(_MAX_DIRECTORIES))
        with self._open_directory(mailbox, ()) as root:
            directories = list(self._walk(root, mailbox, "", 0, budget))
            if not directories:
                if _OTHER_FORMATS & _list_directories(root):
                    self._warnings.warn(
                        mailbox,
                        "%s: is no Maildir but mdbox or sdbox: moving mail in it cannot be seen "
                        "from outside, let Dovecot tell by IMAPSieve",
                        mailbox.path,
                    )
                self._watches.wait_for(mailbox.path, mailbox)
        if next(budget, None) is None:
            text = "%s: has more than %d folders: the others are not looked at"
            self._warnings.warn(mailbox, text, mailbox.path, _MAX_DIRECTORIES)
        return [Folder(mailbox, directory) for directory in directories]

    def _walk(
        self, directory: int, mailbox: Mailbox, name: str, depth: int, budget: Iterator[int]
    ) -> Iterator[str]:
        """The folders in a directory, as long as the budget lasts.

        The directory is watched first, then listed, so nothing comes unseen in between. A directory
        that cannot be opened counts as a folder: `list_files` will say why.
        """
        path = os.path.join(mailbox.path, name) if name else mailbox.path
        self._watches.add(directory, path, mailbox, directories_only=True)
        below = _list_directories(directory, links=True)
        if "cur" in below and self._watch_parts(directory, Folder(mailbox, name)):
            yield name
        for child in sorted(below - _MAILDIR_PARTS) if depth < _MAX_DEPTH else ():
            if next(budget, None) is None:
                return
            deeper = os.path.join(name, child)
            try:
                with _open_below(directory, (child,)) as folder:
                    yield from self._walk(folder, mailbox, deeper, depth + 1, budget)
            except FileNotFoundError:
                continue
            except OSError as error:
                if self._may_open_later(os.path.join(mailbox.path, deeper), error):
                    yield deeper

    def _watch_parts(self, directory: int, folder: Folder) -> bool:
        for part in PARTS:
            path = os.path.join(folder.mailbox.path, folder.directory, part)
            try:
                with _open_below(directory, (part,)) as opened:
                    self._watches.add(opened, path, folder, owner=folder.mailbox)
            except FileNotFoundError:
                continue
            except OSError as error:
                return self._may_open_later(path, error)
        return True

    @contextmanager
    def _open_directory(self, mailbox: Mailbox, names: Sequence[str]) -> Iterator[int]:
        """FileNotFoundError: it is gone, or no pattern fits it."""
        for fixed, rest, _ in self._patterns[mailbox.watch : mailbox.watch + 1]:
            within = mailbox.path[len(fixed) :].strip("/").split("/") if rest else []
            if mailbox.path.startswith(fixed) and len(within) == len(rest):
                with _open_below(fixed, (*within, *names)) as directory:
                    yield directory
                return
        raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)

    # ---- files

    def list_files(self, folder: Folder) -> dict[str, list[str]]:
        """Names of a folder's files by part, new before cur. Some may be gone by now, or be no
        messages. FileNotFoundError: the folder is gone. A part that is missing has no files.
        """
        listed: dict[str, list[str]] = {}
        with self._open_directory(folder.mailbox, _path_parts(folder.directory)) as directory:
            for part in PARTS:
                names: list[str] = []
                with suppress(FileNotFoundError), _open_below(directory, (part,)) as opened:
                    names = [name for name in os.listdir(opened) if name[0] != "."]
                if sum(map(len, names)) > _MAX_LISTING:
                    raise OSError(errno.EFBIG, "more file names than an answer can hold", part)
                listed[part] = names
        return listed

    def open_file(self, folder: Folder, file: MessageFile) -> int:
        """A descriptor to read one message from; the caller closes it. FileNotFoundError: the file
        is gone. Other OSError: it cannot be opened, or is no regular file; a pipe is not waited
        for.
        """
        if file.part not in PARTS or "/" in file.name:
            raise FileNotFoundError(errno.ENOENT, "no message of a Maildir", file.name)
        names = (*_path_parts(folder.directory), file.part)
        with self._open_directory(folder.mailbox, names) as part:
            descriptor = os.open(file.name, _FILE_FLAGS, dir_fd=part)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", file.name)

    # ---- changes

    def wait_for_changes(self, timeout: float) -> Changes:
        targets, lost = self._watches.wait(timeout)
        return Changes(
            frozenset(target for target in targets if isinstance(target, Folder)),
            frozenset(target for target in targets if isinstance(target, Mailbox)),
            None in targets,
            lost,
        )

    def close(self) -> None:
        self._watches.close()


# ---- patterns and users


def _path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _mailbox_user(path: str, rest: Sequence[str], names: Sequence[str]) -> str:
    texts = (os.fsencode(name).decode("utf-8", "backslashreplace") for name in names)
    wild = [pair for pair in zip(rest, texts, strict=True) if _WILDCARD.search(pair[0])]
    stars = [name for part, name in wild if "*" in part]
    *above, name = stars or [name for _, name in wild] or [owner_name(path)]
    if not above or "@" in name:
        return name
    return f"{name}@{next((part for part in reversed(above) if '.' in part), above[-1])}"


def owner_name(path: str) -> str:
    """Name the owner of a path: an account, or a number without one; "": the path is gone."""
    with suppress(OSError):
        owner = os.stat(path).st_uid
        with suppress(KeyError):
            return pwd.getpwuid(owner).pw_name
        return str(owner)
    return ""


# ---- directories and files, relative to an open directory


def _list_directories(directory: int, *, links: bool = False) -> set[str]:
    with os.scandir(directory) as entries:
        return {
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) or (links and entry.is_symlink())
        }


@contextmanager
def _open_below(start: int | str, names: Sequence[str] = ()) -> Iterator[int]:
    current = os.open(start, _DIRECTORY_FLAGS) if isinstance(start, str) else os.dup(start)
    try:
        for name in names:
            if name in (".", ".."):
                raise FileNotFoundError(errno.ENOENT, "no name", name)
            deeper = os.open(name, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = deeper
        yield current
    finally:
        os.close(current)
