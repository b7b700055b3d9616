"""Which processes live, by what they note."""

from __future__ import annotations

import os

import pytest

from spamguard.metrics.counters import MASTER, SERVER, Board
from spamguard.metrics.liveness import cannot_judge, unwell

SECOND = 1_000_000_000


@pytest.fixture
def board():
    made = Board.create()
    master = made.slot(MASTER)
    master.own(1, 1.0)
    master.beat(100 * SECOND)
    yield made
    os.close(made.descriptor)


def test_all_are_well(board):
    worker = board.free()
    worker.own(7, 1.0)
    worker.beat(95 * SECOND)
    assert unwell(board, 101 * SECOND) == []
    assert cannot_judge(board) == []


def test_there_must_be_a_worker(board):
    assert unwell(board, 101 * SECOND) == ["workers: none runs"]
    assert cannot_judge(board) == ["scorers: none is ready"]


def test_who_is_silent_is_named(board):
    worker = board.free()
    worker.own(7, 1.0)
    worker.beat(80 * SECOND, scoring=False)
    assert unwell(board, 101 * SECOND) == ["worker 7: not heard for 21 s"]
    assert unwell(board, 120 * SECOND) == ["master 1: not heard for 20 s", "worker 7: not heard for 40 s"]
    assert cannot_judge(board) == ["scorers: none is ready"]


def test_page_and_api_are_missed_where_they_are_to_be(board):
    board.free().own(7, 1.0)
    assert unwell(board, 101 * SECOND) == []
    board.slot(SERVER).own(1, 1.0)
    board.slot(SERVER).beat(95 * SECOND)
    assert unwell(board, 101 * SECOND) == []
    assert "page and API: nobody serves them for 12 s" in unwell(board, 107 * SECOND)
    board.slot(SERVER).own(0, 1.0)
    assert unwell(board, 107 * SECOND) == []


def test_one_that_begins_has_time(board):
    worker = board.free()
    worker.own(7, 1.0)
    assert unwell(board, 101 * SECOND) == []
