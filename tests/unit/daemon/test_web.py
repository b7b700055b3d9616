"""The web process and its errors; the rest is tested with the real daemon."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spamguard.config.options import HostPort, Settings, Web
from spamguard.counters import REPORTER_SLOT, WEB_SLOT, CounterBoard
from spamguard.daemon import web


def test_the_error_for_a_low_port_names_the_remedy() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "from 1024 on" in web.describe_error(Web(HostPort("127.0.0.1", 443)), refused)
    assert (
        web.describe_error(Web(HostPort("127.0.0.1", 8080)), refused)
        == "http://127.0.0.1:8080: Permission denied"
    )


@pytest.mark.parametrize("metrics", [None, HostPort("127.0.0.1", 9110)])
def test_lessons_are_counted_by_one_process(tmp_path: Path, metrics: HostPort | None) -> None:
    board = CounterBoard.create()
    try:
        monitor = web.WebMonitor(Settings(tmp_path, (), metrics=metrics), board)
        monitor.beat()
        assert board.slot(WEB_SLOT).last_beat
        slot = monitor._reporter._filter_probe._slot
        slot.count_lessons("spam", "web", 3)
        assert bool(list(board.slot(REPORTER_SLOT).read_rows("lessons"))) == (metrics is None)
    finally:
        os.close(board.descriptor)
