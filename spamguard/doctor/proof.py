"""The proof: a message is put into a Maildir and moved to Junk; the model must learn it, and afterwards nothing of it may be left.

Must leave neither message nor lesson behind, whatever happens in between. (The ledger keeps that a vote was taken back, as always.)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from spamguard.bayes.tables import Tables, counted_state
from spamguard.doctor.box import Box
from spamguard.doctor.step import Step, failed, ok
from spamguard.engine import Filter
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.watcher import Watcher
from spamguard.model import snapshot
from spamguard.owner import Owner
from spamguard.prepare import Preparer
from spamguard.records import Vote
from spamguard.settings import Settings, Watch

SECONDS = 10.0  # for each step of the watcher
_DEBOUNCE = 0.05
_JUNK = ".Junk"
_ORIGIN = "doctor"


@contextmanager
def scratch(spam_filter: Filter) -> Iterator[Box]:
    """A Maildir of its own, with a watcher of its own that teaches the real filter in the name of nobody there is."""
    with TemporaryDirectory(prefix="spamguard-doctor-") as place:
        path, state = Path(place).resolve() / "Maildir", Path(place) / "state"
        for directory in (state, *(path / folder / part for folder in ("", _JUNK) for part in ("tmp", "new", "cur"))):
            directory.mkdir(parents=True)
        watch = Watch(str(path), f"doctor-{secrets.token_hex(4)}", we_file=False, debounce_seconds=_DEBOUNCE, lessons_per_day=0)
        with closing(LocalMailboxes([watch])) as mailboxes:
            with _quiet():
                watcher = Watcher(spam_filter, Settings(state, (), watch=(watch,)), mailboxes, lambda: None)
            with closing(watcher):
                box = Box(path, _JUNK, Owner(0, 0), state, lambda: watcher.turn(_DEBOUNCE))
                _look_around(watcher)
                yield box


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings: what this watcher has to say of the machine when it begins, other steps tell."""
    log = logging.getLogger("spamguard.folders")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _look_around(watcher: Watcher) -> None:
    """Until it watches; the first look teaches nothing."""
    quiet = 0
    while quiet < 3:
        quiet = 0 if watcher.turn(_DEBOUNCE) else quiet + 1


def prove(spam_filter: Filter, box: Box, hint: str) -> Iterator[Step]:
    """Each step as it was done; after one that failed only what cleans up. hint: the remedy if the watcher does not see the mailbox."""
    digest = Preparer(spam_filter.key).digest(box.raw)
    before = _Known(spam_filter)
    try:
        yield from _teach(spam_filter, box, digest, hint)
    except OSError as error:
        yield failed("mailbox", f"{error.filename}: {error.strerror}", "check its permissions, or name another with --maildir")
    finally:
        try:
            box.remove()
        finally:
            taken = _forget(spam_filter, digest)
    yield from _nothing_left(spam_filter, digest, before, taken)


def _teach(spam_filter: Filter, box: Box, digest: bytes, hint: str) -> Iterator[Step]:
    box.deliver()
    yield ok("delivery", "a marked message was put into INBOX")
    seconds = box.wait(box.seen, SECONDS)
    if seconds is None:
        yield failed("sighting", f"the watcher has not seen it within {SECONDS:.0f} s", hint)
        return
    yield ok("sighting", f"the watcher has seen it after {seconds:.1f} s")
    earlier, lessons = spam_filter.judge(box.raw), dict(spam_filter.status().classes)
    box.move()
    yield ok("move", f"it was moved to {box.junk}, as a mail program does")
    seconds = box.wait(lambda: bool(_votes(spam_filter, digest)), SECONDS)
    if seconds is None:
        yield failed("lesson", f"the move was not learnt within {SECONDS:.0f} s", f"is the role of {box.junk} spam? {hint}")
        return
    (vote, *_) = _votes(spam_filter, digest)
    yield _lesson(vote, lessons, dict(spam_filter.status().classes), seconds)
    later = spam_filter.judge(box.raw)
    odds = f"log-odds {earlier.log_odds:+.2f}, {later.log_odds:+.2f}"
    told = f"probability {earlier.probability:.4f} before, {later.probability:.4f} after ({odds})"
    if later.log_odds > earlier.log_odds:
        yield ok("verdict", told)
    else:
        yield failed("verdict", told, "make the tables anew: spamguard rebuild")


def _lesson(vote: Vote, before: dict[str, int], after: dict[str, int], seconds: float) -> Step:
    counted = ", ".join(f"{name} {before.get(name, 0):,} -> {number:,}" for name, number in after.items() if before.get(name, 0) != number)
    told = f"learnt as {vote.label} after {seconds:.1f} s, in the name of {vote.user}, from {vote.origin}; lessons: {counted or 'the same'}"
    if vote.label == "spam" and counted:
        return ok("lesson", told)
    return failed("lesson", told, "is the folder's role spam? See `watch` in the configuration")


def _votes(spam_filter: Filter, digest: bytes) -> list[Vote]:
    return list(spam_filter.ledger.users.of_message(digest))


def _forget(spam_filter: Filter, digest: bytes) -> int:
    """How many votes were taken back."""
    users = [vote.user for vote in _votes(spam_filter, digest)]
    return sum(spam_filter.forget_ready([digest], user=user, origin=_ORIGIN)[0] for user in users)


class _Known:
    """What the filter holds: number of the last event, and a fingerprint of every count, in tables of some size."""

    def __init__(self, spam_filter: Filter) -> None:
        with TemporaryDirectory(prefix="spamguard-doctor-") as place:
            path = Path(place) / "tables.bin"
            spam_filter.save_tables(path)
            tables = snapshot.read(path)
        self.bits, self.counts = tables.bits, _fingerprint(tables)
        self.events = spam_filter.ledger.last_seq()


def _fingerprint(tables: Tables) -> bytes:
    found = blake2b()
    for name, values in counted_state(tables):
        found.update(f"{name} {values.shape}".encode())
        found.update(values.tobytes())
    return found.digest()


def _nothing_left(spam_filter: Filter, digest: bytes, before: _Known, taken: int) -> Iterator[Step]:
    if left := _votes(spam_filter, digest):
        yield failed("taking back", f"{len(left)} votes are left", "spamguard undo --user NAME --since 1h")
        return
    after = _Known(spam_filter)
    if after.counts == before.counts:
        yield ok(
            "taking back", "message and lesson were removed; all counts are as before, bit for bit" if taken else "the message was removed"
        )
    elif after.bits != before.bits:
        yield ok("taking back", "message and lesson were removed; the tables got another size meanwhile, so the counts cannot be compared")
    elif after.events == before.events + 2 * taken:
        yield failed("taking back", "the counts are not as before", "make the tables anew: spamguard rebuild")
    else:
        yield ok("taking back", "message and lesson were removed; others have taught meanwhile, so the counts cannot be compared")
