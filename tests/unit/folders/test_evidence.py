"""Evidence teaches where the operator asks for it: once, never against a user's word, and without
reading more messages than it teaches.
"""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import NoReturn

import pytest

from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, MailboxesError
from spamguard.folders import lessons, watcher
from spamguard.folders.mailboxes import Folder
from spamguard.folders.reconcile import EVIDENCE_ORIGIN
from spamguard.folders.sightings import Sightings
from spamguard.learning.undo import VoteSelection, affected_messages, undo_votes
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.shown import DAY, flag, look, origins
from tests.unit.folders.watched import MAIL


def test_answered_and_flagged_mail_is_ham_and_is_read_but_once(weighed):
    one = weighed()
    first, second, third, fourth = [deliver(one.box, raw) for raw in MAIL[:4]]
    one.rest()
    one.opened.clear()
    first, second, third = flag(first, "RS"), flag(second, "FS"), flag(third, "S")
    flag(fourth, "FRST")  # deleted
    one.rest()
    assert one.votes() == {"anna 0": "ham", "anna 1": "ham"}
    assert origins(one) == {"evidence answered INBOX": "ham", "evidence flagged INBOX": "ham"}
    assert sorted(file.name for file in one.opened) == [first.name, second.name]
    flag(flag(first, "S"), "FRS")
    one.rest()
    look(one)
    one.stop()
    one.start()
    one.rest()
    assert len(one.opened) == 2
    assert one.filter.ledger.last_seq() == 2


def test_it_is_off_unless_asked_for(weighed):
    one = weighed(answered_is_ham=False, flagged_is_ham=False)
    for number, flags in enumerate(("RS", "FS")):
        flag(deliver(one.box, MAIL[number]), flags)
    one.rest()
    assert one.votes() == {}


def test_a_move_says_more_before_and_after(weighed):
    one = weighed()
    first, second, third = [deliver(one.box, raw) for raw in MAIL[:3]]
    one.rest()
    first = move(first, one.box / ".Junk")
    second = flag(second, "FS")
    one.rest()
    first = move(first, one.box)
    second = move(second, one.box / ".Junk")
    third = flag(move(third, one.box / ".Archive"), "S")
    one.rest()
    assert one.votes() == {"anna 0": "ham", "anna 1": "spam", "anna 2": "ham"}
    flag(first, "RS")
    flag(move(second, one.box / ".Trash"), "FRS")
    one.rest()
    assert one.votes() == {"anna 0": "ham", "anna 1": "spam", "anna 2": "ham"}


def test_what_another_program_or_undo_said_stands(weighed):
    one = weighed()
    one.filter.learn(MAIL[0], "spam", user="anna", origin="teach-pipe")
    first, second = [deliver(one.box, raw) for raw in MAIL[:2]]
    one.rest()
    flag(first, "F")
    second = flag(second, "F")
    one.rest()
    assert one.votes() == {"anna 0": "spam", "anna 1": "ham"}
    chosen = VoteSelection("anna", origin=EVIDENCE_ORIGIN)
    assert [
        len(done) for done in undo_votes(one.filter, affected_messages(one.filter, chosen), chosen)
    ] == [1]
    assert one.votes() == {"anna 0": "spam", "anna 1": None}
    flag(second, "R")
    look(one)
    one.stop()
    one.start()
    one.rest()
    assert one.votes() == {"anna 0": "spam", "anna 1": None}


def test_what_is_said_while_evidence_is_weighed_stands(weighed, monkeypatch):
    one = weighed()
    first, second = [deliver(one.box, raw) for raw in MAIL[:2]]
    one.rest()
    read = one.watcher._scanner.read_example

    def meanwhile(place, file, digest):
        with Filter.open(one.state, _durable=False) as other:
            other.learn(MAIL[0], "spam", user="anna", origin="teach-pipe")
        return read(place, file, digest)

    monkeypatch.setattr(one.watcher._scanner, "read_example", meanwhile)
    flag(first, "F")
    flag(second, "F")
    one.rest()
    assert one.votes() == {"anna 0": "spam", "anna 1": "ham"}


def test_what_was_there_when_evidence_was_first_asked_for_teaches_nothing(tmp_path, weighed):
    one = weighed(answered_is_ham=False, flagged_is_ham=False)
    first = deliver(one.box, MAIL[0], "cur", "RS")
    second = deliver(one.box, MAIL[1])
    one.rest()
    one.stop()
    one.watch = replace(one.watch, answered_is_ham=True, flagged_is_ham=True)
    one.start()
    one.rest()
    flag(first, "FRS")
    flag(second, "F")
    one.rest()
    look(one)
    assert one.votes() == {"anna 1": "ham"}
    ben = maildir(tmp_path / "home" / "ben")
    deliver(ben, MAIL[0], "cur", "RS")
    one.rest()
    assert one.votes() == {"anna 1": "ham"}


def test_what_happened_while_nobody_looked_counts(weighed):
    one = weighed()
    known = deliver(one.box, MAIL[0])
    one.rest()
    one.stop()
    flag(known, "R")
    deliver(one.box / ".Archive", MAIL[1], "cur", "FS")
    one.start()
    one.rest()
    assert one.votes() == {"anna 0": "ham", "anna 1": "ham"}


