"""What the watcher leaves for people to read."""

from __future__ import annotations

import json
import time

import pytest

from spamguard.folders import notes
from spamguard.folders.contract import Changes, File, Mailbox, Place
from spamguard.folders.notes import Noted, Notes
from spamguard.folders.once import Matter, Once
from spamguard.folders.refusals import Refused
from tests.support.waiting import PATIENCE
from tests.unit.folders.maildirs import deliver, forbid, maildir, move
from tests.unit.folders.watched import MAIL, Watched

BOX = Mailbox("anna", "/home/anna/Maildir")


@pytest.fixture
def once():
    return Once()


def test_signs_of_life(tmp_path, once, monkeypatch):
    assert notes.read(tmp_path) is None
    one = Notes(tmp_path, once)
    one.beat(3)
    found = notes.read(tmp_path)
    assert (found.mailboxes, found.refused, found.troubles) == (3, {}, ())
    assert found.began <= found.seen <= time.time()
    assert found.alive(time.time())
    assert not found.alive(time.time() + 1000)
    assert (tmp_path / notes.FILE).stat().st_mode & 0o777 == 0o600
    one.beat(4)
    assert notes.read(tmp_path).mailboxes == 4  # at once: who asks after the first message is to see that its mailbox is watched
    written = (tmp_path / notes.FILE).stat().st_ino
    one.beat(4)
    assert (tmp_path / notes.FILE).stat().st_ino == written  # not at every turn
    monkeypatch.setattr(notes, "BEAT_SECONDS", 0)
    one.beat(4)
    assert (tmp_path / notes.FILE).stat().st_ino != written
    assert [path.name for path in tmp_path.iterdir()] == [notes.FILE]


def test_refusals_are_counted_by_day_and_outlive_a_restart(tmp_path, once, one_day):
    one = Notes(tmp_path, once)
    one.beat(1)
    assert one.refused("anna", "Junk", 3)
    one.beat(1)  # at once, as something has changed
    assert notes.read(tmp_path).refused["anna"].number == 3
    one = Notes(tmp_path, once)
    assert not one.refused("anna", "Archive", 2)
    assert one.refused("ben", "Junk", 1)
    one.beat(1)
    found = notes.read(tmp_path).refused
    assert (found["anna"].number, found["anna"].folder, found["ben"].number) == (5, "Archive", 1)
    one._refusals._refused["anna"] = Refused("2020-01-01", 5, int(time.time()), "Junk")
    assert one.refused("anna", "Junk", 1)
    one._refusals._refused["ben"] = Refused("2020-01-01", 5, 1_577_836_800, "Junk")
    one.beat(1)
    assert {user: told.number for user, told in notes.read(tmp_path).refused.items()} == {"anna": 1}


def test_what_stands_in_the_way(tmp_path, once):
    place = Place(BOX, ".Junk")
    once.warn("our own files", "the disk is full")
    once.warn(Matter(place), "%s: cannot be looked at", "Junk")
    once.warn(Matter(place, File("cur", "1.x"), passing=True), "1.x cannot be read")
    once.warn((BOX.path, "is encrypted"), "teaches nothing")
    once.warn(Matter(BOX), "gone")
    once.over(Matter(BOX))
    once.warn(Matter(BOX, "folders"), "they are gone")
    once.over(Matter(Place(BOX, "folders")))
    Notes(tmp_path, once).beat(1)
    found = notes.read(tmp_path).troubles
    assert [(one.user, one.text) for one in found] == [
        ("", "the disk is full"),
        ("anna", "Junk: cannot be looked at"),
        ("anna", "1.x cannot be read"),
        ("anna", "they are gone"),
    ]
    later = notes.troubles(once.standing(), int(time.time()) + 2 * 86_400)
    assert len(list(later)) == 3


