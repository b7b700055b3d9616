"""What the process behind page and API makes of trouble; the rest of it is tested with the real daemon."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spamguard.daemon import serving
from spamguard.metrics.counters import REPORTER, SERVER, Board
from spamguard.settings import Place, Settings, Web


def test_a_low_port_says_what_to_do() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "from 1024 on" in serving._in_words(Web(Place("127.0.0.1", 443)), refused)
    assert serving._in_words(Web(Place("127.0.0.1", 8080)), refused) == "http://127.0.0.1:8080: Permission denied"


@pytest.mark.parametrize("metrics", [None, Place("127.0.0.1", 9110)])
def test_lessons_are_counted_by_one_process(tmp_path: Path, metrics: Place | None) -> None:
    board = Board.create()
    try:
        monitor = serving.Monitor(Settings(tmp_path, (), metrics=metrics), board)
        monitor.beat()
        assert board.slot(SERVER).heard
        slot = monitor._reporter._looker._slot
        slot.lesson("spam", "web", 3)
        assert bool(list(board.slot(REPORTER).named("lessons"))) == (metrics is None)
    finally:
        os.close(board.descriptor)
