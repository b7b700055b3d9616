"""What tells of changes: inotify, by watchdog, and polling where there is none."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.folders import changes
from spamguard.folders.changes import DirectoryMonitor
from tests.support.waiting import PATIENCE

NOBODY = 65534


def add(monitor: DirectoryMonitor, path: Path, **options: object) -> None:
    """Watch a directory; its name is the target."""
    descriptor = os.open(path, os.O_RDONLY)
    monitor.add(descriptor, str(path), path.name, **options)
    os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_directory_that_may_not_be_read_is_polled(tmp_path, monkeypatch, caplog):
    """watchdog gives a number that is none, and no error."""
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    descriptor = os.open(closed, os.O_RDONLY)
    with closing(DirectoryMonitor()) as monitor:
        os.seteuid(NOBODY)
        try:
            for _ in range(2):
                monitor.add(descriptor, str(closed), "target")
        finally:
            os.seteuid(0)
            os.close(descriptor)
        (closed / "x").touch()
        assert monitor.wait(PATIENCE) == ({"target"}, False)
    (record,) = caplog.records
    assert "no file events (Permission denied)" in record.getMessage()


def test_a_lost_event_makes_everything_suspect(tmp_path):
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with closing(DirectoryMonitor()) as monitor:
        add(monitor, tmp_path)
        for number in range(most // 2 + 1):  # the kernel joins events only if they are the same
            (tmp_path / str(number)).touch()
            (tmp_path / str(number)).unlink()
        lost = False
        while not lost:
            targets, lost = monitor.wait(0)
            assert targets, "nothing is said of what was lost"
        while monitor.wait(0)[0]:
            pass
        (tmp_path / "x").touch()
        assert monitor.wait(PATIENCE) == ({tmp_path.name}, False)