def test_a_folder_that_cannot_be_looked_at_is_told_until_it_can(tmp_path, monkeypatch):
    watched = Watched(tmp_path)
    watched.rest()
    names = watched.mailboxes.names

    def refusing(place):
        if place.directory == ".Junk":
            raise PermissionError(13, "Permission denied")
        return names(place)

    message = deliver(watched.box, MAIL[0])
    watched.rest()
    watched.mailboxes.names = refusing
    move(message, watched.box / ".Junk")
    turn_until(watched, lambda: notes.read(watched.state).troubles)
    (trouble,) = notes.read(watched.state).troubles
    assert trouble.user == "anna"
    assert "Junk: cannot be looked at (Permission denied)" in trouble.text
    watched.mailboxes.names = names
    deliver(watched.box / ".Junk", MAIL[1])
    turn_until(watched, lambda: not notes.read(watched.state).troubles)
    turn_until(watched, lambda: watched.votes() == {"anna 0": "spam"})
    watched.stop()
    watched.filter.close()


def test_a_folder_that_nobody_may_look_at_is_told_although_it_never_was(tmp_path, monkeypatch):
    forbid(monkeypatch, maildir(tmp_path / "home" / "anna", ".Junk") / ".Junk" / "cur")
    watched = Watched(tmp_path)
    turn_until(watched, lambda: (noted := notes.read(watched.state)) and noted.troubles)
    assert "Junk: cannot be looked at (Permission denied)" in notes.read(watched.state).troubles[0].text
    watched.stop()
    watched.filter.close()


def test_a_folder_that_was_closed_is_told_once_and_until_it_is_open(tmp_path, monkeypatch, caplog):
    """The directory itself: nobody sees any more that it is a folder, but mail was in it."""
    watched = Watched(tmp_path)
    deliver(watched.box / ".Junk", MAIL[0])
    watched.rest()
    with monkeypatch.context() as closed:
        forbid(closed, watched.box / ".Junk")
        for _ in range(3):
            watched.watcher._note(Changes(everything=True))
            watched.rest()
            (trouble,) = notes.read(watched.state).troubles
            assert "Junk: cannot be looked at (Permission denied)" in trouble.text
    assert caplog.text.count("moves into it teach nothing") == 1
    watched.watcher._note(Changes(everything=True))
    turn_until(watched, lambda: not notes.read(watched.state).troubles)
    watched.stop()
    watched.filter.close()


def test_what_is_gone_stands_in_nobodys_way(tmp_path, monkeypatch):
    """A folder and a mailbox that could not be looked at, and are not there any more."""
    ben = maildir(tmp_path / "home" / "ben", ".Junk")
    forbid(monkeypatch, maildir(tmp_path / "home" / "anna", ".Closed") / ".Closed" / "cur")
    forbid(monkeypatch, ben / ".Junk" / "cur")
    watched = Watched(tmp_path)
    turn_until(watched, lambda: (noted := notes.read(watched.state)) and len(noted.troubles) == 2)
    (watched.box / ".Closed").rename(tmp_path / "closed")
    turn_until(watched, lambda: len(notes.read(watched.state).troubles) == 1)
    ben.rename(tmp_path / "ben")
    turn_until(watched, lambda: not notes.read(watched.state).troubles)
    watched.stop()
    watched.filter.close()


def turn_until(watched, check):
    until = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < until
        watched.watcher.turn(0.02)


def test_a_place_that_cannot_be_written_is_no_reason_to_stop(tmp_path, once, caplog):
    one = Notes(tmp_path / "none", once)
    one.beat(1)
    one.beat(1)
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "none").mkdir()
    one.beat(1)
    assert notes.read(tmp_path / "none") is not None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"refused": []}', '{"began": 1, "seen": 2, "mailboxes": 0, "refused": {"a": {}}, "troubles": []}']
)
def test_what_is_no_such_file_says_nothing(tmp_path, text):
    (tmp_path / notes.FILE).write_text(text)
    assert notes.read(tmp_path) is None
    Notes(tmp_path, Once()).beat(0)
    assert json.loads((tmp_path / notes.FILE).read_text())["refused"] == {}
    assert isinstance(notes.read(tmp_path), Noted)
