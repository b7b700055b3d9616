"""The reader of the kernel's events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.folders import changes
from spamguard.folders.changes import (
    IN_CREATE,
    IN_DELETE,
    IN_IGNORED,
    IN_ISDIR,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    IN_Q_OVERFLOW,
    DirectoryMonitor,
    Inotify,
)
from tests.support.waiting import PATIENCE


@pytest.fixture
def reader() -> Iterator[Inotify]:
    one = Inotify()
    yield one
    one.close()


def add(reader: Inotify, path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return reader.add(descriptor)
    finally:
        os.close(descriptor)


def test_names_that_come_and_go(reader, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    a, b = add(reader, tmp_path / "a"), add(reader, tmp_path / "b")
    assert add(reader, tmp_path / "a") == a
    assert list(reader.read()) == []
    (tmp_path / "a" / ("x" * 200)).write_text("text")  # writing is no event
    assert list(reader.read()) == [(a, IN_CREATE)]
    (tmp_path / "a" / ("x" * 200)).rename(tmp_path / "b" / "y")
    assert list(reader.read()) == [(a, IN_MOVED_FROM), (b, IN_MOVED_TO)]
    (tmp_path / "a" / "link").hardlink_to(tmp_path / "b" / "y")
    (tmp_path / "b" / "y").unlink()
    assert list(reader.read()) == [(a, IN_CREATE), (b, IN_DELETE)]
    (tmp_path / "b" / "d").mkdir()
    (tmp_path / "b" / "d").rmdir()
    (tmp_path / "b").rmdir()
    assert list(reader.read()) == [
        (b, IN_CREATE | IN_ISDIR),
        (b, IN_DELETE | IN_ISDIR),
        (b, IN_IGNORED),
    ]


def test_what_was_opened_is_watched_whatever_its_path_leads_to(reader, tmp_path):
    (tmp_path / "a").mkdir()
    descriptor = os.open(tmp_path / "a", os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    watch = reader.add(descriptor)
    os.close(descriptor)
    (tmp_path / "a" / "x").write_text("")
    (tmp_path / "b" / "x").write_text("")
    assert list(reader.read()) == [(watch, IN_CREATE)]


def test_a_file_cannot_be_watched(reader, tmp_path):
    (tmp_path / "file").write_text("")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        reader.add(descriptor)
    os.close(descriptor)


def test_many_events_are_read_in_one_go(reader, tmp_path):
    watch = add(reader, tmp_path)
    for number in range(3000):
        (tmp_path / f"{number:0>40}").write_text("")
    assert list(reader.read()) == [(watch, IN_CREATE)] * 3000


def test_a_lost_event_makes_everything_suspect(tmp_path, monkeypatch):
    class Overflown(Inotify):
        def read(self) -> Iterator[changes.InotifyEvent]:
            yield changes.InotifyEvent(-1, IN_Q_OVERFLOW)

    monkeypatch.setattr(changes, "Inotify", Overflown)
    one = DirectoryMonitor()
    assert one.wait(PATIENCE) == (set(), True)
    one.close()


def test_without_inotify_it_is_said_once_and_polled(tmp_path, monkeypatch, caplog):
    class Missing:
        def __init__(self) -> None:
            raise OSError(38, "Function not implemented")

    monkeypatch.setattr(changes, "Inotify", Missing)
    monkeypatch.setattr(changes, "POLL_SECONDS", 0.05)
    one = DirectoryMonitor()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    one.add(descriptor, str(tmp_path), "target")
    os.close(descriptor)
    (tmp_path / "x").write_text("")
    assert one.wait(PATIENCE) == ({"target"}, False)
    one.close()
    (record,) = caplog.records
    assert "Function not implemented" in record.getMessage()


def test_waiting_ends_in_time(tmp_path):
    one = DirectoryMonitor()
    assert one.wait(0) == (set(), False)
    assert one.wait(0.05) == (set(), False)
    one.close()
