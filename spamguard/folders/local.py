"""People's Maildirs on this machine: found by patterns, listed and opened. The only code that
touches them, and it only reads.

Parses no mail and needs little but the standard library, so that it can be given rights that
nothing else should have. Below the fixed part of a pattern, which is the operator's own word, no
symbolic link is ever followed, at any step: people write there. Only whether one leads to a Maildir
is asked, of which nothing but that is told.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import translate

from spamguard.config.options import Watch
from spamguard.folders.changes import DirectoryMonitor
from spamguard.folders.mailboxes import (
    CLOSED_WARNING,
    Changes,
    Folder,
    Mailbox,
    MessageFile,
    is_below,
)
from spamguard.log import WarnOnce

_log = logging.getLogger("spamguard.folders")

PARTS = (
    "new",
    "cur",
)  # in this order: a message that is looked at moves on to cur, and must not be missed for that
_MAILDIR_PARTS = frozenset(("new", "cur", "tmp"))
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAX_DEPTH = 12  # folders within folders
# in the place of Maildirs that are told: people make as many as they like, which would hide all
# other trouble
_MAX_LINKS = 20
_MAX_DIRECTORIES = 10_000  # of a mailbox: folders, and what they lie in
_MANY_NAMES = 100_000  # names of a part of a folder, whose lengths are looked at then
_MAX_LISTING_BYTES = (
    96 << 20
    # bytes that they take where they are told (`protocol.pack`): a million and more; people make names
    # as they like
)
_OTHER_FORMATS = frozenset(
    ("mailboxes", "storage", "dbox-Mails")
)  # directories of Dovecot's sdbox and mdbox
_SIEVE_SUFFIX = ".sieve"  # `.dovecot.sieve` lies in the Maildir where that is the home directory
_LINK_WARNING = "is a symbolic link, which is not followed: name the directory itself in `watch`"
_WILD = re.compile(r"[*?]")
_STAR = re.compile(r"\*")
_KEYWORDS_FILE = "dovecot-keywords"
_MAX_KEYWORDS = 26  # keywords that a name has room for
_MAX_KEYWORDS_BYTES = 64 << 10  # bytes of that file
_KEYWORD_LINE = re.compile(rb"([0-9]{1,2}) ([!-~]{1,200})")  # its number, its name


ChangeTarget = Folder | Mailbox | None
"""Whose change a watched directory tells: a folder's, that of a mailbox's folders, or (None) of the
mailboxes there are.
"""


class LocalMailboxes:
    """`contract.Mailboxes` of this machine, where `watches` say.

    A mailbox belongs to the user its pattern names; else to what its wildcards stand for; else to
    the owner of its directory. The last of them is the name or the whole address, one above it the
    domain: the nearest with a dot in it, so that /var/vmail/*/*/*/Maildir is anna@example.org's
    where there is a directory for each letter, too. Parts with `?` alone are such directories if
    others have `*`. notify: as in `Watches`.
    """

    def __init__(self, watches: Iterable[Watch], *, notify: bool = True) -> None:
        self._patterns = [(_split_pattern(watch.maildir), watch.user) for watch in watches]
        self._watches = DirectoryMonitor(notify=notify, on_mount=self._mount_targets)
        self._mailboxes: list[Mailbox] = []
        self._unreadable: dict[str, str] = {}
        self._links: set[str] = (
            set()
        )  # to Maildirs, where one would be watched; second names of one that is are no trouble
        self._warnings = WarnOnce(_log)

    def find_mailboxes(self) -> list[Mailbox]:
        """Of a Maildir that several patterns name, the first one counts."""
        found: dict[str, Mailbox] = {}
        closed_before, self._unreadable = self._unreadable, {}
        self._links = set()
        for number, ((fixed, rest), user) in enumerate(self._patterns):
            some = list(self._find_matches(fixed, rest))
            if not some:
                self._watches.wait_for(fixed, None, links=True)
            for names in some:
                path = os.path.join(fixed, *names)
                found.setdefault(
                    path, Mailbox(user or _mailbox_user(path, rest, names), path, number)
                )
        real = {os.path.realpath(path) for path in found} if self._links else set()
        unwatched = [link for link in sorted(self._links) if os.path.realpath(link) not in real]
        self._unreadable |= dict.fromkeys(unwatched[:_MAX_LINKS], _LINK_WARNING)
        for one in self._mailboxes:
            if is_below(one.path, self._unreadable):
                found.setdefault(one.path, one)
        for path in closed_before.keys() - self._unreadable:
            self._warnings.clear(path)
        for path, why in self._unreadable.items():
            self._warnings.warn(path, CLOSED_WARNING, path, why)
        self._mailboxes = list(found.values())
        return self._mailboxes.copy()

    def unreadable_directories(self) -> dict[str, str]:
        """See `contract.Mailboxes.closed`."""
        return self._unreadable.copy()

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        """Directories that have a `cur`, however deep; Maildir++ has them side by side, other
        layouts within one another.
        """
        left = iter(range(_MAX_DIRECTORIES))
        with self._open_directory(mailbox, ()) as root:
            found = [
                Folder(mailbox, directory) for directory in self._walk(root, mailbox, "", 0, left)
            ]
        if not found:
            self._warn_format(mailbox)
            self._watches.wait_for(mailbox.path, mailbox)
        if next(left, None) is None:
            self._warnings.warn(
                mailbox,
                "%s: has more than %d folders: the others are not looked at",
                mailbox.path,
                _MAX_DIRECTORIES,
            )
        return found

    def list_files(self, place: Folder) -> dict[str, list[str]]:
        """Of both parts; one that is missing has none."""
        with self._open_directory(place.mailbox, _path_parts(place.directory)) as folder:
            return {part: _list_names(folder, part) for part in PARTS}

    def open_file(self, place: Folder, file: MessageFile) -> int:
        """See `contract.Mailboxes.open`. A pipe is no reason to wait."""
        if file.part not in PARTS or "/" in file.name:
            raise FileNotFoundError(errno.ENOENT, "no message of a Maildir", file.name)
        with self._open_directory(
            place.mailbox, (*_path_parts(place.directory), file.part)
        ) as part:
            return _open_regular_file(part, file.name)

    def read_keywords(self, place: Folder) -> dict[str, str]:
        """See `contract.Mailboxes.keywords`. Lines that make no sense are passed over."""
        with self._open_directory(place.mailbox, _path_parts(place.directory)) as folder:
            found = map(
                _KEYWORD_LINE.fullmatch,
                _read_start(folder, _KEYWORDS_FILE, _MAX_KEYWORDS_BYTES).split(b"\n"),
            )
        named = {int(one[1]): one[2].decode() for one in found if one}
        return {
            chr(ord("a") + number): name for number, name in named.items() if number < _MAX_KEYWORDS
        }

    def wait_for_changes(self, timeout: float) -> Changes:
        """See `contract.Mailboxes.changes`."""
        told, lost = self._watches.wait(timeout)
        return Changes(
            frozenset(one for one in told if isinstance(one, Folder)),
            frozenset(one for one in told if isinstance(one, Mailbox)),
            None in told,
            lost,
        )

    def count_watched(self) -> int:
        """How many directories tell what changes, of all that were asked for so far."""
        return len(self._watches)

    def close(self) -> None:
        """Watch nothing any more."""
        self._watches.close()

    # ----

    def _find_matches(self, fixed: str, rest: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The parts of each path that fits. Every directory on the way in which one could come or
        go is watched.
        """
        try:
            with _open_fixed(fixed) as root:
                yield from self._find_matches_below(root, fixed, (), rest)
        except FileNotFoundError:
            return
        except OSError as error:
            self._unreadable[fixed] = str(error.strerror)

    def _find_matches_below(
        self, above: int, path: str, names: tuple[str, ...], rest: Sequence[str]
    ) -> Iterator[tuple[str, ...]]:
        if not rest:
            yield names
            return
        self._watches.add(above, path, None, directories_only=True)
        for name in _matching_names(above, rest[0]):
            below = os.path.join(path, name)
            try:
                with _open_below(above, (name,)) as directory:
                    yield from self._find_matches_below(directory, below, (*names, name), rest[1:])
            except FileNotFoundError:
                continue
            except OSError as error:
                if self._is_closed(below, error):
                    self._unreadable[below] = str(error.strerror)
                elif not rest[1:] and os.path.isdir(f"{below}/cur"):
                    self._links.add(below)

    def _mount_targets(self, place: str) -> Iterator[ChangeTarget]:
        """Whatever may be another there, above it or below."""
        for number, ((fixed, _), _) in enumerate(self._patterns):
            real = os.path.realpath(fixed)
            if _overlaps(place, real):
                yield None
                mailboxes = (one for one in self._mailboxes if one.watch == number)
                yield from (
                    one for one in mailboxes if _overlaps(place, f"{real}/{one.path[len(fixed) :]}")
                )

    def _is_closed(self, path: str, error: OSError) -> bool:
        """Whether it may be opened later. A file is nothing to speak of, nor is the link to the
        Sieve script in force.
        """
        if os.path.islink(path):
            if not path.endswith(_SIEVE_SUFFIX):
                self._warnings.warn(path, "%s: %s", path, _LINK_WARNING)
            return False
        return error.errno != errno.ENOTDIR

    def _walk(
        self, directory: int, mailbox: Mailbox, name: str, depth: int, left: Iterator[int]
    ) -> Iterator[str]:
        """Watched first, then listed: what comes in between is told. left: an item for each
        directory that may be entered yet.

        One that cannot be opened is taken for a folder: whoever asks for its names hears why.
        """
        self._watches.add(
            directory,
            os.path.join(mailbox.path, name) if name else mailbox.path,
            mailbox,
            directories_only=True,
        )
        below = _list_directories(directory, links=True)
        if "cur" in below and self._watch_parts(directory, Folder(mailbox, name)):
            yield name
        for one in sorted(below - _MAILDIR_PARTS) if depth < _MAX_DEPTH else ():
            if next(left, None) is None:
                return
            try:
                with _open_below(directory, (one,)) as folder:
                    yield from self._walk(folder, mailbox, os.path.join(name, one), depth + 1, left)
            except FileNotFoundError:
                continue
            except OSError as error:
                if self._is_closed(os.path.join(mailbox.path, name, one), error):
                    yield os.path.join(name, one)

    def _watch_parts(self, directory: int, place: Folder) -> bool:
        """Whether it is a folder."""
        for part in PARTS:
            path = os.path.join(place.mailbox.path, place.directory, part)
            try:
                with _open_below(directory, (part,)) as opened:
                    self._watches.add(opened, path, place, owner=place.mailbox)
            except FileNotFoundError:
                continue
            except OSError as error:
                return self._is_closed(path, error)
        return True

    @contextmanager
    def _open_directory(self, mailbox: Mailbox, names: Sequence[str]) -> Iterator[int]:
        """A directory of a mailbox. FileNotFoundError: it is not there, or not of any pattern."""
        if not 0 <= mailbox.watch < len(self._patterns):
            raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)
        (fixed, rest), _ = self._patterns[mailbox.watch]
        within = mailbox.path[len(fixed) :].strip("/").split("/") if rest else []
        if not mailbox.path.startswith(fixed) or len(within) != len(rest):
            raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)
        with _open_fixed(fixed) as root, _open_below(root, (*within, *names)) as found:
            yield found

    def _warn_format(self, mailbox: Mailbox) -> None:
        with self._open_directory(mailbox, ()) as root:
            if _OTHER_FORMATS & _list_directories(root):
                told = "%s: is no Maildir but mdbox or sdbox: moving mail in it cannot be seen from outside, let Dovecot tell by IMAPSieve"
                self._warnings.warn(mailbox, told, mailbox.path)


