"""A Maildir in which a marked message is put, moved and removed again, as mail servers and programs
do it.

Must never touch any file but its own message, never make a folder in a person's mailbox, and never
act there with more rights than the mailbox's owner has.

The proof: a message is put into a Maildir and moved to Junk; the model must learn it, and
afterwards nothing of it may be left.

Must leave neither message nor lesson behind, whatever happens in between. (The ledger keeps that a
vote was taken back, as always.)
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from spamguard.bayes.tables import Tables, counted_arrays
from spamguard.config.options import Settings, Watch
from spamguard.doctor.checks import Step, failed, ok
from spamguard.engine import snapshot
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.folders import maildir
from spamguard.folders.local import LocalMailboxes
from spamguard.folders.mailboxes import FolderKind, Role
from spamguard.folders.roles import role_lookup
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.folders.watcher import Watcher
from spamguard.records import Vote
from spamguard.storage import Owner

_SPAM_ROLE = Role(FolderKind.CLASS, "spam")
_PARTS = ("new", "cur")
_WORD_COUNT = 40
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_message() -> bytes:
    """A message that says nothing, to nobody: random words, so that it resembles no mail that there
    is.
    """
    mark = secrets.token_hex(8)
    words = ["".join(secrets.choice(_LETTERS) for _ in range(9)) for _ in range(_WORD_COUNT)]
    head = (
        f"From: spamguard doctor <doctor@localhost.invalid>\nTo: undisclosed-recipients:;\nMessage-ID: <{mark}@doctor.invalid>\n"
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S +0000', time.gmtime())}\nSubject: spamguard doctor {mark}\n"
        "Auto-Submitted: auto-generated\n\nA test of spamguard. It removes this message itself; should you find it, delete it.\n"
    )
    return f"{head}\n{' '.join(words)}\n".encode()


def find_junk(
    path: Path, watches: tuple[Watch, ...], special: Mapping[tuple[str, ...], str]
) -> str | None:
    """The directory, below a Maildir, of a folder in which mail is spam; None: there is none.

    watches: of the configuration, if known. special: what Dovecot says about folders (`doveconf`).
    """
    entries = (*watches, Watch(str(path)))
    with closing(LocalMailboxes(entries, notify=False)) as mailboxes:
        for mailbox in mailboxes.find_mailboxes():
            if mailbox.path == str(path):
                role = role_lookup(entries[mailbox.watch], special)
                return next(
                    (
                        place.directory
                        for place in mailboxes.list_folders(mailbox)
                        if role(place.directory) == _SPAM_ROLE
                    ),
                    None,
                )
    return None


class ProofMailbox:
    """The message in its mailbox. state: where the watcher keeps its sightings. turn: waits a
    moment, in which the watcher works.
    """

    def __init__(
        self, path: Path, junk: str, owner: Owner, state: Path, run_watcher: Callable[[], object]
    ) -> None:
        self._path = path
        self.junk = junk
        self._owner = owner
        self._sightings = state / SIGHTINGS_FILE
        self._run_watcher = run_watcher
        self.raw = make_message()
        self._base = f"{int(time.time())}.M{secrets.randbelow(10**6)}P{os.getpid()}.spamguard-doctor,S={len(self.raw)}"

    def deliver(self) -> None:
        """As a mail server does."""
        with self._owner.impersonate():
            draft = self._path / "tmp" / self._base
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor
                file.write(self.raw)
            draft.rename(self._path / "new" / self._base)

    def move_to_junk(self) -> None:
        """As a mail program does when somebody says that it is junk."""
        with self._owner.impersonate():
            found = next(iter(self._find_files("")), None)
            if found is None:
                raise FileNotFoundError(
                    errno.ENOENT, "our message is no longer there", str(self._path)
                )
            found.rename(self._path / self.junk / "cur" / f"{self._base}:2,S")

    def remove(self) -> None:
        """Wherever it is now."""
        with self._owner.impersonate():
            for path in (
                *self._find_files(""),
                *self._find_files(self.junk),
                self._path / "tmp" / self._base,
            ):
                with suppress(FileNotFoundError):
                    path.unlink()

    def _find_files(self, directory: str) -> list[Path]:
        """A mail program may have moved it to `cur`, with flags behind its name, meanwhile."""
        parts = [self._path / directory / part for part in _PARTS]
        return [
            file
            for part in parts
            if part.is_dir()
            for file in part.iterdir()
            if file.name.startswith(self._base)
        ]

    def is_sighted(self) -> bool:
        """Whether the watcher knows of the message in INBOX."""
        name = maildir.parse_file_name(self._base)
        if name is None or not self._sightings.exists():
            return False
        with Sightings.open(self._sightings) as sightings:
            return maildir.base_name_key(name.base) in sightings.name_keys(str(self._path), "")

    def wait_until(self, check: Callable[[], bool], seconds: float) -> float | None:
        """Until something is so: after how many seconds it was, None if not within so many."""
        begun = time.monotonic()
        while not check():
            if time.monotonic() - begun > seconds:
                return None
            self._run_watcher()
        return time.monotonic() - begun


STEP_TIMEOUT = 10.0  # for each step of the watcher
_DEBOUNCE_SECONDS = 0.05
_JUNK_FOLDER = ".Junk"
_ORIGIN = "doctor"


@contextmanager
def scratch_mailbox(spam_filter: Filter) -> Iterator[ProofMailbox]:
    """A Maildir of its own, with a watcher of its own that teaches the real filter in the name of
    nobody there is.
    """
    with TemporaryDirectory(prefix="spamguard-doctor-") as place:
        path, state = Path(place).resolve() / "Maildir", Path(place) / "state"
        for directory in (
            state,
            *(
                path / folder / part
                for folder in ("", _JUNK_FOLDER)
                for part in ("tmp", "new", "cur")
            ),
        ):
            directory.mkdir(parents=True)
        watch = Watch(
            str(path),
            f"doctor-{secrets.token_hex(4)}",
            we_file=False,
            debounce=_DEBOUNCE_SECONDS,
            lessons_per_day=0,
        )
        with closing(LocalMailboxes([watch])) as mailboxes:
            with _silence_warnings():
                watcher = Watcher(
                    spam_filter, Settings(state, (), watch=(watch,)), mailboxes, lambda: None
                )
            with closing(watcher):
                box = ProofMailbox(
                    path,
                    _JUNK_FOLDER,
                    Owner(0, 0),
                    state,
                    lambda: watcher.run_once(_DEBOUNCE_SECONDS),
                )
                _scan_first(watcher)
                yield box


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Without warnings: what this watcher has to say of the machine when it begins, other steps
    tell.
    """
    log = logging.getLogger("spamguard.folders")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _scan_first(watcher: Watcher) -> None:
    """Until it watches; the first look teaches nothing."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if watcher.run_once(_DEBOUNCE_SECONDS) else quiet + 1


def prove(spam_filter: Filter, box: ProofMailbox, hint: str) -> Iterator[Step]:
    """Each step as it was done; after one that failed only what cleans up. hint: the remedy if the
    watcher does not see the mailbox.
    """
    digest = ExampleReader(spam_filter.key).digest(box.raw)
    before = _LearnedState(spam_filter)
    try:
        yield from _prove_lesson(spam_filter, box, digest, hint)
    except OSError as error:
        yield failed(
            "mailbox",
            f"{error.filename}: {error.strerror}",
            "check its permissions, or name another with --maildir",
        )
    finally:
        try:
            box.remove()
        finally:
            taken = _take_back(spam_filter, digest)
    yield from _check_taken_back(spam_filter, digest, before, taken)


def _prove_lesson(
    spam_filter: Filter, box: ProofMailbox, digest: bytes, hint: str
) -> Iterator[Step]:
    box.deliver()
    yield ok("delivery", "a marked message was put into INBOX")
    seconds = box.wait_until(box.is_sighted, STEP_TIMEOUT)
    if seconds is None:
        yield failed("sighting", f"the watcher has not seen it within {STEP_TIMEOUT:.0f} s", hint)
        return
    yield ok("sighting", f"the watcher has seen it after {seconds:.1f} s")
    earlier, lessons = spam_filter.judge(box.raw), dict(spam_filter.status().classes)
    box.move_to_junk()
    yield ok("move", f"it was moved to {box.junk}, as a mail program does")
    seconds = box.wait_until(lambda: bool(_find_votes(spam_filter, digest)), STEP_TIMEOUT)
    if seconds is None:
        yield failed(
            "lesson",
            f"the move was not learnt within {STEP_TIMEOUT:.0f} s",
            f"is the role of {box.junk} spam? {hint}",
        )
        return
    (vote, *_) = _find_votes(spam_filter, digest)
    yield _check_lesson(vote, lessons, dict(spam_filter.status().classes), seconds)
    later = spam_filter.judge(box.raw)
    odds = f"log-odds {earlier.log_odds:+.2f}, {later.log_odds:+.2f}"
    told = f"probability {earlier.probability:.4f} before, {later.probability:.4f} after ({odds})"
    if later.log_odds > earlier.log_odds:
        yield ok("verdict", told)
    else:
        yield failed("verdict", told, "make the tables anew: spamguard rebuild")


def _check_lesson(
    vote: Vote, before: dict[str, int], after: dict[str, int], seconds: float
) -> Step:
    counted = ", ".join(
        f"{name} {before.get(name, 0):,} -> {number:,}"
        for name, number in after.items()
        if before.get(name, 0) != number
    )
    told = f"learnt as {vote.label} after {seconds:.1f} s, in the name of {vote.user}, from {vote.origin}; lessons: {counted or 'the same'}"
    if vote.label == "spam" and counted:
        return ok("lesson", told)
    return failed("lesson", told, "is the folder's role spam? See `watch` in the configuration")


def _find_votes(spam_filter: Filter, digest: bytes) -> list[Vote]:
    return list(spam_filter.ledger.users.votes_on_message(digest))


def _take_back(spam_filter: Filter, digest: bytes) -> int:
    """How many votes were taken back."""
    users = [vote.user for vote in _find_votes(spam_filter, digest)]
    return sum(spam_filter.forget_digests([digest], user=user, origin=_ORIGIN)[0] for user in users)


class _LearnedState:
    """What the filter holds: number of the last event, and a fingerprint of every count, in tables
    of some size.
    """

    def __init__(self, spam_filter: Filter) -> None:
        with TemporaryDirectory(prefix="spamguard-doctor-") as place:
            path = Path(place) / "tables.bin"
            spam_filter.save_tables(path)
            tables = snapshot.read_snapshot(path)
        self.bits, self.counts = tables.bits, _fingerprint_tables(tables)
        self.events = spam_filter.ledger.last_seq()


def _fingerprint_tables(tables: Tables) -> bytes:
    found = blake2b()
    for name, values in counted_arrays(tables):
        found.update(f"{name} {values.shape}".encode())
        found.update(values.tobytes())
    return found.digest()


def _check_taken_back(
    spam_filter: Filter, digest: bytes, before: _LearnedState, taken: int
) -> Iterator[Step]:
    if left := _find_votes(spam_filter, digest):
        yield failed(
            "taking back", f"{len(left)} votes are left", "spamguard undo --user NAME --since 1h"
        )
        return
    after = _LearnedState(spam_filter)
    if after.counts == before.counts:
        yield ok(
            "taking back",
            "message and lesson were removed; all counts are as before, bit for bit"
            if taken
            else "the message was removed",
        )
    elif after.bits != before.bits:
        yield ok(
            "taking back",
            "message and lesson were removed; the tables got another size meanwhile, so the counts cannot be compared",
        )
    elif after.events == before.events + 2 * taken:
        yield failed(
            "taking back", "the counts are not as before", "make the tables anew: spamguard rebuild"
        )
    else:
        yield ok(
            "taking back",
            "message and lesson were removed; others have taught meanwhile, so the counts cannot be compared",
        )
