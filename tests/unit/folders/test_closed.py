"""A directory that cannot be read for a while, as on a disk that is gone: nothing tells when it
can, so it is tried whenever everything is looked at.
"""

from __future__ import annotations

import errno
import os
from contextlib import closing

import pytest

from spamguard.config.options import Watch
from spamguard.folders.changes import is_below
from spamguard.folders.mailboxes import LocalMailboxes
from spamguard.learning import status_files
from tests.unit.folders.maildirs import deliver, forbid, maildir, move
from tests.unit.folders.watched import MAIL, Watched


def look_again(watched: Watched) -> None:
    """It is time to look at everything."""
    watched.watcher._search_due = 0.0
    for box in watched.watcher._schedule.mailboxes.values():
        box.next_rescan = 0.0
        watched.watcher._schedule.plan(box)


def troubles(watched: Watched) -> list[str]:
    noted = status_files.read_watcher_status(watched.state)
    return [trouble.text for trouble in noted.troubles] if noted else []


def told(watched: Watched, text: str) -> None:
    """Wait until `status` tells it."""
    watched.turn_until(lambda: any(text in trouble for trouble in troubles(watched)))


@pytest.mark.parametrize(
    "directory", ["home", "home/anna", "home/anna/.Junk", "home/anna/.Junk/cur"]
)
def test_what_was_moved_meanwhile_is_learnt_as_soon_as_it_can_be(
    watched, monkeypatch, caplog, directory
):
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    for number in range(2):
        with monkeypatch.context() as closed:
            forbid(closed, watched.place / directory)
            message = move(message, watched.box / (".Archive" if number else ".Junk"))
            look_again(watched)
            told(
                watched,
                f"{watched.place}/{directory.removesuffix('/cur').replace('/.', ' ')}: "
                "cannot be looked at (Permission denied)",
            )
        look_again(watched)
        watched.turn_until(
            lambda number=number: watched.votes() == {"anna 0": "ham" if number else "spam"},
        )
        watched.turn_until(lambda: not troubles(watched))
        watched.rest()
    once = 1 if ".Junk" in directory else 2  # of a mailbox by the search and by the scan
    assert caplog.text.count("cannot be looked at") == 2 * once, "once each time"


def test_what_was_closed_when_we_began_is_watched_as_soon_as_it_is_open(
    tmp_path, watch, monkeypatch
):
    """Other mailboxes do not wait for it."""
    ben, carl = (maildir(tmp_path / "home" / name, ".Junk") for name in ("ben", "carl"))
    with monkeypatch.context() as closed:
        forbid(closed, ben)
        watched = watch()
        message = deliver(carl, MAIL[0])
        told(
            watched,
            f"{ben}: cannot be looked at (Permission denied): "
            "mail below it teaches nothing until it can",
        )
        watched.turn_until(lambda: message.name in {file.name for file in watched.opened})
        move(message, carl / ".Junk")
        watched.turn_until(lambda: watched.votes() == {"carl 0": "spam"})
    look_again(watched)
    watched.turn_until(
        lambda: watched.watcher._sightings.is_scanned(str(ben)) and not troubles(watched)
    )
    message = deliver(ben, MAIL[1])
    watched.turn_until(lambda: message.name in {file.name for file in watched.opened})
    move(message, ben / ".Junk")
    watched.turn_until(lambda: watched.votes() == {"carl 0": "spam", "ben 1": "spam"})


def test_a_message_that_cannot_be_read_is_tried_again(watched, monkeypatch):
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    real = watched.mailboxes.open_file

    def broken(place, file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    watched.mailboxes.open_file = broken
    move(message, watched.box / ".Junk")
    told(watched, "cannot be read (Input/output error)")
    watched.mailboxes.open_file = real
    look_again(watched)
    watched.turn_until(lambda: watched.votes() == {"anna 0": "spam"})


@pytest.mark.parametrize(
    ("directory", "below"),
    [
        ("/home/anna/Maildir", True),
        ("/home/anna", True),
        ("/", True),
        ("/home/ann", False),
        ("/home/anna/Maildir/.Junk", False),
        ("/srv", False),
    ],
)
def test_what_lies_below(directory, below):
    assert is_below("/home/anna/Maildir", {directory: "Permission denied", "/var": ""}) is below


def test_a_mailbox_that_is_a_link_is_told_and_keeps_no_others_waiting(tmp_path, watch):
    """It was logged once, and no move of that user was ever learnt."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "ben").symlink_to(maildir(tmp_path / "elsewhere", ".Junk"))
    watched = watch()
    told(
        watched,
        f"{tmp_path}/home/ben: cannot be looked at (is a symbolic link, "
        "which is not followed: name the directory itself",
    )
    message = deliver(watched.box, MAIL[0])
    watched.turn_until(lambda: message.name in {file.name for file in watched.opened})
    move(message, watched.box / ".Junk")
    watched.turn_until(lambda: watched.votes() == {"anna 0": "spam"})


def test_links_of_which_there_are_many_hide_no_other_trouble(tmp_path):
    """A pattern may end within a directory that belongs to a user."""
    for name in ("anna", "eve"):
        (tmp_path / "home" / name).mkdir(parents=True)
    elsewhere = maildir(tmp_path / "elsewhere")
    for number in range(300):
        (tmp_path / "home" / "eve" / f"{number}").symlink_to(elsewhere)
    with closing(LocalMailboxes([Watch(f"{tmp_path}/home/*/*")], notify=False)) as mailboxes:
        assert mailboxes.find_mailboxes() == []
        assert 0 < len(mailboxes.unreadable_directories()) <= 20
