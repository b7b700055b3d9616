"""Whether all is well, in words: of a daemon by counters and files, of a model by its numbers."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from spamguard import storage
from spamguard.config.options import Hop, Listener, Position, Settings, Watch, parse_endpoint
from spamguard.counters import DaemonReport
from spamguard.learning.status_files import WATCHER_FILE, WatcherStatus, WatcherTrouble
from spamguard.web.numbers import DaemonHealth, check_daemon
from tests.unit.web.fixed import NOW


class Running:
    """The report of a daemon of one worker, and its settings."""

    def __init__(self, state: Path) -> None:
        listener = Listener(
            parse_endpoint("smtp://127.0.0.1:10025"),
            Position.STANDALONE,
            Hop(parse_endpoint("smtp://127.0.0.1:10026")),
        )
        self.settings = Settings(state, (listener,), watch=(Watch("/home/*/Maildir"),))
        self.report = DaemonReport(int(NOW), 1, stuck=[], scoring=True)

    def health(self, *found: str) -> DaemonHealth:
        return check_daemon(self.settings, self.report, found)

    def watched(self, *troubles: WatcherTrouble) -> None:
        now = int(time.time())
        status = WatcherStatus(now, now, 3, {}, troubles)
        (self.settings.state / WATCHER_FILE).write_text(json.dumps(asdict(status)))


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


def test_a_daemon_that_works_has_no_problem(running: Running) -> None:
    running.watched()
    running.report.counters.count_message("ham", "tag", 100)
    health = running.health()
    assert health.problems == []
    assert abs(health.looked_at - time.time()) < 60


def test_each_part_tells_its_problem(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = int(time.time()) - 600
    running.watched(
        WatcherTrouble("anna", "no Junk", lasting),
        WatcherTrouble("ben", "passes soon", int(time.time())),
    )
    running.report.absent, running.report.scoring = ["folders: nobody watches them"], False
    monkeypatch.setattr(storage, "_MIN_FREE_BYTES", 1 << 60)
    health = running.health("next hop smtp://127.0.0.1:10026: refused", "state: broken")
    assert [line.partition(":")[0] for line in health.problems] == [
        "scorers", "folders", "folders", "next hop smtp", "state", "disk",
    ]  # fmt: skip
    assert "folders: anna: no Junk" in health.problems
    assert health.problems[-1].endswith("to build the tables again: make room on that disk")
