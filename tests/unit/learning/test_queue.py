"""Accepted lessons wait on the disk: whole ones only, oldest first, not without bound."""

from __future__ import annotations

import os
import stat
import time

import pytest

from spamguard.learning.queue import LessonQueue
from spamguard.users import LessonHeader, QueuedLesson

SPAM = LessonHeader("spam", 6, "anna")


def test_lessons_come_out_in_order(tmp_path):
    queue = LessonQueue(tmp_path / "teach")
    assert queue.names() == []
    queue.put(SPAM, "mail", [b"abc", b"def"])
    queue.put(LessonHeader("ham", 1, "ben"), "teach-pipe", [b"x"])
    first, second = queue.names()
    assert queue.take(first) == QueuedLesson("spam", "anna", "mail", b"abcdef")
    assert queue.take(second) == QueuedLesson("ham", "ben", "teach-pipe", b"x")
    queue.remove(first)
    queue.remove(first)
    assert queue.names() == [second]
    assert queue.take(first) is None
    (file,) = (tmp_path / "teach").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_failure_halfway_leaves_nothing(tmp_path):
    queue = LessonQueue(tmp_path / "teach")

    def pieces():
        yield b"abc"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        queue.put(SPAM, "mail", pieces())
    assert list((tmp_path / "teach").iterdir()) == []


def test_unfinished_files_are_removed_in_the_end(tmp_path):
    place = tmp_path / "teach"
    queue = LessonQueue(place)
    queue.put(SPAM, "mail", [b"abcdef"])
    (name,) = queue.names()
    for age, file in ((0, place / f".{name}.1.new"), (7200, place / f".{name}.2.new")):
        file.write_bytes(b"TEACH spam 6\nabc")
        os.utime(file, (time.time() - age,) * 2)
    assert queue.names() == [name]
    assert {path.name for path in place.iterdir()} == {name, f".{name}.1.new"}
