"""What the process behind page and API makes of trouble; the rest of it is tested with the real daemon."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from spamguard.daemon import serving
from spamguard.metrics.counters import REPORTER, SERVER, Board
from spamguard.settings import Certificate, Place, Settings, Web
from tests.support.certificates import self_signed


def test_a_low_port_says_what_to_do() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert "from 1024 on" in serving._in_words(Web(Place("127.0.0.1", 443)), refused)
    assert serving._in_words(Web(Place("127.0.0.1", 8080)), refused) == "http://127.0.0.1:8080: Permission denied"


def test_a_broken_certificate_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    pem = self_signed(tmp_path)
    found = serving._Certificates(Certificate(pem, pem))
    context = found.context
    found.renew()
    assert caplog.messages == []
    pem.write_text("rubbish")
    found.renew()
    found.renew()
    self_signed(tmp_path)
    os.utime(pem, (1, 1))
    found.renew()
    assert found.context is context
    assert ["old one is" in one for one in caplog.messages] == [True, False]
    pem.unlink()
    caplog.clear()
    for _ in range(3):
        found.renew()
    assert ["cannot be used" in one for one in caplog.messages] == [True]


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
