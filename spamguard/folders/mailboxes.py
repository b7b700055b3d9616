"""What the watcher needs of people's mail: the only way it has to it, so that somebody with more
rights can stand behind it.

Values and a Protocol. Names of files are as `os.fsdecode` makes them: every name the disk can hold,
no text to show.

What the parts of this package hand to each other about folders and the messages in them. Data only.

A folder is named by its directory below the mailbox, as in `contract.Place`: "" (the INBOX),
".Junk", "Lists/Python".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spamguard.log import WarnOnce

if TYPE_CHECKING:
    from spamguard.keys import SignedVerdict


CLOSED_WARNING = "%s: cannot be looked at (%s): mail below it teaches nothing until it can"
"""What people are told of one of `Mailboxes.closed`."""


class Mailbox(NamedTuple):
    """One Maildir. watch: number of the entry of `watch:` that names it. path: absolute."""

    user: str
    path: str
    watch: int = 0


class Folder(NamedTuple):
    """A folder on the disk. directory: below the mailbox, such as ".Junk" or "Lists/Python"; empty:
    the mailbox's own.
    """

    mailbox: Mailbox
    directory: str = ""


DOUBT = "doubt"
"""The kind of an issue that may be as it should be, so that no check fails because of it."""


class Issue(NamedTuple):
    """A trouble with a mailbox or a folder, as a key of `WarnOnce`.

    kind: which trouble; empty: it cannot be read. transient: nothing will tell when it is over, as
    with a single file, so it stands for a day.
    """

    subject: Mailbox | Folder
    kind: Hashable = ""
    transient: bool = False

    @property
    def mailbox(self) -> Mailbox:
        """The mailbox that has it."""
        return self.subject.mailbox if isinstance(self.subject, Folder) else self.subject


def clear_issues(warnings: WarnOnce, is_over: Callable[[Issue], bool]) -> None:
    """These issues are over, or concern nobody any more."""
    if issues := [key for key in warnings.standing() if isinstance(key, Issue) and is_over(key)]:
        warnings.clear(*issues)


class MessageFile(NamedTuple):
    """A message of a folder. part: new or cur."""

    part: str
    name: str


def iter_files(names: Mapping[str, Sequence[str]]) -> Iterator[MessageFile]:
    """Those of `Mailboxes.names`, one by one."""
    return (MessageFile(part, name) for part, some in names.items() for name in some)


def is_below(path: str, directories: Collection[str]) -> bool:
    """Whether an absolute path leads through one of them, or to it. directories: many, perhaps, so
    a set or a mapping.
    """
    while path not in directories:
        if path == "/":
            return False
        path = path.rpartition("/")[0] or "/"
    return True


@dataclass(frozen=True, slots=True)
class Changes:
    """What may have changed since it was last asked for. folders: their messages. mailboxes: which
    folders they have.

    users: which mailboxes there are. everything: events were lost, or nobody knows.
    """

    folders: frozenset[Folder] = frozenset()
    mailboxes: frozenset[Mailbox] = frozenset()
    users: bool = False
    everything: bool = False


class Mailboxes(Protocol):
    """People's mail, to be read. An OSError of any method is about what it was asked for alone.

    MailboxesError, of those that are asked for something: nothing can be reached now. It is over
    when `changes` tells of everything.
    """

    def find_mailboxes(self) -> Iterable[Mailbox]:
        """All mailboxes there are now, and those that were where nobody can look now; what changes
        about that is told from now on.
        """

    def unreadable_directories(self) -> Mapping[str, str]:
        """The directories on the way to mailboxes that could not be looked at when `users` was last
        asked for: path to why.
        """

    def list_folders(self, mailbox: Mailbox) -> Iterable[Folder]:
        """All folders of a mailbox; what changes in them is told from now on. FileNotFoundError:
        there is no such mailbox any more.
        """

    def list_files(self, place: Folder) -> Mapping[str, Sequence[str]]:
        """Names of the files of a folder, by part, new before cur; some may have gone meanwhile, or
        be no files.

        FileNotFoundError: there is no such folder any more.
        """

    def open_file(self, place: Folder, file: MessageFile) -> int:
        """A descriptor to read one message from, to be closed by the caller.

        FileNotFoundError: it is not there any more. Other OSError: it cannot be opened, or is no
        regular file.
        """

    def read_keywords(self, place: Folder) -> Mapping[str, str]:
        """The letter of each keyword that Dovecot has given a folder's messages (a to z, among the
        flags of a name) to its name.

        Empty where no Dovecot has written any. FileNotFoundError: there is no such folder any more.
        """

    def wait_for_changes(self, timeout: float) -> Changes:
        """What has changed; waits for so many seconds at most if nothing has."""

    def close(self) -> None:
        """Give all descriptors back."""


MOVE_ORIGIN = "folder"
"""With a folder's name behind it, the origin of what a person said by moving a message."""
EVIDENCE_ORIGIN = "evidence"
"""With the kind of it and a folder's name behind it, the origin of what was taken from what a
person did without moving a message.
"""

FileKey = tuple[str, int]
"""Folder, and `names.key` of the base name: a file of a mailbox."""


class FolderKind(StrEnum):
    """What a folder is for."""

    CLASS = "class"  # people put messages of one class there
    NEUTRAL = "neutral"  # watched, says nothing about a message
    TRASH = "trash"  # watched, says nothing about a message
    IGNORED = "ignored"  # not looked at


class Role(NamedTuple):
    """label: name of the class when kind is CLASS, else empty. doubtful: nobody says so, and people
    may mean the folder for spam.
    """

    kind: FolderKind
    label: str = ""
    doubtful: bool = False


class FileName(NamedTuple):
    """A file name of a Maildir. base: what stays the same when flags or sizes change. flags:
    letters after ":2,".
    """

    base: str
    flags: str = ""


class Arrival(NamedTuple):
    """A file that was not there before. name: `names.key` of its base name. digest: of the message,
    empty when it cannot be read.

    signed: what we once said about it, if a valid signature tells. received: short hash of the
    topmost Received field, 0 without one.
    """

    folder: str
    name: int
    digest: bytes
    signed: SignedVerdict | None = None
    received: int = 0

    @property
    def key(self) -> FileKey:
        """The file."""
        return self.folder, self.name


class Sighting(NamedTuple):
    """What is remembered of one file of one mailbox: a sighting.

    delivery: short hash of the id of our judgement, else of the topmost Received field, 0 without
    either: copies of one delivered message have it in common. origin: a folder without a class: the
    folder of a class the message was in before; None when there was none. waiting: came together
    with another into folders of two classes; nothing was decided yet. followed: it was copied to
    another folder while it stayed. seen: when it was found, gone: when it was missed, 0 while it is
    there; both in seconds since 1970, except that what was seen later always has the greater
    number, even if the clock went back.
    """

    folder: str
    name: int
    digest: bytes
    delivery: int = 0
    origin: str | None = None
    waiting: bool = False
    followed: bool = False
    seen: int = 0
    gone: int = 0

    @property
    def key(self) -> FileKey:
        """The file."""
        return self.folder, self.name


class FolderLesson(NamedTuple):
    """What a person said by putting a message into a folder. name: as of `Copy`. why: in words, for
    people. evidence: its kind, if it was not moved.
    """

    digest: bytes
    label: str
    folder: str
    name: int
    why: str
    evidence: str = ""

    @property
    def key(self) -> FileKey:
        """The file."""
        return self.folder, self.name
