"""What tells of changes: inotify, by watchdog, and polling where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.folders import changes
from spamguard.folders.changes import DirectoryMonitor, InotifyEvents
from tests.support.waiting import PATIENCE

NOBODY = 65534


class Reader(InotifyEvents):
    """With the keys of its watches, as `DirectoryMonitor` has them."""

    def __init__(self) -> None:
        self.keys: set[object] = set()
        super().__init__(self.keys)

    def watch(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            key = self.add(descriptor, str(path), object())
        finally:
            os.close(descriptor)
        self.keys.add(key)
        return key


@pytest.fixture
def reader() -> Iterator[Reader]:
    with closing(Reader()) as one:
        yield one


def add(monitor: DirectoryMonitor, path: Path, **options: object) -> None:
    """Watch a directory; its name is the target."""
    descriptor = os.open(path, os.O_RDONLY)
    monitor.add(descriptor, str(path), path.name, **options)
    os.close(descriptor)


# ---- Linux


def test_names_that_come_and_go(reader, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    a, b = reader.watch(tmp_path / "a"), reader.watch(tmp_path / "b")
    assert reader.watch(tmp_path / "a") == a
    assert reader.read() == set()
    long = tmp_path / "a" / ("x" * 200)
    long.touch()
    assert reader.read() == {(a, False, False)}
    long.write_text("text")  # writing is no event
    long.chmod(0o600)
    assert reader.read() == set()
    long.rename(tmp_path / "b" / "y")
    assert reader.read() == {(a, False, False), (b, False, False)}
    (tmp_path / "a" / "link").hardlink_to(tmp_path / "b" / "y")
    assert reader.read() == {(a, False, False)}
    (tmp_path / "b" / "y").unlink()
    assert reader.read() == {(b, False, False)}
    (tmp_path / "b" / "d").mkdir()
    assert reader.read() == {(b, True, False)}
    (tmp_path / "b" / "d").rmdir()
    assert reader.read() == {(b, True, False)}
    (tmp_path / "b").rmdir()
    assert reader.read() == {(b, True, True)}


def test_what_was_opened_is_watched_whatever_its_path_leads_to(reader, tmp_path):
    (tmp_path / "a").mkdir()
    descriptor = os.open(tmp_path / "a", os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    watch = reader.add(descriptor, str(tmp_path / "a"), object())
    os.close(descriptor)
    (tmp_path / "a" / "x").write_text("")
    assert reader.read() == set()
    (tmp_path / "b" / "x").write_text("")
    assert reader.read() == {(watch, False, False)}


def test_a_file_cannot_be_watched(reader, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        reader.watch(tmp_path / "file")


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


def test_many_events_are_read_in_one_go(reader, tmp_path):
    watch = reader.watch(tmp_path)
    for number in range(3000):
        (tmp_path / f"{number:0>40}").write_text("")
    assert reader.read() == {(watch, False, False)}
    assert reader.read() == set()


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


def test_any_number_of_directories_takes_no_thread_and_no_descriptor(tmp_path):
    def used() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = used()
    with closing(DirectoryMonitor()) as monitor:
        opened = used()
        for number in range(300):
            (tmp_path / str(number)).mkdir()
            for _ in range(2):
                add(monitor, tmp_path / str(number))
        assert used() == opened
        assert not os.get_inheritable(monitor._events.fileno())
        for number in range(300):
            (tmp_path / str(number)).rmdir()
        assert monitor.wait(0) == ({str(number) for number in range(300)}, False)
    assert used() == before
    DirectoryMonitor().close()
    assert used() == before


# ---- any system


def test_a_path_that_leads_nowhere_is_not_polled_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.0)
    (tmp_path / "a").mkdir()
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    (tmp_path / "a").rmdir()
    with closing(DirectoryMonitor(notify=False)) as monitor:
        monitor.add(descriptor, str(tmp_path / "a"), "target")
        os.close(descriptor)
        assert monitor.wait(0) == (set(), False)


def test_waiting_ends_in_time(tmp_path):
    with closing(DirectoryMonitor()) as monitor:
        assert monitor.wait(0) == (set(), False)
        assert monitor.wait(0.05) == (set(), False)


def test_watchdog_is_loaded_only_where_directories_are_watched(tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from spamguard.config.options import Watch\n"
        "from spamguard.daemon import learner, mailbox_broker\n"
        "from spamguard.folders.broker import make_mailboxes\n"
        "watches, socket = [Watch(sys.argv[1])], Path(sys.argv[1], 'socket')\n"
        "def loaded(): return 'watchdog' in sys.modules\n"
        "make_mailboxes(watches, socket); make_mailboxes(watches, None, notify=False)\n"
        "before = loaded(); make_mailboxes(watches, None); print(before, loaded())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False True\n"
