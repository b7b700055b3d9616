"""Counters in shared memory: what one process adds, others sum; nothing is lost when a slot gets a
new owner.
"""

from __future__ import annotations

import os

import pytest

from spamguard import counters
from spamguard.counters import (
    MASTER_SLOT,
    CounterBoard,
    CounterSlot,
)


@pytest.fixture
def board():
    made = CounterBoard.create()
    yield made
    os.close(made.descriptor)


def owned(board: CounterBoard, pid: int = 1) -> CounterSlot:
    slot = board.free_slot()
    slot.assign(pid, 1000.0)
    return slot


def test_there_is_an_end_to_slots(board, monkeypatch):
    monkeypatch.setattr(counters, "MAX_SLOTS", 7)
    owned(board, 1), owned(board, 2)
    with pytest.raises(OSError, match="too many"):
        board.free_slot()


def test_what_has_no_row_left_or_too_long_a_name_is_counted_as_other(board):
    slot = board.slot(MASTER_SLOT)
    for number in range(100):
        slot.count_message(f"class-{number}", "tag", 1)
    found = dict(slot.read_rows("messages"))
    assert len(found) == 48
    assert found[counters.OTHER_ROW] == 100 - 47
    assert sum(found.values()) == 100
    again = board.slot(MASTER_SLOT)
    again.count_message("class-99", "tag", 1)
    assert dict(again.read_rows("messages"))[counters.OTHER_ROW] == 54
    slot.count_lessons("x" * 60, "folder", 3)
    assert dict(slot.read_rows("lessons")) == {counters.OTHER_ROW: 3}
