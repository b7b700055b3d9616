"""Which processes live, by what they note."""

from __future__ import annotations

import os

import pytest

from spamguard.metrics.counters import MASTER, SERVER, TEACHER, WATCHER, Board
from spamguard.metrics.liveness import cannot_judge, cannot_pass, unwell

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


@pytest.mark.parametrize(
    ("number", "silent", "told"),
    [
        (SERVER, 12, "page and API: nobody serves them for 12 s"),
        (TEACHER, 12, "the teaching door: nobody opens it for 12 s"),
        (WATCHER, 152, "folders: nobody watches them for 152 s"),
    ],
)
def test_what_is_beside_the_mail_is_missed_where_it_is_to_be(board, number, silent, told):
    board.free().own(7, 1.0)
    assert unwell(board, 101 * SECOND) == []
    board.slot(number).own(1, 1.0)
    board.slot(number).beat(95 * SECOND)
    assert unwell(board, 101 * SECOND) == []
    now = (95 + silent) * SECOND
    board.slot(MASTER).beat(now)
    assert unwell(board, now) == [told]
    assert cannot_pass(board, now) == []
    board.slot(number).own(0, 1.0)
    assert unwell(board, now) == []


def test_one_that_begins_has_time(board):
    worker = board.free()
    worker.own(7, 1.0)
    assert unwell(board, 101 * SECOND) == []
