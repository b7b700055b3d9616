"""A directory that cannot be read for a while, as on a disk that is gone: nothing tells when it
can, so it is tried whenever everything is looked at.
"""

from __future__ import annotations

import errno
import os

import pytest

from spamguard.learning import status_files
from tests.unit.folders.maildirs import deliver, forbid, move
from tests.unit.folders.watched import MAIL, Watched


def look_again(watched: Watched) -> None:
    """It is time to look at everything."""
    watched.watcher._search_due = 0.0
    watched.watcher._queue.rescan_all()


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
