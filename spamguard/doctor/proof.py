"""The proof: a message is put into a Maildir and moved to Junk, and the filter must learn it.

`prove` does in a `ProofMailbox` what mail servers and mail programs do there. `scratch_mailbox` is
one in a temporary directory with a watcher of its own; in a person's mailbox the daemon watches.
Afterwards message and lesson are taken back, and every count in the tables must be as before.

Must leave neither message nor lesson behind, whatever happens in between. (Of a lesson in a
person's mailbox the ledger keeps that it was taken back, as always.) Must never touch a file but
its own message, make a folder in a person's mailbox, or act there with more rights than its owner.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from hashlib import blake2b
from mailbox import Maildir
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory

from spamguard import keys
from spamguard.bayes.tables import counted_arrays
from spamguard.config.options import Settings, Watch
from spamguard.doctor import Step, failed, ok
from spamguard.engine import snapshot
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.folders.maildir import LocalMailboxes, file_key
from spamguard.folders.roles import SPAM_ROLE, role_lookup
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.folders.watcher import Watcher
from spamguard.records import Vote
from spamguard.storage import KEY_FILE, Owner
from spamguard.users import Origin

STEP_TIMEOUT = 10.0  # for each step of the watcher
_DEBOUNCE_SECONDS = 0.05
FROM_ADDRESS = "doctor@localhost.invalid"
_REBUILD_REMEDY = "build the tables again: spamguard rebuild"


def prove(spam_filter: Filter, mailbox: ProofMailbox, hint: str) -> Iterator[Step]:
    """Each step once it is done; after a failure only those that clean up.

    hint: the remedy if the watcher does not see the mailbox.
    """
    digest = ExampleReader(spam_filter.key).digest(mailbox.raw)
    before = _learned_state(spam_filter)
    try:
        yield from _prove_lesson(spam_filter, mailbox, digest, hint)
    except OSError as error:
        remedy = "check its permissions, or name another with --maildir"
        yield failed("mailbox", f"{error.filename}: {error.strerror}", remedy)
    finally:
        try:
            mailbox.remove()
        finally:
            retracted = sum(
                spam_filter.forget_digests([digest], user=vote.user, origin=Origin.DOCTOR)[0]
                for vote in _find_votes(spam_filter, digest)
            )
    counts, events = _learned_state(spam_filter)
    detail = "message and lesson were removed"
    if votes := _find_votes(spam_filter, digest):
        remedy = "spamguard undo --user NAME --since 1h"
        yield failed("taking back", f"{len(votes)} votes are left", remedy)
    elif counts == before[0]:
        detail += "; all counts are as before, bit for bit"
        yield ok("taking back", detail if retracted else "the message was removed")
    elif events != before[1] + 2 * retracted:
        yield ok("taking back", f"{detail}; others have taught meanwhile")
    else:
        yield failed("taking back", "the counts are not as before", _REBUILD_REMEDY)


def _prove_lesson(
    spam_filter: Filter, mailbox: ProofMailbox, digest: bytes, hint: str
) -> Iterator[Step]:
    mailbox.deliver()
    yield ok("delivery", "a marked message was put into INBOX")
    seconds = mailbox.wait_until(mailbox.is_sighted, STEP_TIMEOUT)
    if seconds is None:
        yield failed("sighting", f"the watcher has not seen it within {STEP_TIMEOUT:.0f} s", hint)
        return
    yield ok("sighting", f"the watcher has seen it after {seconds:.1f} s")
    earlier, lessons = spam_filter.judge(mailbox.raw), dict(spam_filter.status().classes)
    mailbox.move_to_junk()
    yield ok("move", f"it was moved to {mailbox.junk}, as a mail program does")
    seconds = mailbox.wait_until(lambda: bool(_find_votes(spam_filter, digest)), STEP_TIMEOUT)
    if seconds is None:
        detail = f"the move was not learnt within {STEP_TIMEOUT:.0f} s"
        yield failed("lesson", detail, f"is the role of {mailbox.junk} spam? {hint}")
        return
    (vote, *_) = _find_votes(spam_filter, digest)
    counts = ", ".join(
        f"{label} {lessons.get(label, 0):,} -> {count:,}"
        for label, count in spam_filter.status().classes.items()
        if lessons.get(label, 0) != count
    )
    detail = (
        f"learnt as {vote.label} after {seconds:.1f} s, in the name of {vote.user}, "
        f"from {vote.origin}; lessons: {counts or 'the same'}"
    )
    if vote.label == "spam" and counts:
        yield ok("lesson", detail)
    else:
        remedy = "is the folder's role spam? See `watch` in the configuration"
        yield failed("lesson", detail, remedy)
    later = spam_filter.judge(mailbox.raw)
    detail = (
        f"probability {earlier.probability:.4f} before, {later.probability:.4f} after "
        f"(log-odds {earlier.log_odds:+.2f}, {later.log_odds:+.2f})"
    )
    if later.log_odds > earlier.log_odds:
        yield ok("verdict", detail)
    else:
        yield failed("verdict", detail, _REBUILD_REMEDY)


def _find_votes(spam_filter: Filter, digest: bytes) -> list[Vote]:
    return list(spam_filter.ledger.users.votes_on_message(digest))


def _learned_state(spam_filter: Filter) -> tuple[bytes, int]:
    """What a filter has learnt: a fingerprint of every count in its tables, and the number of the
    last event.
    """
    with TemporaryDirectory() as directory:
        path = Path(directory) / "tables.bin"
        spam_filter.save_tables(path)
        tables = snapshot.read_snapshot(path)
    fingerprint = blake2b()
    for name, counts in counted_arrays(tables):
        fingerprint.update(f"{name} {counts.shape}".encode())
        fingerprint.update(counts.tobytes())
    return fingerprint.digest(), spam_filter.ledger.event_count()


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

    junk: as of `find_junk`. state: directory in which the watcher keeps its sightings. run_watcher:
    waits a moment, in which the watcher works.
    """

    def __init__(
        self, path: Path, junk: str, owner: Owner, state: Path, run_watcher: Callable[[], object]
    ) -> None:
        self.path = path
        self.junk = junk
        self.raw = make_message()
        self._owner = owner
        self._sightings = state / SIGHTINGS_FILE
        self._run_watcher = run_watcher
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
        """Our files there; a mail program may have moved ours to `cur`, with flags."""
        parts = [self.path / folder / part for folder in folders for part in ("tmp", "new", "cur")]
        return [file for part in parts for file in part.glob(f"{self._base}*")]

    def is_sighted(self) -> bool:
        if not self._sightings.exists():
            return False
        with Sightings.open(self._sightings) as sightings:
            return file_key(self._base) in sightings.name_keys(str(self.path), "")

    def wait_until(self, check: Callable[[], bool], timeout: float) -> float | None:
        """Wait until `check` is true: after how many seconds it was, None if not in time."""
        started = time.monotonic()
        while not check():
            if time.monotonic() - started > timeout:
                return None
            self._run_watcher()
        return time.monotonic() - started


