"""What the watcher leaves for users to read."""

from __future__ import annotations

import json
import logging
import time

import pytest

from spamguard.folders import watcher
from spamguard.folders.mailboxes import Changes, Folder, Mailbox, MessageFile
from spamguard.folders.scan import Issue
from spamguard.learning import status_files
from spamguard.learning.status_files import RefusedLessons, StatusFile, WatcherStatus
from spamguard.log import WarnOnce
from tests.unit.folders.maildirs import deliver, forbid, maildir, move
from tests.unit.folders.watched import MAIL

BOX = Mailbox("anna", "/home/anna/Maildir")


@pytest.fixture
def once():
    return WarnOnce(logging.getLogger("spamguard.folders"))


def status_file(state, warnings):
    return StatusFile(
        state, warnings, lambda: watcher.standing_troubles(warnings.standing(), int(time.time()))
    )


def test_signs_of_life(tmp_path, once, monkeypatch):
    assert status_files.read_watcher_status(tmp_path) is None
    one = status_file(tmp_path, once)
    one.beat(3)
    found = status_files.read_watcher_status(tmp_path)
    assert (found.mailboxes, found.refused, found.troubles) == (3, {}, ())
    assert found.began <= found.seen <= time.time()
    assert found.is_alive(time.time())
    assert not found.is_alive(time.time() + 1000)
    assert (tmp_path / status_files.WATCHER_FILE).stat().st_mode & 0o777 == 0o600
    one.beat(4)
    # at once: who asks after the first message is to see that its mailbox is watched
    assert status_files.read_watcher_status(tmp_path).mailboxes == 4
    written = (tmp_path / status_files.WATCHER_FILE).stat().st_ino
    one.beat(4)
    assert (tmp_path / status_files.WATCHER_FILE).stat().st_ino == written  # not at every turn
    monkeypatch.setattr(status_files, "BEAT_SECONDS", 0)
    one.beat(4)
    assert (tmp_path / status_files.WATCHER_FILE).stat().st_ino != written
    assert [path.name for path in tmp_path.iterdir()] == [status_files.WATCHER_FILE]


def test_refusals_are_counted_by_day_and_outlive_a_restart(tmp_path, once, one_day):
    one = status_file(tmp_path, once)
    one.beat(1)
    assert one.add_refused("anna", "Junk", 3)
    one.beat(1)  # at once, as something has changed
    assert status_files.read_watcher_status(tmp_path).refused["anna"].number == 3
    one = status_file(tmp_path, once)
    assert not one.add_refused("anna", "Archive", 2)
    assert one.add_refused("ben", "Junk", 1)
    one.beat(1)
    found = status_files.read_watcher_status(tmp_path).refused
    assert (found["anna"].number, found["anna"].folder, found["ben"].number) == (5, "Archive", 1)
    one._refusals._refused["anna"] = RefusedLessons("2020-01-01", 5, int(time.time()), "Junk")
    assert one.add_refused("anna", "Junk", 1)
    one._refusals._refused["ben"] = RefusedLessons("2020-01-01", 5, 1_577_836_800, "Junk")
    one.beat(1)
    assert {
        user: told.number
        for user, told in status_files.read_watcher_status(tmp_path).refused.items()
    } == {"anna": 1}


def test_what_stands_in_the_way(tmp_path, once):
    place = Folder(BOX, ".Junk")
    once.warn("our own files", "the disk is full")
    once.warn(Issue(place), "%s: cannot be looked at", "Junk")
    once.warn(Issue(place, MessageFile("cur", "1.x"), transient=True), "1.x cannot be read")
    once.warn((BOX.path, "is encrypted"), "teaches nothing")
    once.warn(Issue(BOX), "gone")
    once.clear(Issue(BOX))
    once.warn(Issue(BOX, "folders"), "they are gone")
    once.clear(Issue(Folder(BOX, "folders")))
    status_file(tmp_path, once).beat(1)
    found = status_files.read_watcher_status(tmp_path).troubles
    assert [(one.user, one.text) for one in found] == [
        ("", "the disk is full"),
        ("anna", "Junk: cannot be looked at"),
        ("anna", "1.x cannot be read"),
        ("anna", "they are gone"),
    ]
    later = watcher.standing_troubles(once.standing(), int(time.time()) + 2 * 86_400)
    assert len(list(later)) == 3


