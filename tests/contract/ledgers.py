"""Ledgers of each implementation and votes for them, for the tests of ledgers."""

import shutil
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings

from spamguard.ledger import codec
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import Lesson, NewVote
from spamguard.records import Features, Vote

fixed = settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@dataclass
class SqliteShelf:
    """Where ledgers of one implementation stand."""

    directory: Path
    opened: list = field(default_factory=list)
    numbers: count = field(default_factory=count)

    def new(self):
        """An empty ledger, quickly: a copy of the first, its node's name included."""
        first, name = self.directory / "empty.ledger", f"{next(self.numbers)}.ledger"
        if not first.exists():
            SqliteLedger.open(first, "key").close()
        shutil.copy(first, self.directory / name)
        return self.open(name)

    def open(self, name, fingerprint="key"):
        ledger = SqliteLedger.open(self.directory / name, fingerprint, durable=False)
        self.opened.append(ledger)
        return ledger

    def code(self, name) -> str:
        """Python that opens this ledger in another process, as `ledger`."""
        path = str(self.directory / name)
        return (
            "from spamguard.ledger.sqlite import *; from pathlib import Path; ledger = "
            f"SqliteLedger.open(Path({path!r}), 'key')"
        )

    def close(self):
        for ledger in self.opened:
            ledger.close()


SHELVES = {"sqlite": SqliteShelf}


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
