"""Walking the log: the same changes, however many people have voted and whatever of it is kept."""

import random

import pytest

from spamguard.ledger import sqlite
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import lesson_changes
from tests.contract.ledgers import fold, lessons, new_vote


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