def test_a_folder_that_cannot_be_looked_at_is_told_until_it_can(watch, monkeypatch):
    watched = watch()
    watched.rest()
    names = watched.mailboxes.list_files

    def refusing(place):
        if place.directory == ".Junk":
            raise PermissionError(13, "Permission denied")
        return names(place)

    message = deliver(watched.box, MAIL[0])
    watched.rest()
    watched.mailboxes.list_files = refusing
    move(message, watched.box / ".Junk")
    watched.turn_until(lambda: status_files.read_watcher_status(watched.state).troubles)
    (trouble,) = status_files.read_watcher_status(watched.state).troubles
    assert trouble.user == "anna"
    assert "Junk: cannot be looked at (Permission denied)" in trouble.text
    watched.mailboxes.list_files = names
    deliver(watched.box / ".Junk", MAIL[1])
    watched.turn_until(lambda: not status_files.read_watcher_status(watched.state).troubles)
    watched.turn_until(lambda: watched.votes() == {"anna 0": "spam"})


def test_a_folder_that_nobody_may_look_at_is_told_although_it_never_was(
    tmp_path, watch, monkeypatch
):
    forbid(monkeypatch, maildir(tmp_path / "home" / "anna", ".Junk") / ".Junk" / "cur")
    watched = watch()
    watched.turn_until(
        lambda: (noted := status_files.read_watcher_status(watched.state)) and noted.troubles,
    )
    assert (
        "Junk: cannot be looked at (Permission denied)"
        in status_files.read_watcher_status(watched.state).troubles[0].text
    )


def test_a_folder_that_was_closed_is_told_once_and_until_it_is_open(watch, monkeypatch, caplog):
    """The directory itself is closed: nothing tells any more that it is a folder, but mail was in
    it.
    """
    watched = watch()
    deliver(watched.box / ".Junk", MAIL[0])
    watched.rest()
    with monkeypatch.context() as closed:
        forbid(closed, watched.box / ".Junk")
        for _ in range(3):
            watched.watcher.take_changes(Changes(everything=True))
            watched.rest()
            (trouble,) = status_files.read_watcher_status(watched.state).troubles
            assert "Junk: cannot be looked at (Permission denied)" in trouble.text
    assert caplog.text.count("moves into it teach nothing") == 1
    watched.watcher.take_changes(Changes(everything=True))
    watched.turn_until(lambda: not status_files.read_watcher_status(watched.state).troubles)


def test_what_is_gone_stands_in_nobodys_way(tmp_path, watch, monkeypatch):
    """A folder and a mailbox that could not be read, and are gone."""
    ben = maildir(tmp_path / "home" / "ben", ".Junk")
    forbid(monkeypatch, maildir(tmp_path / "home" / "anna", ".Closed") / ".Closed" / "cur")
    forbid(monkeypatch, ben / ".Junk" / "cur")
    watched = watch()
    watched.turn_until(
        lambda: (
            (noted := status_files.read_watcher_status(watched.state)) and len(noted.troubles) == 2
        ),
    )
    (watched.box / ".Closed").rename(tmp_path / "closed")
    watched.turn_until(lambda: len(status_files.read_watcher_status(watched.state).troubles) == 1)
    ben.rename(tmp_path / "ben")
    watched.turn_until(lambda: not status_files.read_watcher_status(watched.state).troubles)


def test_a_place_that_cannot_be_written_is_no_reason_to_stop(tmp_path, once, caplog):
    one = status_file(tmp_path / "none", once)
    one.beat(1)
    one.beat(1)
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "none").mkdir()
    one.beat(1)
    assert status_files.read_watcher_status(tmp_path / "none") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"refused": []}',
        '{"began": 1, "seen": 2, "mailboxes": 0, "refused": {"a": {}}, "troubles": []}',
    ],
)
def test_what_is_no_such_file_says_nothing(tmp_path, text):
    (tmp_path / status_files.WATCHER_FILE).write_text(text)
    assert status_files.read_watcher_status(tmp_path) is None
    status_file(tmp_path, WarnOnce(logging.getLogger("spamguard.folders"))).beat(0)
    assert json.loads((tmp_path / status_files.WATCHER_FILE).read_text())["refused"] == {}
    assert isinstance(status_files.read_watcher_status(tmp_path), WatcherStatus)
