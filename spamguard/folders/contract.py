"""What the watcher needs of people's mail: the only way it has to it, so that somebody with more rights can stand behind it.

Values and a Protocol. Names of files are as `os.fsdecode` makes them: every name the disk can hold, no text to show.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

CLOSED = "%s: cannot be looked at (%s): mail below it teaches nothing until it can"
"""What people are told of one of `Mailboxes.closed`."""


class Mailbox(NamedTuple):
    """One Maildir. watch: number of the entry of `watch:` that names it. path: absolute."""

    user: str
    path: str
    watch: int = 0


class Place(NamedTuple):
    """A folder on the disk. directory: below the mailbox, such as ".Junk" or "Lists/Python"; empty: the mailbox's own."""

    mailbox: Mailbox
    directory: str = ""


class File(NamedTuple):
    """A message of a folder. part: new or cur."""

    part: str
    name: str


def files(names: Mapping[str, Sequence[str]]) -> Iterator[File]:
    """Those of `Mailboxes.names`, one by one."""
    return (File(part, name) for part, some in names.items() for name in some)


def lies_below(path: str, directories: Collection[str]) -> bool:
    """Whether an absolute path leads through one of them, or to it. directories: many, perhaps, so a set or a mapping."""
    while path not in directories:
        if path == "/":
            return False
        path = path.rpartition("/")[0] or "/"
    return True


@dataclass(frozen=True, slots=True)
class Changes:
    """What may have changed since it was last asked for. folders: their messages. mailboxes: which folders they have.

    users: which mailboxes there are. everything: events were lost, or nobody knows.
    """

    folders: frozenset[Place] = frozenset()
    mailboxes: frozenset[Mailbox] = frozenset()
    users: bool = False
    everything: bool = False


class Mailboxes(Protocol):
    """People's mail, to be read. An OSError of any method is about what it was asked for alone.

    MailboxesError, of those that are asked for something: nothing can be reached now. It is over when `changes` tells of everything.
    """

    def users(self) -> Iterable[Mailbox]:
        """All mailboxes there are now, and those that were where nobody can look now; what changes about that is told from now on."""

    def closed(self) -> Mapping[str, str]:
        """The directories on the way to mailboxes that could not be looked at when `users` was last asked for: path to why."""

    def folders(self, mailbox: Mailbox) -> Iterable[Place]:
        """All folders of a mailbox; what changes in them is told from now on. FileNotFoundError: there is no such mailbox any more."""

    def names(self, place: Place) -> Mapping[str, Sequence[str]]:
        """Names of the files of a folder, by part, new before cur; some may have gone meanwhile, or be no files.

        FileNotFoundError: there is no such folder any more.
        """

    def open(self, place: Place, file: File) -> int:
        """A descriptor to read one message from, to be closed by the caller.

        FileNotFoundError: it is not there any more. Other OSError: it cannot be opened, or is no regular file.
        """

    def keywords(self, place: Place) -> Mapping[str, str]:
        """The letter of each keyword that Dovecot has given a folder's messages (a to z, among the flags of a name) to its name.

        Empty where no Dovecot has written any. FileNotFoundError: there is no such folder any more.
        """

    def changes(self, timeout: float) -> Changes:
        """What has changed; waits for so many seconds at most if nothing has."""

    def close(self) -> None:
        """Give all descriptors back."""
