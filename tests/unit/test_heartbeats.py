"""Liveness of the processes, by their heartbeats."""

from __future__ import annotations

import os

import pytest

from spamguard.counters import (
    MASTER_SLOT,
    TEACHER_SLOT,
    WATCHER_SLOT,
    WEB_SLOT,
    CounterBoard,
    find_absent,
    find_missing_scorers,
    find_stuck,
)

SECOND = 1_000_000_000


def find_unwell(board, now):
    return [*find_stuck(board, now), *find_absent(board, now)]


@pytest.fixture
def board():
    made = CounterBoard.create()
    master = made.slot(MASTER_SLOT)
    master.assign(1, 1.0)
    master.beat(100 * SECOND)
    yield made
    os.close(made.descriptor)


def test_all_are_well(board):
    worker = board.free_slot()
    worker.assign(7, 1.0)
    worker.beat(95 * SECOND)
    assert find_unwell(board, 101 * SECOND) == []
    assert find_missing_scorers(board) == []


def test_there_must_be_a_worker(board):
    assert find_unwell(board, 101 * SECOND) == ["workers: none runs"]
    assert find_missing_scorers(board) == ["scorers: none is ready"]


def test_silent_processes_are_named(board):
    worker = board.free_slot()
    worker.assign(7, 1.0)
    worker.beat(80 * SECOND, scoring=False)
    assert find_unwell(board, 101 * SECOND) == ["worker 7: not heard for 21 s"]
    assert find_unwell(board, 120 * SECOND) == [
        "master 1: not heard for 20 s",
        "worker 7: not heard for 40 s",
    ]
    assert find_missing_scorers(board) == ["scorers: none is ready"]


@pytest.mark.parametrize(
    ("number", "silent", "told"),
    [
        (WEB_SLOT, 12, "page and API: nobody serves them for 12 s"),
        (TEACHER_SLOT, 152, "lessons: nobody learns them for 152 s"),
        (WATCHER_SLOT, 152, "folders: nobody watches them for 152 s"),
    ],
)
def test_optional_processes_are_missed_only_if_configured(board, number, silent, told):
    board.free_slot().assign(7, 1.0)
    assert find_unwell(board, 101 * SECOND) == []
    board.slot(number).assign(1, 1.0)
    board.slot(number).beat(95 * SECOND)
    assert find_unwell(board, 101 * SECOND) == []
    now = (95 + silent) * SECOND
    board.slot(MASTER_SLOT).beat(now)
    assert find_unwell(board, now) == [told]
    assert find_stuck(board, now) == []
    board.slot(number).assign(0, 1.0)
    assert find_unwell(board, now) == []


def test_one_that_begins_has_time(board):
    worker = board.free_slot()
    worker.assign(7, 1.0)
    assert find_unwell(board, 101 * SECOND) == []
