"""What the watcher leaves for users to read."""

from __future__ import annotations

import json
import logging
import time

import pytest

from spamguard.folders import watcher
from spamguard.learning import status_files
from spamguard.learning.status_files import WatcherFile, WatcherStatus
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
