"""Mailboxes and folders that come, go, come back under a name that was used before, or are scanned
only in part.
"""

from __future__ import annotations

import shutil
import time

from spamguard.learning import status_files
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import MAIL


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
