"""Tables that keep up with the ledger: all processes that fold the same log hold the same bits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spamguard.engine import fold, store
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError
from spamguard.records import EXTRACTOR
from tests.unit.bayes.support import assert_same
from tests.unit.filters import held, mail, opened, teach

MAIL = mail(60)
Open = Callable[..., Filter]


@pytest.fixture
def open_filter(tmp_path: Path) -> Iterator[Open]:
    """Opens the same filter again and again, as other processes would."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened(tmp_path, **settings))


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*tables-*"))


def test_whoever_is_ahead_of_a_snapshot_of_its_own_lineage_keeps_its_tables(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:10])
    held(second)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 1)
    first._store.save_if_long_tail()
    mine = second._store.tables
    assert held(second) == held(first)
    assert second._store.tables is mine
    assert second._store.stamp.seq == 10


def test_of_two_that_settle_at_once_the_one_that_saw_more_wins(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "UNDO_SECONDS", -60)
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:20])
    teach(first, [("spam", MAIL[0][1]), ("ham", MAIL[0][1])])  # something to compact
    settled = fold.build_tables

    def slow(*arguments: object) -> object:
        monkeypatch.setattr(store, "build_tables", settled)
        teach(first, MAIL[20:25])
        first.settle()
        return settled(*arguments)

    monkeypatch.setattr(store, "build_tables", slow)
    second.settle()
    assert first._store.stamp.settled == second._store.stamp.settled == 27
    assert held(second) == held(first) == held(open_filter())


def test_a_lock_in_the_middle_of_folding_folds_nothing_twice(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:40])
    monkeypatch.setattr("spamguard.engine.fold._FOLD_BATCH", 8)
    whole = second.ledger.changes_after

    def interrupted(seq: int, **options: int) -> Iterator[object]:
        yield from list(whole(seq, **options))[:20]
        raise LedgerError("locked for too long")

    monkeypatch.setattr(second.ledger, "changes_after", interrupted)
    with pytest.raises(LedgerError, match="locked"):
        second.judge(MAIL[0][1])
    monkeypatch.undo()
    assert second.judge(MAIL[50][1]) == first.judge(
        MAIL[50][1]
    )  # tried again though nothing new was committed
    assert held(second) == held(first)


def test_another_process_may_remove_a_snapshot_before_it_counts(
    open_filter: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:20])
    write = store.write_snapshot

    def overtaken(path: Path, *arguments: Any, **settings: Any) -> str:
        digest = write(path, *arguments, **settings)
        monkeypatch.setattr(store, "write_snapshot", write)
        teach(first, MAIL[20:25])
        first.settle()
        assert not path.exists()
        return digest

    monkeypatch.setattr(store, "write_snapshot", overtaken)
    second.settle()
    assert held(second) == held(first) == held(open_filter())
    (name,) = snapshots(tmp_path)
    settled = second._store.stamp
    assert (settled.settled, settled.file) == (25, name)


def test_what_an_older_extractor_left_goes_with_the_first_settling(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:5])
        mine = f"tables.{EXTRACTOR}"
        older, newer = (f"tables-{number}-7-abcd.bin" for number in (EXTRACTOR - 1, EXTRACTOR + 1))
        draft = f".tables-{EXTRACTOR - 1}-7-abcd.bin.9.new"
        for name in (older, newer, draft):
            (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / draft, (0, 0))
        for key in (f"tables.{EXTRACTOR - 1}", f"tables.{EXTRACTOR + 1}"):
            spam_filter.ledger.set_meta(key, "{}")
        spam_filter.settle()
        assert spam_filter.ledger.get_meta(f"tables.{EXTRACTOR - 1}") is None
        assert spam_filter.ledger.get_meta(f"tables.{EXTRACTOR + 1}") == "{}"
        assert json.loads(spam_filter.ledger.get_meta(mine) or "")["settled"] == 5
        assert {path.name for path in tmp_path.iterdir()} & {older, newer, draft} == {newer}


@pytest.mark.parametrize("line", ["{", "7", '{"file": "x", "of": "a newer version"}'])
def test_a_note_that_cannot_be_read_counts_as_none(tmp_path: Path, line: str) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:5])
        spam_filter.settle()
        settled = held(spam_filter)
        spam_filter.ledger.set_meta(f"tables.{EXTRACTOR}", line)
    with opened(tmp_path) as spam_filter:
        assert sum(spam_filter.status().classes.values()) == spam_filter.status().unsettled == 5
        spam_filter.settle()
        assert_same(held(spam_filter), settled)
