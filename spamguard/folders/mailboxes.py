"""Mailboxes, their folders and files: the values of this room, their names, and how to reach them.

A mailbox is a Maildir of one user. A folder is named by its directory below the mailbox: "" (the
INBOX), ".Junk" (Maildir++) or "Lists/Python" (Dovecot's LAYOUT=fs). File names are as `os.fsdecode`
makes them, so every name that the disk can hold has one; bytes that are no UTF-8 are lone
surrogates. `Mailboxes` is the only way to users' mail. It has two implementations: `local` reads
the disk, `broker` asks a process that has the right to.

No function here may raise because of a name: users choose names as they like.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

from spamguard.log import WarnOnce

CLOSED_WARNING = "%s: cannot be looked at (%s): mail below it teaches nothing until it can"
"""The warning about one of `Mailboxes.unreadable_directories`."""

INBOX_NAME = ("INBOX",)

MOVE_ORIGIN = "folder"
"""Origin of a vote by a moved message; the folder's name follows."""
EVIDENCE_ORIGIN = "evidence"
"""Origin of a vote by evidence, without a move; the kind and the folder's name follow."""

_SHIFT_SEQUENCE = re.compile(r"&([A-Za-z0-9+,]*)-")
_NEEDS_SHIFT = re.compile(r"[^ -~\udc80-\udcff]+")  # bytes that are no UTF-8 stay
_FLAGS_SUFFIX = re.compile(r"[:;!]2,([A-Za-z]*)")
_SIZE_FIELDS = re.compile(r",[SW]=[0-9]+")
# Servers keep files of such names beside the messages.
_SERVER_FILES = (".", "dovecot", "maildir", "courierimap", "subscriptions")


# ---- mailboxes, folders, files


class Mailbox(NamedTuple):
    """One Maildir. path: absolute. watch: index of the entry of `watch:` that names it."""

    user: str
    path: str
    watch: int = 0


class Folder(NamedTuple):
    """A folder on the disk. directory: below the mailbox; "" is the mailbox's own."""

    mailbox: Mailbox
    directory: str = ""


class MessageFile(NamedTuple):
    """A message of a folder. part: new or cur."""

    part: str
    name: str


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


# ---- the way to them


@dataclass(frozen=True, slots=True)
class Changes:
    """What may have changed since the last call.

    folders: their messages. mailboxes: which folders they have. users: which mailboxes there are.
    everything: events were lost.
    """

    folders: frozenset[Folder] = frozenset()
    mailboxes: frozenset[Mailbox] = frozenset()
    users: bool = False
    everything: bool = False


class Mailboxes(Protocol):
    """Users' mail, read only.

    An OSError of any method concerns only what the method was asked about. MailboxesError, of any
    method with arguments: no mailbox can be reached now; `wait_for_changes` reports a change of
    everything when that is over.
    """

    def find_mailboxes(self) -> Iterable[Mailbox]:
        """All mailboxes that are there, and those last found below directories that cannot be read
        now. From now on `wait_for_changes` reports new ones.
        """

    def unreadable_directories(self) -> Mapping[str, str]:
        """The directories on the way to mailboxes that the last `find_mailboxes` could not read:
        path to reason.
        """

    def list_folders(self, mailbox: Mailbox) -> Iterable[Folder]:
        """All folders of a mailbox; from now on `wait_for_changes` reports changes in them.
        FileNotFoundError: the mailbox is gone.
        """

    def list_files(self, folder: Folder) -> Mapping[str, Sequence[str]]:
        """Names of a folder's files by part, new before cur. Some may be gone by now, or be no
        messages. FileNotFoundError: the folder is gone.
        """

    def open_file(self, folder: Folder, file: MessageFile) -> int:
        """A descriptor to read one message from; the caller closes it. FileNotFoundError: the file
        is gone. Other OSError: it cannot be opened, or is no regular file.
        """

    def read_keywords(self, folder: Folder) -> Mapping[str, str]:
        """Dovecot's keywords of a folder: the letter that stands for one among the flags of a file
        name (a to z) to its name. Empty without Dovecot. FileNotFoundError: the folder is gone.
        """

    def wait_for_changes(self, timeout: float) -> Changes:
        """Wait at most `timeout` seconds for changes, and return them."""

    def close(self) -> None:
        """Give all descriptors back."""


def iter_files(names: Mapping[str, Sequence[str]]) -> Iterator[MessageFile]:
    """The files that `Mailboxes.list_files` names."""
    return (MessageFile(part, name) for part, in_part in names.items() for name in in_part)


def is_below(path: str, directories: Collection[str]) -> bool:
    """Whether an absolute path is one of some directories, or below one. directories: a set or a
    mapping, as there may be many.
    """
    while path not in directories:
        if path == "/":
            return False
        path = path.rpartition("/")[0] or "/"
    return True


# ---- names of folders


def decode_utf7(text: str) -> str:
    """From IMAP's modified UTF-7 (RFC 3501, section 5.1.3). Other text stays as it is.

    >>> decode_utf7("Entw&APw-rfe")
    'Entwürfe'
    """
    try:
        decoded = _SHIFT_SEQUENCE.sub(lambda match: _decode_shift(match[1]), text)
        return decoded if encode_utf7(decoded) == text else text
    except ValueError:
        return text


def _decode_shift(coded: str) -> str:
    if not coded:
        return "&"
    padded = coded.replace(",", "/") + "=" * (-len(coded) % 4)
    return b64decode(padded, validate=True).decode("utf-16-be")


def encode_utf7(text: str) -> str:
    """To IMAP's modified UTF-7."""
    return _NEEDS_SHIFT.sub(lambda match: f"&{_encode_shift(match[0])}-", text.replace("&", "&-"))


def _encode_shift(text: str) -> str:
    coded = b64encode(text.encode("utf-16-be", "surrogatepass"))
    return coded.rstrip(b"=").replace(b"/", b",").decode()


def folder_parts(directory: str) -> tuple[str, ...] | None:
    """The name of a folder, from the top; None: no folder can be in this directory.

    A leading dot means the Maildir++ layout, none the nested one (LAYOUT=fs).

    >>> folder_parts(".Junk.Old") == folder_parts("Junk/Old") == ("Junk", "Old")
    True
    >>> folder_parts("")
    ('INBOX',)
    """
    if not directory:
        return INBOX_NAME
    flat = directory.startswith(".")
    pieces = directory[1:].split(".") if flat else directory.split("/")
    if "" in pieces or any(piece.startswith(".") or "/" in piece for piece in pieces):
        return None
    return tuple(map(decode_utf7, pieces))


def display_folder(directory: str) -> str:
    """A folder's name as mail programs show it; bytes that are no UTF-8 are escaped."""
    name = "/".join(folder_parts(directory) or (directory,))
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def describe_folder(folder: Folder) -> str:
    """A folder, for the log."""
    return f"{folder.mailbox.path} {display_folder(folder.directory)}"


# ---- names of files


class FileName(NamedTuple):
    """A file name of a Maildir, taken apart.

    base: stays the same when flags or sizes change. flags: the letters behind ":2,".
    """

    base: str
    flags: str = ""


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
