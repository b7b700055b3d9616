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


def test_another_process_sees_it(tmp_path):
    LessonQueue(tmp_path / "teach").put(SPAM, "mail", [b"abcdef"])
    assert len(LessonQueue(tmp_path / "teach").names()) == 1


def test_a_failure_halfway_leaves_nothing(tmp_path):
    queue = LessonQueue(tmp_path / "teach")

    def pieces():
        yield b"abc"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        queue.put(SPAM, "mail", pieces())
    assert list((tmp_path / "teach").iterdir()) == []


def test_there_is_a_bound(tmp_path):
    queue = LessonQueue(tmp_path / "teach", max_lessons=2, max_bytes=100)
    queue.put(SPAM, "mail", [b"abcdef"])
    with pytest.raises(OSError, match="too many"):
        queue.put(LessonHeader("spam", 90), "mail", [b"x" * 90])
    queue.put(SPAM, "mail", [b"abcdef"])
    with pytest.raises(OSError, match="too many"):
        queue.put(SPAM, "mail", [b"abcdef"])
    queue.remove(queue.names()[0])
    queue.put(SPAM, "mail", [b"abcdef"])


def test_unfinished_files_are_removed_in_the_end(tmp_path):
    place = tmp_path / "teach"
    queue = LessonQueue(place)
    queue.put(SPAM, "mail", [b"abcdef"])
    (name,) = queue.names()
    for age, file in ((0, place / f".{name}"), (7200, place / f".{name}x")):
        file.write_bytes(b"TEACH spam 6\nabc")
        os.utime(file, (time.time() - age,) * 2)
    assert queue.names() == [name]
    assert {path.name for path in place.iterdir()} == {name, f".{name}"}


def test_a_damaged_file_is_no_lesson(tmp_path):
    queue = LessonQueue(tmp_path / "teach")
    queue.put(SPAM, "mail", [b"abc"])  # says six
    with pytest.raises(ValueError, match="as long"):
        queue.take(queue.names()[0])


def test_the_last_lesson_is_learnt_last_after_the_clock_was_set_back(tmp_path, monkeypatch):
    queue = LessonQueue(tmp_path / "teach")
    for now, label in ((10**19, "spam"), (10**18, "ham"), (10**18 + 1, "spam")):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        queue.put(LessonHeader(label, 1), "mail", [b"x"], "0" * 12)
    assert [queue.take(name).label for name in queue.names()] == ["spam", "ham", "spam"]
    assert queue.find_marked("0" * 12).label == "spam"