@contextmanager
def scratch_filter(key: bytes) -> Iterator[Filter]:
    """A filter in a temporary directory, so that the proof leaves no event in the real ledger."""
    with TemporaryDirectory(prefix="spamguard-doctor-") as directory:
        keys.store_key(Path(directory) / KEY_FILE, key)
        with Filter.open(directory) as spam_filter:
            yield spam_filter


@contextmanager
def scratch_mailbox(spam_filter: Filter) -> Iterator[ProofMailbox]:
    """A mailbox in a temporary directory, whose watcher teaches the filter as a made-up user."""
    with TemporaryDirectory(prefix="spamguard-doctor-") as directory:
        path, state = Path(directory).resolve() / "Maildir", spam_filter.directory
        for folder in (path, path / ".Junk"):
            Maildir(folder)  # makes it
        user = f"doctor-{secrets.token_hex(4)}"
        watch = Watch(str(path), user, we_file=False, lessons_per_day=0)
        with closing(LocalMailboxes([watch])) as mailboxes:
            settings = Settings(state, (), watch=(watch,))
            logging.disable(logging.WARNING)  # other steps say what a new watcher warns of
            try:
                watcher = Watcher(spam_filter, settings, mailboxes, lambda: None, _DEBOUNCE_SECONDS)
            finally:
                logging.disable(logging.NOTSET)
            run_watcher = partial(watcher.run_once, _DEBOUNCE_SECONDS)
            with closing(watcher):
                quiet = 0  # until it has nothing to do: the first scan teaches nothing
                while quiet < 3:
                    quiet = 0 if run_watcher() else quiet + 1
                yield ProofMailbox(path, ".Junk", Owner(0, 0), state, run_watcher)
