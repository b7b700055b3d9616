"""The short-lived process that settles, as the master starts it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard.config.options import Settings
from spamguard.config.values import KeptLessons
from spamguard.daemon import settle
from spamguard.delivery.quarantine import DIRECTORY, REFUSED, Quarantine
from spamguard.engine.filter import Filter
from spamguard.engine.policy import SPAM_THRESHOLD
from spamguard.errors import TableError
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.proxy.history import HISTORY_FILE, History
from spamguard.smtp.envelope import Client, Envelope, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.unit.filters import READER, mail, opened, teach
from tests.unit.proxy.history_rows import append, row


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
        settle.settle_if_due(tmp_path)
    assert (len(tries), caplog.text) == (1, "")


def test_held_mail_is_removed_when_it_is_too_old(tmp_path: Path) -> None:
    """By the time that the history trusts: a clock that jumps ahead removes nothing."""
    now = time.time()
    quarantine, names = Quarantine(tmp_path / DIRECTORY), {}
    envelope = Envelope(Sender("a@b.example"), (Recipient("c@d.example"),), Client("192.0.2.1"))
    for days in (0, 29, 31, 32):
        names[days] = new_id(now - days * 86_400, bytes(RANDOM_BYTES))
        spool = Spool(tmp_path)
        spool.write(b"Subject: x\r\n\r\n")
        reason = REFUSED if days == 31 else "spam"
        quarantine.store(names[days], SpoolView(b"", spool, 0), envelope, reason, now)
        spool.close()
    settle.remove_expired(tmp_path, 7, REFUSED)
    assert set(quarantine.ids()) == {names[0], names[29], names[32]}
    settle.remove_expired(tmp_path, 30)
    assert set(quarantine.ids()) == {names[0], names[29]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 400 * 86_400)
        settle.remove_expired(tmp_path, 30)
    assert set(quarantine.ids()) == {names[0], names[29]}


def test_ham_that_stayed_ends_caution(tmp_path: Path) -> None:
    """Not what is too new to be complained of, what was taught since, or what is not called ham."""
    lessons, now = mail(60), time.time()
    _, taught = next(pair for pair in lessons if pair[0] == "ham")
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, lessons)
        cautious = {raw: spam_filter.scan(raw).threshold for _, raw in lessons}
        usual = {"fingerprint": spam_filter.ledger.fingerprint, "label": "ham", "time": now - 4e5}
    rows = [row(number, **usual) for number in range(500)]
    for change in ({"label": "unsure"}, {"time": now}, {"fingerprint": "0" * 16}):
        rows += [row(1000 + len(rows), **usual | change)]
    rows += [row(2000, **usual | {"digest": READER.digest(taught)}), row(2001, **usual)]
    rows[-1] = replace(rows[-1], digest=rows[0].digest)
    with History.open(tmp_path / HISTORY_FILE, 1 << 30, 30) as history:
        append(history, *rows[:400], *rows[500:])
        assert settle.settle(Settings(tmp_path, ())) == 0
        with opened(tmp_path) as spam_filter:
            assert spam_filter.status().stayed == 400
            thresholds = {raw: spam_filter.scan(raw).threshold for _, raw in lessons}
            assert all(thresholds[raw] < cautious[raw] for raw in cautious)
            append(history, *rows[400:502])
            assert settle.settle(Settings(tmp_path, ())) == 0
            assert {spam_filter.scan(raw).threshold for _, raw in lessons} == {SPAM_THRESHOLD}


def test_the_oldest_lessons_are_forgotten_and_the_rest_is_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    now = int(time.time())
    with opened(tmp_path) as spam_filter:
        for number, (label, raw) in enumerate(mail(60)):
            (vote,) = spam_filter.make_votes([READER.read_example(raw)], label)
            spam_filter.cast_votes([vote._replace(time=now + 3600 - number * 86_400)])
        spam_filter.settle()
    settings = Settings(tmp_path, (), keep=KeptLessons(days=30))
    assert settle.settle(settings) == 0
    assert "forgot the 29 oldest lessons (keep: 30d)" in caplog.text
    assert "settled" in caplog.text
    caplog.clear()
    assert settle.settle(settings) == 0
    assert caplog.text == ""
    with opened(tmp_path) as spam_filter:
        status = spam_filter.status()
        assert (sum(status.classes.values()), status.unsettled) == (31, 0)
