"""The short-lived process that settles, as the master starts it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.daemon import settle
from spamguard.delivery.quarantine import DIRECTORY, Quarantine
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, TableError
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.smtp.envelope import Client, Envelope, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.support.waiting import PATIENCE
from tests.unit.filters import READER, held, mail, opened, upgraded

LEFT = (
    ".import.0a1b.new",
    ".ledger.sqlite.0a1b.new",
    ".ledger.sqlite.0a1b.new-journal",
    ".watching.json.0a1b.new",
)
KEPT = ("notes.new", ".hidden", ".newer")


def test_old_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    Filter.open(tmp_path).close()
    for name in (*LEFT, *KEPT):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - 3700,) * 2)
    (tmp_path / ".import.young.new").write_bytes(b"x")
    (tmp_path / ".directory.new").mkdir()
    os.utime(tmp_path / ".directory.new", (0, 0))
    before = {path.name for path in tmp_path.iterdir()}
    line = [sys.executable, "-m", "spamguard.daemon.settle", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, timeout=PATIENCE, check=True)
    assert b"Traceback" not in done.stderr
    assert before - {path.name for path in tmp_path.iterdir()} == set(LEFT)


def train(state: Path, *more: str) -> str:
    line = [sys.executable, "-m", "spamguard.daemon.settle", str(state), *more]
    return subprocess.run(line, capture_output=True, timeout=PATIENCE, check=True).stderr.decode()


@pytest.mark.slow
def test_damaged_tables_are_rebuilt(tmp_path: Path) -> None:
    """Without that mail would stay unjudged until an operator ran `rebuild`."""
    messages = list(mail(30))
    with opened(tmp_path) as spam_filter:
        for label, raw in messages:
            spam_filter.learn(raw, label)
        spam_filter.settle()
        before = held(spam_filter)
        digest = READER.digest(messages[0][1])
    for table in tmp_path.glob("tables-*.bin"):
        table.write_bytes(b"damaged")
    assert "trying to make all tables anew" in train(tmp_path)
    with opened(tmp_path) as spam_filter:
        assert held(spam_filter) == before
    # a receipt that is damaged, and replaced then
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
        ((packed,),) = db.execute("SELECT packed FROM events WHERE digest = ?", (digest,))
        other = bytes([packed[30] ^ 255])  # whatever it was
        db.execute(
            "UPDATE events SET packed = ? WHERE digest = ?",
            (packed[:30] + other + packed[31:], digest),
        )
    with opened(tmp_path) as spam_filter, pytest.raises(LedgerError):
        spam_filter.forget(messages[0][1])
    assert "trying to make all tables anew" in train(tmp_path)
    with opened(tmp_path) as spam_filter:
        assert sum(spam_filter.status().classes.values()) == 29
    assert "anew" not in train(tmp_path)


def test_settling_that_fails_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk settling is not tried twice each minute, nor good tables called damaged."""
    with opened(tmp_path) as spam_filter:
        for label, raw in mail(30):
            spam_filter.learn_examples([READER.read_example(raw)], label)
    tries: list[Filter] = []

    def full(one: Filter) -> None:
        tries.append(one)
        raise TableError("no space left")

    monkeypatch.setattr(Filter, "settle", full)
    with pytest.raises(TableError):
        settle.settle_if_due(str(tmp_path))
    assert (len(tries), caplog.text) == (1, "")


def test_outdated_lessons_are_logged_as_the_daemon_starts(tmp_path: Path) -> None:
    """Otherwise all mail would be unsure and the log would not say why."""
    with opened(tmp_path) as spam_filter:
        for label, raw in mail(3):
            spam_filter.learn(raw, label)
    assert train(tmp_path, "first") == ""
    upgraded(tmp_path)
    (line,) = train(tmp_path, "first").splitlines()
    assert "3 lessons from before an upgrade that reads mail otherwise" in line
    assert line.endswith("teach the rest again (teach-folders, learn)")
    assert train(tmp_path) == ""


def test_a_joined_filter_without_the_option_is_logged_as_the_daemon_starts(tmp_path: Path) -> None:
    """Otherwise lessons would wait for the others for ever, and nobody would know."""
    with opened(tmp_path) as spam_filter:
        spam_filter.ledger.join()
    assert "`shared`" not in train(tmp_path, "first")
    assert "put it back, or run `spamguard shared leave`" in train(tmp_path, "first", "alone")


def test_held_mail_is_removed_when_it_is_too_old(tmp_path: Path) -> None:
    """By the time that the history trusts: a clock that jumps ahead removes nothing."""
    now = time.time()
    quarantine, names = Quarantine(tmp_path / DIRECTORY), {}
    envelope = Envelope(Sender("a@b.example"), (Recipient("c@d.example"),), Client("192.0.2.1"))
    for days in (0, 29, 31):
        names[days] = new_id(now - days * 86_400, bytes(RANDOM_BYTES))
        spool = Spool(tmp_path)
        spool.write(b"Subject: x\r\n\r\n")
        quarantine.store(names[days], SpoolView(b"", spool, 0), envelope, "spam", now)
        spool.close()
    settle.remove_expired(tmp_path, 30)
    assert set(quarantine.ids()) == {names[0], names[29]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 400 * 86_400)
        settle.remove_expired(tmp_path, 30)
    assert set(quarantine.ids()) == {names[0], names[29]}


def test_the_oldest_lessons_are_forgotten_and_the_rest_is_settled(tmp_path: Path) -> None:
    now = int(time.time())
    with opened(tmp_path) as spam_filter:
        for number, (label, raw) in enumerate(mail(60)):
            (vote,) = spam_filter.make_votes([READER.read_example(raw)], label)
            spam_filter.cast_votes([vote._replace(time=now + 3600 - number * 86_400)])
        spam_filter.settle()
    log = train(tmp_path, "lessons=30 days")
    assert "forgot the 29 oldest lessons (keep: 30 days)" in log
    assert "settled" in log
    assert train(tmp_path, "lessons=30 days") == ""
    with opened(tmp_path) as spam_filter:
        status = spam_filter.status()
        assert (sum(status.classes.values()), status.unsettled) == (31, 0)