def _split_pattern(path: str) -> tuple[str, tuple[str, ...]]:
    """A pattern's fixed part and the parts below it."""
    parts = _path_parts(path)
    wild = next((at for at, part in enumerate(parts) if _WILD.search(part)), len(parts))
    return "/" + "/".join(parts[:wild]), tuple(parts[wild:])


def _overlaps(path: str, other: str) -> bool:
    """Whether one of them leads to the other, or further."""
    return all(
        part == same for part, same in zip(_path_parts(path), _path_parts(other), strict=False)
    )


def _mailbox_user(path: str, rest: Sequence[str], names: Sequence[str]) -> str:
    stars, all_wild = (
        [_display_bytes(name) for part, name in zip(rest, names, strict=True) if wild.search(part)]
        for wild in (_STAR, _WILD)
    )
    *above, name = stars or all_wild or [_owner_name(path)]
    if not above or "@" in name:
        return name
    return f"{name}@{next((one for one in reversed(above) if '.' in one), above[-1])}"


def _owner_name(path: str) -> str:
    try:
        number = os.stat(path).st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _display_bytes(name: str) -> str:
    """A name as text, whatever its bytes are."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _path_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _matching_names(directory: int, part: str) -> list[str]:
    """Names that a part of a pattern stands for; those that begin with a dot only where the pattern
    does.
    """
    if not _WILD.search(part):
        return [part]
    fits = re.compile(translate(part.replace("[", "[[]"))).match
    return sorted(
        name
        for name in _list_directories(directory, links=True)
        if fits(name) and (part[0] == "." or name[0] != ".")
    )


def _list_directories(directory: int, *, links: bool = False) -> set[str]:
    """Names of directories. links: and of symbolic links, to say that they are not followed."""
    with os.scandir(directory) as entries:
        return {
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) or (links and entry.is_symlink())
        }


def _list_names(folder: int, part: str) -> list[str]:
    """Names of what may be messages. OSError: also of more than anybody can be told."""
    try:
        with _open_below(folder, (part,)) as directory:
            found = [name for name in os.listdir(directory) if name[0] != "."]
    except FileNotFoundError:
        return []
    if len(found) > _MANY_NAMES and sum(map(_max_json_bytes, found)) > _MAX_LISTING_BYTES:
        raise OSError(errno.EFBIG, "more names than can be told", part)
    return found


def _max_json_bytes(name: str) -> int:
    """Bytes that it takes at most, where it is told."""
    return len(name) if name.isascii() and name.isprintable() else 6 * len(name)


def _open_regular_file(directory: int, name: str) -> int:
    descriptor = os.open(name, _FILE_FLAGS, dir_fd=directory)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "is no regular file", name)


def _read_start(directory: int, name: str, most: int) -> bytes:
    """The first bytes of a file; none when it is not there."""
    try:
        descriptor = _open_regular_file(directory, name)
    except FileNotFoundError:
        return b""
    with open(descriptor, "rb") as file:
        return file.read(most)


@contextmanager
def _open_fixed(path: str) -> Iterator[int]:
    """The fixed part of a pattern, by whatever links."""
    descriptor = os.open(path, _DIRECTORY_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _open_below(directory: int, names: Sequence[str]) -> Iterator[int]:
    """What lies below an open directory, by names one within another, no symbolic link among them."""
    current = os.dup(directory)
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
