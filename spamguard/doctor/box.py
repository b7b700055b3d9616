"""A Maildir in which a marked message is put, moved and removed again, as mail servers and programs do it.

Must never touch any file but its own message, never make a folder in a person's mailbox, and never act there with more rights than the
mailbox's owner has.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from spamguard.folders import names
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.rules import role_of
from spamguard.folders.sightings import FILE, Sightings
from spamguard.folders.values import Kind, Role
from spamguard.owner import Owner
from spamguard.settings import Watch

_JUNK = Role(Kind.CLASS, "spam")
_PARTS = ("new", "cur")
_WORDS = 40
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def message() -> bytes:
    """A message that says nothing, to nobody: random words, so that it resembles no mail that there is."""
    mark = secrets.token_hex(8)
    words = ["".join(secrets.choice(_LETTERS) for _ in range(9)) for _ in range(_WORDS)]
    head = (
        f"From: spamguard doctor <doctor@localhost.invalid>\nTo: undisclosed-recipients:;\nMessage-ID: <{mark}@doctor.invalid>\n"
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S +0000', time.gmtime())}\nSubject: spamguard doctor {mark}\n"
        "Auto-Submitted: auto-generated\n\nA test of spamguard. It removes this message itself; should you find it, delete it.\n"
    )
    return f"{head}\n{' '.join(words)}\n".encode()


def junk_of(path: Path, watches: tuple[Watch, ...], special: Mapping[tuple[str, ...], str]) -> str | None:
    """The directory, below a Maildir, of a folder in which mail is spam; None: there is none.

    watches: of the configuration, if known. special: what Dovecot says about folders (`doveconf`).
    """
    entries = (*watches, Watch(str(path)))
    with closing(LocalMailboxes(entries, notify=False)) as mailboxes:
        for mailbox in mailboxes.users():
            if mailbox.path == str(path):
                role = role_of(entries[mailbox.watch], special)
                return next((place.directory for place in mailboxes.folders(mailbox) if role(place.directory) == _JUNK), None)
    return None


class Box:
    """The message in its mailbox. state: where the watcher keeps its sightings. turn: waits a moment, in which the watcher works."""

    def __init__(self, path: Path, junk: str, owner: Owner, state: Path, turn: Callable[[], object]) -> None:
        self._path = path
        self.junk = junk
        self._owner = owner
        self._sightings = state / FILE
        self._turn = turn
        self.raw = message()
        self._base = f"{int(time.time())}.M{secrets.randbelow(10**6)}P{os.getpid()}.spamguard-doctor,S={len(self.raw)}"

    def deliver(self) -> None:
        """As a mail server does."""
        with self._owner.acting():
            draft = self._path / "tmp" / self._base
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
                file.write(self.raw)
            draft.rename(self._path / "new" / self._base)

    def move(self) -> None:
        """As a mail program does when somebody says that it is junk."""
        with self._owner.acting():
            found = next(iter(self._found("")), None)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "our message is no longer there", str(self._path))
            found.rename(self._path / self.junk / "cur" / f"{self._base}:2,S")

    def remove(self) -> None:
        """Wherever it is now."""
        with self._owner.acting():
            for path in (*self._found(""), *self._found(self.junk), self._path / "tmp" / self._base):
                with suppress(FileNotFoundError):
                    path.unlink()

    def _found(self, directory: str) -> list[Path]:
        """A mail program may have moved it to `cur`, with flags behind its name, meanwhile."""
        parts = [self._path / directory / part for part in _PARTS]
        return [file for part in parts if part.is_dir() for file in part.iterdir() if file.name.startswith(self._base)]

    def seen(self) -> bool:
        """Whether the watcher knows of the message in INBOX."""
        name = names.message(self._base)
        if name is None or not self._sightings.exists():
            return False
        with Sightings.open(self._sightings) as sightings:
            return names.key(name.base) in sightings.names(str(self._path), "")

    def wait(self, check: Callable[[], bool], seconds: float) -> float | None:
        """Until something is so: after how many seconds it was, None if not within so many."""
        begun = time.monotonic()
        while not check():
            if time.monotonic() - begun > seconds:
                return None
            self._turn()
        return time.monotonic() - begun
