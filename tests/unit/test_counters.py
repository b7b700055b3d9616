"""Counters in shared memory: what one process adds, others sum; nothing is lost when a slot gets a
new owner.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from spamguard import counters
from spamguard.counters import (
    BUCKET_BOUNDS,
    MASTER_SLOT,
    STAGES,
    CounterBoard,
    CounterSlot,
    sum_slots,
)
from tests.support.waiting import PATIENCE
from tests.unit.slots import unshared


@pytest.fixture
def board():
    made = CounterBoard.create()
    yield made
    os.close(made.descriptor)


def owned(board: CounterBoard, pid: int = 1) -> CounterSlot:
    slot = board.free_slot()
    slot.assign(pid, 1000.0)
    return slot


def test_a_slot_has_whole_pages_for_itself():
    """Its size is checked when it is made: a slot beyond the end of its memory is an error."""
    assert counters.SLOT_BYTES % mmap.PAGESIZE == 0
    unshared()


def test_messages_are_summed_over_processes(board):
    one, other = owned(board, 1), owned(board, 2)
    assert one.number != other.number
    one.count_message("spam", "tag", 100)
    one.count_message("spam", "tag", 50)
    one.count_message("ham", "tag", 1)
    other.count_message("spam", "tag", 7)
    other.count_message("newsletter", "quarantine", 2)
    found = sum_slots(board.used_slots())
    assert found.messages == {
        ("ham", "tag"): 1,
        ("newsletter", "quarantine"): 1,
        ("spam", "tag"): 3,
    }
    assert found.bytes == 160


def test_who_takes_a_slot_over_goes_on_adding(board):
    first = owned(board)
    first.count_message("spam", "tag", 10)
    first.count_next_hop_error("smtp://192.0.2.1:25", "lost", "gone", 5)
    first.add_seconds(0, 0.5)
    first.assign(0, 2000.0)
    assert sum_slots(board.used_slots()).messages == {("spam", "tag"): 1}
    second = owned(board, 2)
    assert second.number == first.number
    second.count_message("spam", "tag", 10)
    second.count_message("ham", "tag", 10)
    found = sum_slots(board.used_slots())
    assert found.messages == {("ham", "tag"): 1, ("spam", "tag"): 2}
    assert found.bytes == 30
    assert found.next_hop_errors == {("smtp://192.0.2.1:25", "lost"): 1}
    assert sum(found.stages["receive"][0]) == 1


def test_another_process_sees_it(board):
    slot = owned(board, 42)
    code = (
        "import sys; from spamguard.counters import CounterBoard\n"
        "slot = CounterBoard(int(sys.argv[1])).slot(int(sys.argv[2]))\n"
        "print(slot.pid); slot.count_message('unsure', 'tag', 5); slot.beat(77)"
    )
    arguments = [sys.executable, "-c", code, str(board.descriptor), str(slot.number)]
    done = subprocess.run(
        arguments,
        pass_fds=[board.descriptor],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "42\n"
    assert sum_slots(board.used_slots()).messages == {("unsure", "tag"): 1}
    assert (slot.last_beat, slot.scoring) == (77, True)


def test_a_slot_that_is_given_up_is_not_well_and_no_worker(board):
    slot = owned(board)
    slot.beat(5)
    assert [worker.number for worker in board.worker_slots()] == [slot.number]
    slot.assign(0, 2000.0)
    assert not list(board.worker_slots())
    assert (slot.last_beat, slot.scoring) == (0, False)


def test_slots_behind_a_free_one_are_seen(board):
    first, second = owned(board, 1), owned(board, 2)
    second.count_message("ham", "tag", 1)
    first.assign(0, 1.0)
    assert sum_slots(board.used_slots()).messages == {("ham", "tag"): 1}
    assert owned(board, 3).number == first.number


def test_there_is_an_end_to_slots(board, monkeypatch):
    monkeypatch.setattr(counters, "MAX_SLOTS", 7)
    owned(board, 1), owned(board, 2)
    with pytest.raises(OSError, match="too many"):
        board.free_slot()


@pytest.mark.parametrize("seconds", [0.0, 0.0005, *BUCKET_BOUNDS, 601.0, 1e6])
def test_where_a_time_falls(seconds):
    slot = unshared()
    slot.add_seconds(1, seconds)
    counts, whole = slot.read_stage(1)
    below = [number for number, bound in enumerate(BUCKET_BOUNDS) if seconds <= bound]
    assert counts.index(1) == (below[0] if below else len(BUCKET_BOUNDS))
    assert sum(counts) == 1
    assert whole == pytest.approx(seconds, abs=1e-6)
    assert [sum(slot.read_stage(number)[0]) for number in range(len(STAGES))] == [0, 1, 0]


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


def test_the_longest_class_and_text_of_any_script_have_room():
    slot = unshared()
    slot.count_message("c" * 32, "quarantine", 1)
    slot.count_next_hop_error("lmtp:/" + "p" * 200, "unreachable", "ж" * 300, 9)
    assert dict(slot.read_rows("messages")) == {("c" * 32, "quarantine"): 1}
    ((endpoint, kind),) = dict(slot.read_rows("next_hop_errors"))
    assert (endpoint, kind) == ("lmtp:/" + "p" * 84, "unreachable")
    ((when, text),) = slot.read_errors()
    assert when == 9
    assert text.startswith("lmtp:/ppp")


def test_the_last_trouble_of_each_next_hop(board):
    one, other = owned(board, 1), owned(board, 2)
    one.count_next_hop_error("smtp://a:25", "unreachable", "refused", 10)
    one.count_next_hop_error("smtp://a:25", "stalled", "slow", 20)
    one.count_next_hop_error("smtp://b:25", "lost", "gone", 15)
    other.count_next_hop_error("smtp://a:25", "lost", "gone", 17)
    assert sum_slots(board.used_slots()).troubles == [
        (20, "smtp://a:25: slow"),
        (17, "smtp://a:25: gone"),
        (15, "smtp://b:25: gone"),
    ]


def test_how_far_lessons_are_counted():
    slot = unshared()
    assert slot.seq == -1
    slot.seq = 0
    assert slot.seq == 0
