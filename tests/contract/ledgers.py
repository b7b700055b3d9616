"""Ledgers of each implementation and votes for them, for the tests of ledgers."""

import fcntl
import pickle
import shutil
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings

from spamguard.ledger import codec
from spamguard.ledger.events import LogRow, SharedEvent, next_chain
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import Lesson, NewVote, resolve_lessons
from spamguard.records import Features, Vote

fixed = settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def winning_votes(votes: Iterable[Vote]) -> dict[tuple[bytes, str], Vote]:
    """The vote in force of each key (digest, user)."""
    return {(vote.digest, vote.user): vote for vote in sorted(votes, key=lambda one: one.version)}


def resolve_lesson(votes: Iterable[Vote], extractor: int | None = None) -> Lesson | None:
    """What the votes on one message teach."""
    return next(resolve_lessons(votes, extractor), None)


@dataclass
class SqliteShelf:
    """Where ledgers of one implementation stand. start: the number before the first event's."""

    directory: Path
    kind = SqliteLedger
    start = 0
    opened: list = field(default_factory=list)
    numbers: count = field(default_factory=count)

    def new(self):
        """An empty ledger, quickly: a copy of the first, its node's name included."""
        first, name = self.directory / "empty.ledger", f"{next(self.numbers)}.ledger"
        if not first.exists():
            self.kind.open(first, "key").close()
        shutil.copy(first, self.directory / name)
        return self.open(name)

    def open(self, name, fingerprint="key"):
        ledger = self.kind.open(self.directory / name, fingerprint, durable=False)
        self.opened.append(ledger)
        return ledger

    def code(self, name) -> str:
        """Python that opens this ledger in another process, as `ledger`."""
        path = str(self.directory / name)
        return (
            f"from {self.kind.__module__} import *; from pathlib import Path; ledger = "
            f"{self.kind.__name__}.open(Path({path!r}), 'key')"
        )

    def close(self):
        for ledger in self.opened:
            ledger.close()


class LogFile:
    """A shared log in a file, by the rules of the database: one writer at a time, and an event that
    is there already keeps its position.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, events: Iterable[SharedEvent]) -> None:
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            rows = self._read(file)
            push(rows, events)
            file.truncate(0)
            pickle.dump(rows, file)

    def read(self, after: int) -> list[LogRow]:
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return self._read(file)[after:]

    def _read(self, file) -> list[LogRow]:
        file.seek(0)
        return pickle.load(file) if file.read(1) and not file.seek(0) else []


def push(rows: list[LogRow], events: Iterable[SharedEvent]) -> None:
    """Append events to a log that is a list."""
    known = {row.event[:4] for row in rows}
    for event in events:
        if event[:4] not in known:
            known.add(event[:4])
            chain = rows[-1].chain if rows else b"\0"
            rows.append(LogRow(len(rows) + 1, next_chain(chain, event), event))


class CutOffLedger(SqliteLedger):
    """A ledger that has joined a shared log, which cannot be reached."""

    @classmethod
    def open(cls, path, fingerprint, *, durable=True):
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # `join` needs a ledger that nobody else has open
            ledger = super().open(path, fingerprint, durable=durable)
            if ledger.shared is None:
                ledger.join()
                ledger.close()
                ledger = super().open(path, fingerprint, durable=durable)
            return ledger


class ConnectedLedger(CutOffLedger):
    """A ledger that has joined a shared log, with a courier at once behind each vote."""

    @contextmanager
    def _pushing(self):
        yield
        log = LogFile(self.path.with_suffix(".log"))
        log.append(self.shared.read_pending(1_000_000, 1 << 40))
        self.shared.apply(log.read(self.shared.head().position))


class CutOffShelf(SqliteShelf):
    kind = CutOffLedger
    start = PROVISIONAL - 1


class ConnectedShelf(SqliteShelf):
    kind = ConnectedLedger


SHELVES = {"sqlite": SqliteShelf, "connected": ConnectedShelf, "cut off": CutOffShelf}


def packed(*tokens: int) -> bytes:
    return codec.pack(
        Features(np.array(tokens, np.uint32), np.zeros(1, np.uint8), np.zeros(1, np.int16))
    )


def new_vote(label, digest=b"d", user="", *, tokens=(1, 2), extractor=1) -> NewVote:
    return NewVote(digest, user, label, packed(*tokens), b"\1\0", "cli", 1_700_000_000, extractor)


def foreign_vote(label, digest=b"d", user="", clock=1, *, node="elsewhere", extractor=1) -> Vote:
    features = packed(clock) if label else b""
    return Vote(digest, user, clock, node, label, features, b"", "folder", 5, extractor)


def fold(tables: dict[bytes, Lesson], found) -> int:
    """Folds changes into tables as a reader does, and gives the last seq; wrong subtraction is an
    assertion.
    """
    last = 0
    for seq, before, after in found:
        assert seq > last
        last = seq
        if before is not None:
            assert tables.pop(before.digest) == before
        if after is not None:
            assert after.digest not in tables
            tables[after.digest] = after
    return last


def lessons(ledger, **kwargs) -> dict[bytes, Lesson]:
    found = list(ledger.lessons(**kwargs))
    assert [one.digest for one in found] == sorted({one.digest for one in found})
    assert list(ledger.lessons(**kwargs, backwards=True)) == found[::-1]
    return {one.digest: one for one in found}
