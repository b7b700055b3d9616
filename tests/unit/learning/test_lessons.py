"""Waiting lessons are learnt in order, and one that cannot be learnt holds up no other."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.errors import LedgerError
from spamguard.learning import client
from spamguard.learning.lessons import Learner
from spamguard.learning.queue import LessonQueue, LessonSpool
from spamguard.users import LessonHeader
from tests.unit.filters import mail, opened

MAIL = [raw for _, raw in mail(80)]


@pytest.fixture
def queue(tmp_path: Path) -> LessonQueue:
    return LessonQueue(tmp_path / "teach")


@pytest.fixture
def spool(tmp_path: Path) -> LessonSpool:
    """All that is left there is by anna."""
    (tmp_path / "left").mkdir()
    return LessonSpool(tmp_path / "left", lambda account, named: "anna")


def leave(tmp_path: Path, raw: bytes, label: str = "spam") -> None:
    client.spool_lesson(str(tmp_path / "left"), LessonHeader(label, len(raw)), raw)


def put(
    queue: LessonQueue, raw: bytes, label: str = "spam", user: str = "anna", origin: str = "mail"
) -> None:
    queue.put(LessonHeader(label, len(raw), user), origin, [raw])


def votes(spam_filter: Filter) -> list[tuple[str, str | None, str]]:
    return [(vote.user, vote.label, vote.origin) for vote in spam_filter.ledger.all_votes()]


def test_trouble_of_ours_loses_nothing(tmp_path, queue, monkeypatch):
    put(queue, MAIL[0])
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: None)
        with monkeypatch.context() as broken:
            broken.setattr(
                spam_filter.ledger,
                "append",
                lambda votes, **_: (_ for _ in ()).throw(LedgerError("the disk is full")),
            )
            with pytest.raises(LedgerError):
                learner.run_once()
        assert len(queue.names()) == 1
        assert learner.run_once() == 1
        assert queue.names() == []


def test_a_fault_of_ours_costs_one_lesson_its_turn(tmp_path, queue, monkeypatch, caplog):
    put(queue, MAIL[0], user="anna")
    put(queue, MAIL[1], user="ben")
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: None)
        read = ExampleReader.read_example
        monkeypatch.setattr(
            ExampleReader,
            "read_example",
            lambda reader, raw: 1 / 0 if raw == MAIL[0] else read(reader, raw),
        )
        learner.run_once()
        learner.run_once()
        assert [user for user, *_ in votes(spam_filter)] == ["ben"]
        assert len(list((tmp_path / "teach").iterdir())) == 1
        assert caplog.text.count("a fault") == 1


def test_a_directory_that_is_not_there_is_told_once(tmp_path, queue, caplog):
    put(queue, MAIL[0])
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(
            spam_filter,
            [LessonSpool(tmp_path / "none", lambda account, named: "x"), queue],
            lambda: None,
        )
        assert learner.run_once() == 1
        learner.run_once()
    assert caplog.text.count("cannot be taken from") == 1


def test_what_cannot_be_read_for_now_is_told_once_and_learnt_later(
    tmp_path, spool, monkeypatch, caplog
):
    """It was put aside until the next start, whatever the reason."""
    leave(tmp_path, MAIL[0])
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [spool], lambda: None)
        with monkeypatch.context() as broken:
            broken.setattr(
                "spamguard.learning.queue._read_file",
                lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk")),
            )
            assert (learner.run_once(), learner.run_once()) == (0, 0)
        assert learner.run_once() == 1
    assert caplog.text.count("bad disk") == 1
