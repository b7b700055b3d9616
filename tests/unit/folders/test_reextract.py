"""After an upgrade: what was taught before is read again from where the mail lies now, as the vote
that it was.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from spamguard.folders import watcher
from spamguard.records import EXTRACTOR, Vote
from tests.unit.folders.maildirs import deliver, move
from tests.unit.folders.watched import MAIL, Watched


def upgraded(one: Watched) -> None:
    """Let an older extractor have read everything so far, and start the daemon again."""
    one.stop()
    one.filter.close()
    with closing(sqlite3.connect(one.state / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET extractor = extractor - 1")
        db.execute("UPDATE events SET packed = x'00', scores = x'07' WHERE label IS NOT NULL")
        db.execute("DELETE FROM meta WHERE key LIKE 'tables.%'")
    one.reopen()
    one.start()


def taught(one: Watched) -> list[Path]:
    """Moved by anna: two messages to Junk, one to Archive, and one to Junk and on to Trash, where
    it says nothing.
    """
    found = [deliver(one.box, raw) for raw in MAIL[:4]]
    one.rest()
    found = [
        move(path, one.box / folder)
        for path, folder in zip(found, (".Junk", ".Junk", ".Archive", ".Junk"), strict=True)
    ]
    one.rest()
    found[3] = move(found[3], one.box / ".Trash")
    one.rest()
    assert one.votes() == {"anna 0": "spam", "anna 1": "spam", "anna 2": "ham", "anna 3": "spam"}
    return found


def standing(one: Watched, number: int, user: str = "anna") -> Vote:
    vote = one.filter.ledger.get_vote(one.filter._reader.digest(MAIL[number]), user)
    assert vote is not None
    return vote


def lessons(one: Watched) -> int:
    return sum(one.filter.status().classes.values())


def test_votes_are_read_anew_as_they_were(watched):
    paths = taught(watched)
    paths[1].unlink()
    watched.rest()
    watched.filter.learn_examples(
        [watched.filter._reader.read_example(MAIL[0])], "ham", user="ben", origin="web"
    )
    # against its folder
    watched.filter.learn_examples(
        [watched.filter._reader.read_example(MAIL[2])], "spam", user="anna", origin="web"
    )
    watched.filter.forget_digests([watched.filter._reader.digest(MAIL[3])], user="anna")
    messages = ((0, "anna"), (0, "ben"), (2, "anna"), (1, "anna"), (3, "anna"))
    before = [standing(watched, *message) for message in messages]
    upgraded(watched)
    assert lessons(watched) == 0
    watched.rest()
    after = [standing(watched, *message) for message in messages]
    for old, new in zip(before[:3], after[:3], strict=True):
        for field in ("label", "user", "origin", "time", "packed"):
            assert getattr(new, field) == getattr(old, field)
        assert new.extractor == EXTRACTOR
        assert new.scores != b"\7"
    assert (after[3].label, after[3].extractor) == ("spam", EXTRACTOR - 1)  # it is nowhere any more
    assert after[4].label is None
    assert lessons(watched) == 1  # of the first they disagree


def test_what_was_stopped_is_finished_and_nothing_is_done_twice(watched, monkeypatch):
    taught(watched)
    upgraded(watched)
    monkeypatch.setattr(watcher, "_BATCH_SIZE", 1)
    watched.turn_until(lambda: lessons(watched) == 1)
    watched.stop()
    for _ in range(2):
        watched.start()
        watched.rest()
        assert lessons(watched) == 4
        assert watched.filter.ledger.last_seq() == 4 + 4
        watched.stop()
    watched.start()
