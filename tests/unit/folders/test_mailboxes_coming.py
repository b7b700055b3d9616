"""Mailboxes and folders that come, go, come back under a name that was used before, or are scanned
only in part.
"""

from __future__ import annotations

import shutil
import time

import pytest

from spamguard.learning import status_files
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import MAIL


def test_new_users_and_folders_are_picked_up(watched):
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    watched.rest()
    message = deliver(ben, MAIL[0])
    watched.rest()
    move(message, ben / ".Junk")
    watched.rest()
    assert watched.votes() == {"ben 0": "spam"}
    message = deliver(watched.box, MAIL[1])
    watched.rest()
    maildir(watched.box, ".Spam")
    move(message, watched.box / ".Spam")
    watched.rest()
    assert watched.votes() == {"ben 0": "spam", "anna 1": "spam"}


def test_a_folder_that_is_renamed_or_removed(watched):
    messages = [deliver(watched.box / ".Junk", raw) for raw in MAIL[:3]]
    watched.rest()
    (watched.box / ".Junk").rename(watched.box / ".Spam")
    watched.rest()
    assert watched.votes() == {}
    move(watched.box / ".Spam" / "new" / messages[0].name, watched.box)
    watched.rest()
    for path in sorted((watched.box / ".Spam").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (watched.box / ".Spam").rmdir()
    watched.rest()
    assert watched.votes() == {"anna 0": "ham"}


def test_of_folders_that_are_renamed_again_and_again_the_last_is_known(watched):
    """Otherwise a user who does so all day takes all memory."""
    maildir(watched.box, ".Projects")
    messages = [deliver(watched.box / ".Projects", raw) for raw in MAIL[:2]]
    watched.rest()
    before = ".Projects"
    for name in (".one", ".two", ".three"):
        (watched.box / before).rename(watched.box / name)
        before = name
        watched.rest()
    sightings, scanner = watched.watcher._sightings, watched.watcher._scanner
    assert sightings._db.execute("SELECT name FROM folders").fetchall() == [(b".three",)]
    assert len(sightings._keys) <= 1
    assert [list(some) for some in scanner._listings.values()] == [[".three"]]
    move(watched.box / ".three" / "new" / messages[0].name, watched.box / ".Junk")
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    (watched.box / ".three" / "new" / messages[1].name).unlink()
    watched.rest()
    for days in (31, 32):  # a clock that jumps is believed a day later
        sightings.prune(int(time.time()) + days * 86_400)
    assert sightings._db.execute("SELECT name FROM folders").fetchall() == [(b".Junk",)]


def test_a_mailbox_that_goes_and_comes_back(watched):
    deliver(watched.box, MAIL[0])
    watched.rest()
    away = watched.box.rename(watched.place / "away")
    watched.rest()
    assert watched.watcher._schedule.mailboxes == {}
    (message,) = (away / "new").iterdir()
    move(message, away / ".Junk")
    away.rename(watched.box)
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}


def test_a_mailbox_whose_disk_is_away_is_told_until_it_is_back(watched, monkeypatch):
    """The directory on which it was mounted is there, and empty."""
    monkeypatch.setattr(status_files, "BEAT_SECONDS", 0.05)
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    away = watched.place / "away"
    away.mkdir()
    for one in list(watched.box.iterdir()):
        one.rename(away / one.name)
    watched.rest()
    (trouble,) = status_files.read_watcher_status(watched.state).troubles
    assert f"{watched.box}: none of its folders are there any more" in trouble.text
    move(away / "new" / message.name, away / ".Junk")
    for one in list(away.iterdir()):
        one.rename(watched.box / one.name)
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    assert status_files.read_watcher_status(watched.state).troubles == ()


def test_a_mailbox_that_is_gone_for_a_month_is_forgotten(watched, monkeypatch):
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    deliver(ben, MAIL[0])
    deliver(watched.box, MAIL[1])
    watched.rest()
    shutil.rmtree(ben)
    watched.rest()
    assert watched.watcher._sightings.mailboxes() == [str(watched.box), str(ben)]
    real = time.time
    for days, left in ((29, 2), (31, 1)):
        monkeypatch.setattr(time, "time", lambda days=days: real() + days * 86_400)
        watched.watcher._search_due = 0.0
        watched.rest()
        assert len(watched.watcher._sightings.mailboxes()) == left
    assert watched.watcher._sightings.name_keys(str(watched.box), "").size == 1
    maildir(ben, ".Junk")
    deliver(ben / ".Junk", MAIL[0])
    message = deliver(ben, MAIL[2])
    watched.rest()
    assert watched.votes() == {}
    move(message, ben / ".Junk")
    watched.rest()
    assert watched.votes() == {"ben 2": "spam"}


def test_another_mailbox_of_the_same_name_begins_with_what_lies_in_it(watched):
    """Nothing that the mailbox before had counts as moved."""
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    for raw in MAIL[:3]:
        deliver(ben, raw)
    watched.rest()
    shutil.rmtree(ben)
    watched.rest()
    maildir(ben, ".Junk")
    for raw in MAIL[3:6]:
        deliver(ben / ".Junk", raw)
    message = deliver(ben, MAIL[6])
    watched.rest()
    assert watched.votes() == {}
    move(message, ben / ".Junk")
    watched.rest()
    assert watched.votes() == {"ben 6": "spam"}


@pytest.mark.parametrize(("through", "taught"), [("Projects", "spam"), ("Sent", None)])
def test_from_folders_of_peoples_own_and_from_what_they_sent(watched, through, taught):
    """What came into users' own folders by itself, or long ago, was seen there; what they wrote is
    ignored.
    """
    maildir(watched.box, ".Projects", ".Sent")
    message = deliver(watched.box / f".{through}", MAIL[0])
    watched.rest()
    moved = move(message, watched.box / ".Junk")
    watched.rest()
    assert watched.votes().get("anna 0") == taught
    moved = move(moved, watched.box / ".Projects")
    watched.rest()
    with watched.watcher._sightings._transaction():
        # as after a month
        watched.watcher._sightings._db.execute("DELETE FROM sightings WHERE gone > 0")
    move(moved, watched.box)
    watched.rest()
    assert watched.votes().get("anna 0") == "ham"
