"""What the watcher leaves for users to read."""

from __future__ import annotations

import logging
import time

import pytest

from spamguard.folders import watcher
from spamguard.learning import status_files
from spamguard.learning.status_files import WatcherFile
from spamguard.log import WarnOnce
from tests.unit.folders.maildirs import forbid, maildir


@pytest.fixture
def once():
    return WarnOnce(logging.getLogger("spamguard.folders"))


def status_file(state, warnings):
    return WatcherFile(
        state, warnings, lambda: watcher.standing_troubles(warnings.standing(), int(time.time()))
    )


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
