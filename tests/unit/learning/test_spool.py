"""Lessons left in a directory that anybody can write to: each is by the owner of its file."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from spamguard.learning import client
from spamguard.learning.queue import LessonSpool
from spamguard.users import LessonHeader, QueuedLesson

NAME = f"{1:020d}-{1:012x}"


def owner(account: int, named: str) -> str:
    return f"{account}/{named}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / "left"
    found.mkdir()
    found.chmod(0o1733)
    return found


def test_a_file_is_a_lesson_by_its_owner(place):
    client.spool_lesson(str(place), LessonHeader("spam", 5, "anna"), b"hello")
    client.spool_lesson(str(place), LessonHeader("ham", 2), b"yo")
    box = LessonSpool(place, owner)
    first, second = box.names()
    assert box.take(first) == QueuedLesson("spam", f"{os.getuid()}/anna", "teach-pipe", b"hello")
    assert box.take(second) == QueuedLesson("ham", f"{os.getuid()}/", "teach-pipe", b"yo")
    box.remove(first)
    assert box.names() == [second]
    assert box.take(first) is None


def test_a_failure_halfway_leaves_nothing(place, monkeypatch):
    def full(file: int) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        client.spool_lesson(str(place), LessonHeader("spam", 5), b"hello")
    assert list(place.iterdir()) == []


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _hard_link(path: Path) -> None:
    (path.parent.parent / "secret").write_bytes(b"TEACH spam 5\nhello")
    path.hardlink_to(path.parent.parent / "secret")


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)  # a name that `bind` takes may not be that long


@pytest.mark.parametrize(
    "make",
    [_link, _hard_link, os.mkfifo, _socket, Path.mkdir],
    ids=lambda make: make.__name__.strip("_"),
)
def test_files_that_are_no_lessons(place, make):
    make(place / NAME)
    box = LessonSpool(place, owner)
    assert box.names() == [NAME]
    with pytest.raises(ValueError, match="regular"):
        box.take(NAME)


def test_files_that_cannot_be_removed_hold_up_no_lesson(place, monkeypatch):
    """Anybody can make directories there, of which none can be removed as a file."""
    monkeypatch.setattr("spamguard.learning.queue.MAX_LESSONS", 5)
    for _ in range(3):
        client.spool_lesson(str(place), LessonHeader("spam", 5), b"hello")
    for number in range(40):
        (place / f"{number:020d}-{1:012x}").mkdir()
    box, taken = LessonSpool(place, owner), []
    for _ in range(10):
        for name in box.names():
            with suppress(ValueError):
                taken.append(box.take(name))
            with suppress(OSError):
                box.remove(name)
    assert [lesson.raw for lesson in taken] == [b"hello"] * 3
    assert box.names() == []


def test_half_a_lesson_is_dropped_in_the_end_with_any_time_of_its_file(place, monkeypatch):
    """Half a lesson with a time to come would be looked at again and again, and counts among those
    that are.
    """
    (place / NAME).write_bytes(b"TEACH spam 5\nhel")
    os.utime(place / NAME, (time.time() + 1e9,) * 2)
    box = LessonSpool(place, owner)
    assert box.take(NAME) is None
    later = time.time() + 700
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(ValueError, match="not as long"):
        box.take(NAME)
