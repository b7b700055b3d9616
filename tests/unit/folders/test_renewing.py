"""After an upgrade: what was taught before is read anew from where the mail lies now, as the vote that it was."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from spamguard.errors import LedgerError
from spamguard.folders import renewing
from spamguard.folders.allowance import Allowance
from spamguard.folders.contract import Mailbox
from spamguard.folders.notes import Notes
from spamguard.folders.once import Once
from spamguard.folders.values import Lesson
from spamguard.records import EXTRACTOR, Vote
from spamguard.undo import Chosen, messages, undo
from tests.unit.folders.maildirs import deliver, move
from tests.unit.folders.watched import MAIL, Watched


def upgraded(one: Watched) -> None:
    """Everything said so far was read by an older extractor, and the daemon begins anew."""
    one.stop()
    one.filter.close()
    with closing(sqlite3.connect(one.state / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET extractor = extractor - 1")
        db.execute("UPDATE events SET packed = x'00', scores = x'07' WHERE label IS NOT NULL")
        db.execute("DELETE FROM meta WHERE key LIKE 'tables.%' OR key LIKE 'renewed.%'")
    one.reopen()
    one.start()


def taught(one: Watched) -> list[Path]:
    """Moved by anna: two to Junk, one to Archive; and one to Junk and on to the Trash, where it says nothing."""
    found = [deliver(one.box, raw) for raw in MAIL[:4]]
    one.rest()
    found = [move(path, one.box / folder) for path, folder in zip(found, (".Junk", ".Junk", ".Archive", ".Junk"), strict=True)]
    one.rest()
    found[3] = move(found[3], one.box / ".Trash")
    one.rest()
    assert one.votes() == {"anna 0": "spam", "anna 1": "spam", "anna 2": "ham", "anna 3": "spam"}
    return found


def standing(one: Watched, number: int, user: str = "anna") -> Vote:
    vote = one.filter.ledger.vote(one.filter._preparer.digest(MAIL[number]), user)
    assert vote is not None
    return vote


def lessons(one: Watched) -> int:
    return sum(one.filter.status().classes.values())


def test_votes_are_read_anew_as_they_were(watched):
    paths = taught(watched)
    paths[1].unlink()
    watched.rest()
    watched.filter.learn_ready([watched.filter._preparer.ready(MAIL[0])], "ham", user="ben", origin="web")
    watched.filter.learn_ready([watched.filter._preparer.ready(MAIL[2])], "spam", user="anna", origin="web")  # against its folder
    watched.filter.forget_ready([watched.filter._preparer.digest(MAIL[3])], user="anna")
    before = [standing(watched, number, user) for number, user in ((0, "anna"), (0, "ben"), (2, "anna"), (1, "anna"), (3, "anna"))]
    upgraded(watched)
    assert lessons(watched) == 0
    watched.rest()
    after = [standing(watched, number, user) for number, user in ((0, "anna"), (0, "ben"), (2, "anna"), (1, "anna"), (3, "anna"))]
    for old, new in zip(before[:3], after[:3], strict=True):
        assert (new.label, new.user, new.origin, new.time, new.extractor) == (old.label, old.user, old.origin, old.time, EXTRACTOR)
        assert new.packed == old.packed
        assert new.scores != b"\7"
    assert (after[3].label, after[3].extractor) == ("spam", EXTRACTOR - 1)  # it is nowhere any more
    assert after[4].label is None
    assert lessons(watched) == 1  # of the first they disagree


def test_only_once(watched):
    taught(watched)
    upgraded(watched)
    watched.rest()
    end = watched.filter.ledger.last_seq()
    assert watched.filter.ledger.get_meta(f"renewed.{EXTRACTOR}") is not None
    watched.stop()
    watched.opened.clear()
    watched.start()
    watched.rest()
    assert watched.opened == []
    assert watched.filter.ledger.last_seq() == end


def test_what_was_killed_is_finished(watched, monkeypatch):
    """After any batch, before that is noted."""
    taught(watched)
    upgraded(watched)
    monkeypatch.setattr(renewing, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(renewing.Renewer, "_note", lambda *_: (_ for _ in ()).throw(LedgerError("the disk is full")))
    for _ in range(30):
        watched.watcher.turn(0.01)
    assert lessons(watched) == 4
    end = watched.filter.ledger.last_seq()
    monkeypatch.undo()
    watched.stop()
    watched.start()
    watched.rest()
    assert lessons(watched) == 4
    assert watched.filter.ledger.last_seq() == end


def test_many_are_read_in_steps_and_what_is_moved_meanwhile_teaches(watched, monkeypatch):
    monkeypatch.setattr(renewing, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(renewing, "_LOOKED_UP", 3)
    monkeypatch.setattr(renewing, "_EVENTS", 7)
    found = [deliver(watched.box, raw) for raw in MAIL[:20]]
    watched.rest()
    found = [move(path, watched.box / ".Junk") for path in found]
    watched.rest()
    upgraded(watched)
    while not lessons(watched):
        watched.watcher.turn(0.01)
    assert lessons(watched) < 20
    move(found[19], watched.box / ".Archive")
    watched.rest()
    assert watched.filter.status().classes == {"ham": 1, "spam": 19}


def test_folders_are_listed_only_while_there_is_time(watched, monkeypatch):
    """Those of 256 messages were listed in one step, in which no other mailbox was looked at."""
    monkeypatch.setattr(renewing, "STEP_SECONDS", 0.0)
    found = [deliver(watched.box, raw) for raw in MAIL[:6]]
    watched.rest()
    for number, path in enumerate(found):
        for part in ("new", "cur", "tmp"):
            (watched.box / f".Junk.{number}" / part).mkdir(parents=True)
        move(path, watched.box / f".Junk.{number}")
    watched.rest()
    upgraded(watched)
    listed: list[object] = []
    whole = watched.mailboxes.names
    monkeypatch.setattr(watched.mailboxes, "names", lambda place: [listed.append(place), whole(place)][1])
    renewer, steps = watched.watcher._renewer, 0
    while renewer._waiting or not steps:
        before = len(listed)
        renewer.step([Mailbox("anna", str(watched.box))])
        steps += 1
        assert len(listed) == before + 1
    assert (steps, lessons(watched)) == (6, 6)


def test_nobody_is_there_to_be_read_yet(watched):
    """Whoever opens mailboxes is down when the daemon begins: nothing is taken for gone."""
    taught(watched)
    upgraded(watched)
    watched.mailboxes.users = lambda: []
    for _ in range(5):
        watched.watcher.turn(0.01)
    assert lessons(watched) == 0
    del watched.mailboxes.users
    watched.watcher._users_due = 0.0
    watched.rest()
    assert lessons(watched) == 4


def test_it_is_the_same_vote_for_who_counts_and_who_undoes(watched, tmp_path):
    taught(watched)
    upgraded(watched)
    now = int(time.time())
    assert watched.filter.ledger.users.cast("anna", "folder", now - 100, now + 100, 1000) == 4
    watched.rest()
    assert watched.filter.ledger.users.cast("anna", "folder", now - 100, now + 100, 1000) == 4
    mailbox = Mailbox("anna", str(watched.box))
    allowance = Allowance(watched.filter.ledger, [5], Notes(tmp_path, Once()))
    lesson = Lesson(b"new", "spam", ".Junk", 1, "")
    assert allowance.admitted(mailbox, [lesson, lesson._replace(digest=b"another")]) == [lesson]
    chosen = Chosen("anna", now - 100, "folder Junk")
    assert len([one for some in undo(watched.filter, messages(watched.filter, chosen), chosen) for one in some]) == 3
    assert watched.filter.status().classes == {"ham": 1, "spam": 0}


def test_what_was_read_anew_takes_no_room_twice(watched):
    taught(watched)
    upgraded(watched)
    watched.rest()
    assert watched.filter.ledger.last_seq() == 8
    watched.filter.settle()
    assert [vote.extractor for vote in watched.filter.ledger.votes()] == [EXTRACTOR] * 4


def test_trouble_passes(watched, monkeypatch):
    taught(watched)
    upgraded(watched)
    with monkeypatch.context() as patched:
        patched.setattr(renewing, "renew", lambda *_: (_ for _ in ()).throw(LedgerError("no")))
        for _ in range(5):
            watched.watcher.turn(0.01)
    assert lessons(watched) == 0
    watched.watcher._renewer.due = 0.0
    watched.rest()
    assert lessons(watched) == 4
