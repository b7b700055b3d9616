"""The proof: a message is put into a person's Maildir and moved to Junk, and the running daemon
must learn it.

`prove` does in a `ProofMailbox` what mail servers and mail programs do there. Afterwards message
and lesson are taken back.

Must leave neither message nor lesson behind, whatever happens in between. (The ledger keeps that
the lesson was taken back, as always.) Must never touch a file but its own message, make a folder in
a person's mailbox, or act there with more rights than its owner.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from string import ascii_lowercase

from spamguard.config.options import Watch
from spamguard.doctor import Step, failed, ok
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.folders.maildir import LocalMailboxes, file_key
from spamguard.folders.roles import SPAM_ROLE, role_lookup
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.records import Vote
from spamguard.storage import Owner
from spamguard.users import Origin

STEP_TIMEOUT = 10.0  # for each step of the watcher
_POLL_SECONDS = 0.1
FROM_ADDRESS = "doctor@localhost.invalid"


def prove(spam_filter: Filter, mailbox: ProofMailbox) -> Iterator[Step]:
    """Each step once it is done; after a failure only those that clean up."""
    digest = ExampleReader(spam_filter.key).digest(mailbox.raw)
    try:
        yield from _prove_lesson(spam_filter, mailbox, digest)
    except OSError as error:
        remedy = "check its permissions, or name another with --maildir"
        yield failed("mailbox", f"{error.filename}: {error.strerror}", remedy)
    finally:
        try:
            mailbox.remove()
        finally:
            for vote in _find_votes(spam_filter, digest):
                spam_filter.forget_digests([digest], user=vote.user, origin=Origin.DOCTOR)
    if votes := _find_votes(spam_filter, digest):
        remedy = "spamguard undo --user NAME --since 1h"
        yield failed("taking back", f"{len(votes)} votes are left", remedy)
    else:
        yield ok("taking back", "message and lesson were removed")


def _prove_lesson(spam_filter: Filter, mailbox: ProofMailbox, digest: bytes) -> Iterator[Step]:
    hint = f"does the daemon run, does its `watch` name {mailbox.path}, may it read it? See its log"
    mailbox.deliver()
    yield ok("delivery", "a marked message was put into INBOX")
    seconds = _wait_until(mailbox.is_sighted)
    if seconds is None:
        yield failed("sighting", f"the watcher has not seen it within {STEP_TIMEOUT:.0f} s", hint)
        return
    yield ok("sighting", f"the watcher has seen it after {seconds:.1f} s")
    mailbox.move_to_junk()
    yield ok("move", f"it was moved to {mailbox.junk}, as a mail program does")
    seconds = _wait_until(lambda: bool(_find_votes(spam_filter, digest)))
    if seconds is None:
        detail = f"the move was not learnt within {STEP_TIMEOUT:.0f} s"
        yield failed("lesson", detail, f"is the role of {mailbox.junk} spam? {hint}")
        return
    (vote, *_) = _find_votes(spam_filter, digest)
    detail = f"learnt as {vote.label} after {seconds:.1f} s, in the name of {vote.user}"
    if vote.label == "spam":
        yield ok("lesson", detail)
    else:
        remedy = "is the folder's role spam? See `watch` in the configuration"
        yield failed("lesson", detail, remedy)


def _find_votes(spam_filter: Filter, digest: bytes) -> list[Vote]:
    return list(spam_filter.ledger.users.votes_on_message(digest))


def _wait_until(check: Callable[[], bool]) -> float | None:
    """After how many seconds it was so; None: not in time."""
    started = time.monotonic()
    while not check():
        if time.monotonic() - started > STEP_TIMEOUT:
            return None
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - started


# ---- the mailbox


def make_message(message_id: str = "") -> bytes:
    """A message of random words to nobody, which resembles no other mail."""
    mark = secrets.token_hex(8)
    words = ["".join(secrets.choice(ascii_lowercase) for _ in range(9)) for _ in range(40)]
    lines = (
        f"From: spamguard doctor <{FROM_ADDRESS}>",
        "To: undisclosed-recipients:;",
        f"Message-ID: {message_id or f'<{mark}@doctor.invalid>'}",
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S +0000', time.gmtime())}",
        f"Subject: spamguard doctor {mark}",
        "Auto-Submitted: auto-generated",
        "",
        "A test of spamguard. It removes this message itself; should you find it, delete it.",
        "",
        " ".join(words),
        "",
    )
    return "\n".join(lines).encode()


def find_junk(
    path: Path, watches: tuple[Watch, ...], special_uses: Mapping[tuple[str, ...], str]
) -> str | None:
    """The directory, below a Maildir, of a folder in which mail is spam; None: there is none.

    watches: of the configuration, if any. special_uses: of folders, as Dovecot names them
    (`doveconf`).
    """
    entries = (*watches, Watch(str(path)))
    with closing(LocalMailboxes(entries, notify=False)) as mailboxes:
        for mailbox in mailboxes.find_mailboxes():
            if mailbox.path == str(path):
                role = role_lookup(entries[mailbox.watch], special_uses)
                directories = [folder.directory for folder in mailboxes.list_folders(mailbox)]
                return next((name for name in directories if role(name) == SPAM_ROLE), None)
    return None


class ProofMailbox:
    """A Maildir, and our message in it.

    junk: as of `find_junk`. state: directory in which the watcher keeps its sightings.
    """

    def __init__(self, path: Path, junk: str, owner: Owner, state: Path) -> None:
        self.path = path
        self.junk = junk
        self.raw = make_message()
        self._owner = owner
        self._sightings = state / SIGHTINGS_FILE
        unique = f"{int(time.time())}.M{secrets.randbelow(10**6)}P{os.getpid()}"
        self._base = f"{unique}.spamguard-doctor,S={len(self.raw)}"

    def deliver(self) -> None:
        with self._owner.impersonate():
            draft = self.path / "tmp" / self._base
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
                file.write(self.raw)
            draft.rename(self.path / "new" / self._base)

    def move_to_junk(self) -> None:
        with self._owner.impersonate():
            if not (files := self._find_files([""])):
                message = "our message is no longer there"
                raise FileNotFoundError(errno.ENOENT, message, str(self.path))
            files[0].rename(self.path / self.junk / "cur" / f"{self._base}:2,S")

    def remove(self) -> None:
        with self._owner.impersonate():
            for file in self._find_files(["", self.junk]):
                file.unlink(missing_ok=True)

    def _find_files(self, folders: Sequence[str]) -> list[Path]:
        # A mail program may have moved ours to `cur`, with flags.
        parts = [self.path / folder / part for folder in folders for part in ("tmp", "new", "cur")]
        return [file for part in parts for file in part.glob(f"{self._base}*")]

    def is_sighted(self) -> bool:
        if not self._sightings.exists():
            return False
        with Sightings.open(self._sightings) as sightings:
            return file_key(self._base) in sightings.name_keys(str(self.path), "")
