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
from spamguard.learning.status_files import read_dropped
from spamguard.users import PIPE_ORIGIN, LessonHeader
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


def test_everything_that_waits_is_learnt_once(tmp_path, queue):
    for number, raw in enumerate(MAIL):
        put(queue, raw, "spam" if number < 70 else "ham")
    put(queue, MAIL[0])  # again
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: None)
        assert learner.run_once() == 81
        assert (
            votes(spam_filter) == [("anna", "spam", "mail")] * 70 + [("anna", "ham", "mail")] * 10
        )
        assert queue.names() == []
        assert learner.run_once() == 0


def test_the_last_word_counts_wherever_it_was_said(tmp_path, queue, spool):
    put(queue, MAIL[0], "spam")
    leave(tmp_path, MAIL[0], "ham")
    put(queue, MAIL[1], "ham")
    leave(tmp_path, MAIL[1], "spam")
    with opened(tmp_path / "state") as spam_filter:
        assert Learner(spam_filter, [spool, queue], lambda: None).run_once() == 4
        assert votes(spam_filter)[-1][1:] == ("spam", "teach-pipe")
        assert spam_filter.status().classes == {"ham": 1, "spam": 1}
    assert list((tmp_path / "left").iterdir()) == []


def test_what_was_said_is_taken_back_in_its_turn(tmp_path, queue):
    lessons = [
        ("spam", "anna"),
        ("spam", "ben"),
        ("", "anna"),
        ("", "carl"),
        ("ham", "anna"),
        ("", "ben"),
    ]
    for label, user in lessons:
        put(queue, MAIL[0], label, user, "spamd")
    with opened(tmp_path / "state") as spam_filter:
        assert Learner(spam_filter, [queue], lambda: None).run_once() == 6
        assert spam_filter.status().classes == {"ham": 1, "spam": 0}
        assert votes(spam_filter) == [
            ("anna", "spam", "spamd"),
            ("ben", "spam", "spamd"),
            ("anna", None, "spamd"),
            ("anna", "ham", "spamd"),
            ("ben", None, "spamd"),
        ]
    assert queue.names() == []


def test_what_is_no_lesson_goes(tmp_path, queue, spool, caplog):
    put(queue, MAIL[0], "spma")  # as a class of its own it is a slip of the pen
    put(queue, MAIL[1])
    (tmp_path / "left" / "rubbish\n").write_text("x")
    with opened(tmp_path / "state") as spam_filter:
        Learner(spam_filter, [queue, spool], lambda: None).run_once()
        assert votes(spam_filter) == [("anna", "spam", "mail")]
    assert queue.names() == []
    assert list((tmp_path / "left").iterdir()) == []
    assert "did you mean 'spam'" in caplog.text
    assert "rubbish\\n" in caplog.text


def test_who_hands_a_lesson_over_makes_no_class(tmp_path, queue, caplog):
    """Each costs memory and time for all mail, and every account of the machine may teach; an
    address stands for what is configured.
    """
    put(queue, MAIL[0], "newsletter", origin=PIPE_ORIGIN)
    put(queue, MAIL[1], "receipts", origin="mail")
    put(queue, MAIL[2], "receipts", origin=PIPE_ORIGIN)
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: None)
        learner.run_once()
        assert spam_filter.status().classes == {"ham": 0, "spam": 0, "receipts": 2}
        why = "there is no class 'newsletter' here; `spamguard learn --as newsletter` makes one"
        assert why in caplog.text
        told = read_dropped(spam_filter.directory)
        assert [(user, one.number, one.folder, one.why) for user, one in told.items()] == [
            ("anna", 1, PIPE_ORIGIN, why)
        ]
        assert queue.names() == []
        spam_filter.define_class("newsletter", unwanted=False)
        put(queue, MAIL[0], "newsletter", origin=PIPE_ORIGIN)
        learner.run_once()
        assert spam_filter.status().classes["newsletter"] == 1


def test_trouble_of_ours_loses_nothing(tmp_path, queue, monkeypatch):
    put(queue, MAIL[0])
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: None)
        with monkeypatch.context() as broken:
            broken.setattr(
                spam_filter._ledger,
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
        read = ExampleReader.read_examples
        monkeypatch.setattr(
            ExampleReader,
            "read_examples",
            lambda reader, raws: 1 / 0 if raws == [MAIL[0]] else read(reader, raws),
        )
        learner.run_once()
        learner.run_once()
        assert [user for user, *_ in votes(spam_filter)] == ["ben"]
        assert len(queue.names()) == 1
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
                "spamguard.learning.queue._read_spooled",
                lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk")),
            )
            assert (learner.run_once(), learner.run_once()) == (0, 0)
        assert learner.run_once() == 1
    assert caplog.text.count("bad disk") == 1


def test_it_wishes_to_settle_when_that_is_due(tmp_path, queue):
    wishes: list[int] = []
    for raw in MAIL[:30]:
        put(queue, raw)
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: wishes.append(1))
        learner.run_once()
        learner.run_once()
    assert wishes == [1]


def test_nobody_teaches_without_bound(tmp_path, queue, caplog, one_day):
    with opened(tmp_path / "state") as spam_filter:
        learner = Learner(spam_filter, [queue], lambda: None, lessons_per_day=5)
        for raw in MAIL[:8]:
            put(queue, raw)
        put(queue, MAIL[9], user="ben")
        learner.run_once()
        assert [user for user, *_ in votes(spam_filter)] == ["anna"] * 5 + ["ben"]
        assert caplog.text.count("a lesson of 'anna' by mail is dropped: beyond") == 3
        for raw in (MAIL[0], MAIL[9]):  # the first is known, and costs nothing
            put(queue, raw, origin="teach-pipe")
        learner.run_once()
        assert len(votes(spam_filter)) == 6
        assert caplog.text.count("is dropped: beyond") == 4
        assert [
            (user, one.number) for user, one in read_dropped(spam_filter.directory).items()
        ] == [("anna", 4)]
        assert queue.names() == []


def test_who_runs_the_site_has_no_limit_and_users_have_one_for_all_they_bring(
    tmp_path, queue, caplog, one_day
):
    for number, raw in enumerate(MAIL[:9]):
        put(
            queue,
            raw,
            user="" if number < 4 else "anna",
            origin=("rspamd", "spamd", "mail")[number % 3],
        )
    with opened(tmp_path / "state") as spam_filter:
        Learner(spam_filter, [queue], lambda: None, lessons_per_day=3).run_once()
        assert [user for user, *_ in votes(spam_filter)] == [""] * 4 + ["anna"] * 3
    assert "a lesson of 'anna' by mail is dropped: beyond lessons_per_day" in caplog.text