def test_the_daily_limit_counts_it(weighed):
    one = weighed(lessons_per_day=2)
    flagged = [deliver(one.box, raw) for raw in MAIL[:3]]
    moved = deliver(one.box, MAIL[3])
    one.rest()
    for message in flagged:
        flag(message, "F")
    one.rest()
    move(moved, one.box / ".Junk")
    one.rest()
    look(one)
    assert list(one.votes().values()) == ["ham", "ham"]


@pytest.mark.parametrize("what", ["the ledger", "whoever opens mailboxes"])
def test_trouble_loses_nothing(weighed, monkeypatch, what):
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.1)
    one = weighed()
    message = deliver(one.box, MAIL[0])
    one.rest()
    tried = []

    def fails(*_: object, **__: object) -> NoReturn:
        tried.append(True)
        raise (
            LedgerError("the disk is full")
            if what == "the ledger"
            else MailboxesError("it has ended")
        )

    with monkeypatch.context() as patched:
        patched.setattr(
            *((one.filter, "cast_votes") if what == "the ledger" else (one.mailboxes, "open_file")),
            fails,
        )
        flag(message, "F")
        one.turn_until(lambda: tried)
        assert one.votes() == {}
    one.turn_until(one.votes)
    assert one.votes() == {"anna 0": "ham"}


def test_many_at_once_and_what_goes_meanwhile(weighed, monkeypatch):
    monkeypatch.setattr(lessons, "EVIDENCE_BATCH_SIZE", 7)
    one = weighed()
    many = [deliver(one.box, raw) for raw in MAIL]
    one.rest()
    for number, message in enumerate(many):
        flag(message, "F") if number % 5 else message.unlink()
    one.rest()
    assert one.votes() == {f"anna {number}": "ham" for number in range(len(MAIL)) if number % 5}
    for message in (one.box / "cur").iterdir():
        message.unlink()
    one.rest()
    for days in (31, 32):  # a clock that jumps is believed a day later
        one.watcher._sightings.prune(int(time.time() + days * DAY))
    flag(deliver(one.box, MAIL[0]), "F")
    one.rest()
    assert one.watcher._sightings._db.execute("SELECT count(*) FROM marks").fetchone() == (1,)


def test_messages_that_take_long_do_not_hold_up_the_others(weighed, monkeypatch):
    one = weighed()
    messages = [deliver(one.box, raw) for raw in MAIL[:20]]
    one.rest()
    monkeypatch.setattr(lessons, "STEP_SECONDS", -1.0)
    for message in messages:
        flag(message, "F")
    steps = [0]  # lessons taught by then
    while steps[-1] < len(messages):
        one.watcher.run_once(0.05)
        steps.append(one.filter.ledger.last_seq())
    assert all(later <= before + 1 for before, later in pairwise(steps))


def test_a_folder_that_cannot_be_read_keeps_the_others_from_nothing(tmp_path, weighed):
    one = weighed()
    message = deliver(one.box, MAIL[0])
    real = one.mailboxes.list_files

    def refused(place: Folder) -> dict[str, list[str]]:
        if place.directory == ".Archive":
            raise PermissionError(13, "no")
        return real(place)

    one.stop()
    ben = maildir(tmp_path / "home" / "ben", ".Archive")
    other = deliver(ben, MAIL[1])
    one.start()
    one.mailboxes.list_files = refused
    one.rest()
    flag(message, "F")
    flag(other, "F")
    one.rest()
    assert one.votes() == {"anna 0": "ham", "ben 1": "ham"}


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_a_message_showed_before_teaches_nothing_wherever_it_goes(
    tmp_path, weighed, meanwhile
):
    """Moved by its user, renamed by a migration of all mail, or away for a while with its disk."""
    one = weighed(flagged_is_ham=False)
    moved, migrated, copied = [flag(deliver(one.box, raw), "FS") for raw in MAIL[:3]]
    one.rest()
    one.close()
    one = weighed()

    def look_meanwhile() -> None:
        if meanwhile:
            look(one)

    moved = moved.rename(tmp_path / moved.name)
    look_meanwhile()
    moved = moved.rename(one.box / "cur" / "1700000000.moved.host:2,FS")
    one.rest()
    migrated = migrated.rename(migrated.with_name("1700000000.migrated.host:2,FS"))
    (one.box / "cur" / "1700000000.copied.host:2,FS").hardlink_to(copied)
    one.rest()
    (one.box / "cur").rename(tmp_path / "away")
    (one.box / "cur").mkdir()
    look_meanwhile()
    (one.box / "cur").rmdir()
    (tmp_path / "away").rename(one.box / "cur")
    look(one)
    assert one.votes() == {}
    new = flag(deliver(one.box, MAIL[3]), "FS")
    one.rest()
    assert one.votes() == {"anna 3": "ham"}
    assert new.exists()


def test_marks_and_the_rule_of_evidence_outlast_the_process(tmp_path):
    with Sightings.open(tmp_path / "sightings") as sightings:
        sightings.mark_done("box", ".A", {5, -3})
        sightings.set_evidence_rule("box", "flagged")
    with Sightings.open(tmp_path / "sightings") as sightings:
        assert sightings.done_names("box", ".A", (-3, 4, 5)) == {-3, 5}
        assert sightings.done_names("other", ".A", (-3, 4)) == set()
        rules = (sightings.evidence_rule("box"), sightings.evidence_rule("other"))
        assert rules == ("flagged", "")
        sightings.forget("box")
        assert sightings.done_names("box", ".A", (-3, 4)) == set()
        assert sightings.evidence_rule("box") == ""
