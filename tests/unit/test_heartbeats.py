"""Liveness of the processes, by their heartbeats."""

from __future__ import annotations

import os

import pytest

from spamguard.counters import (
    MASTER_SLOT,
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


def test_one_that_begins_has_time(board):
    worker = board.free_slot()
    worker.assign(7, 1.0)
    assert find_unwell(board, 101 * SECOND) == []
