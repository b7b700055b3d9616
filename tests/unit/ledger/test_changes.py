"""Walking the log: the same changes, however many people have voted and whatever of it is kept."""

import random

import pytest

from spamguard.ledger import sqlite
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import Lesson, lesson_changes
from tests.contract.ledgers import fold, lessons, new_vote, packed


@pytest.fixture
def ledger(tmp_path):
    with SqliteLedger.open(tmp_path / "receipts.ledger", "key", durable=False) as opened:
        yield opened


def crowd(number: int, seed: int = 1) -> list:
    """Votes of some people on some messages, now and then taken back or by another extractor; all
    see them in another form.
    """
    rng = random.Random(seed)
    return [
        new_vote(
            rng.choice(["spam", "ham", "ham", None]),
            rng.randbytes(1) if not rng.randrange(9) else bytes((rng.randrange(1, 5),)),
            str(rng.randrange(12)),
            tokens=(1, 2 + rng.randrange(9)),
            extractor=rng.choice([1, 2]),
        )
        for _ in range(number)
    ]


@pytest.mark.parametrize("extractor", [None, 1, 2])
def test_how_the_log_is_cut_changes_nothing(ledger, monkeypatch, extractor):
    ledger.append(crowd(400))
    monkeypatch.setattr(sqlite, "_READ_BATCH", 7)
    found = list(ledger.changes_after(0, extractor=extractor))
    assert found == list(lesson_changes({}, enumerate(ledger.all_votes(), 1), extractor))
    tables = {}
    fold(tables, found)
    assert tables == lessons(ledger, extractor=extractor)


def test_compacting_behind_a_walk_takes_nothing_from_it(ledger, monkeypatch):
    ledger.append(crowd(400))
    log = list(ledger.all_votes())
    monkeypatch.setattr(sqlite, "_READ_BATCH", 7)
    found = []
    for change in ledger.changes_after(0):
        found.append(change)
        if change[0] % 70 == 0:
            assert ledger.compact(change[0]) > 0
    before = dict(enumerate(lesson_changes({}, enumerate(log, 1)), 1))
    assert found == [before[seq] for seq, _, _ in found]
    tables = {}
    fold(tables, found)
    assert tables == lessons(ledger)


def test_lessons_of_a_crowd_are_found_without_reading_what_everybody_else_has_sent_in(ledger):
    ledger.append(
        [
            new_vote(("spam", "ham")[number % 3 == 0], b"d", str(number), tokens=(number + 1,))
            for number in range(400)
        ]
    )
    ledger.append(
        [
            new_vote("spam", b"c", "anna"),
            new_vote("ham", b"e", "anna"),
            new_vote("spam", b"e", "ben"),
        ]
    )
    asked = []
    ledger._db.connection.set_trace_callback(lambda statement: asked.append("packed" in statement))
    found = list(ledger.lessons())
    ledger._db.connection.set_trace_callback(None)
    assert found == [
        Lesson(b"c", "spam", packed(1, 2), b"\1\0"),
        Lesson(b"d", "spam", packed(2), b"\1\0"),
    ]
    assert sum(asked) == 1 + 1, "of messages with one vote, and of the crowd's lesson"
