"""How the supervisor counts the silence of its workers."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time

import pytest

from spamguard.counters import CounterBoard
from spamguard.daemon.supervisor import Supervisor, WorkerChild, WorkerTiming


@pytest.mark.parametrize(("ago", "silent"), [(0, 0), (5, 0), (100, 0), (108, 8)])
def test_a_pause_of_the_master_is_neither_silence_nor_credit(ago: float, silent: float) -> None:
    """The master was stopped for 100 s; the worker was heard `ago` seconds before now.

    A worker that was heard since then gets no credit: its silence is never below zero, because a
    worker that hangs now would be missed 100 s too late.
    """
    now = time.monotonic()
    board = CounterBoard.create()
    ours, theirs = socket.socketpair()
    with (
        selectors.DefaultSelector() as selector,
        ours,
        theirs,
        subprocess.Popen(["sleep", "60"]) as process,
    ):
        workers = Supervisor("none", WorkerTiming(), selector, board, last_check=now - 100)
        worker = WorkerChild(process, ours, workers, board.free_slot())
        worker.ready, worker.last_heard = True, now - ago
        workers.workers.append(worker)
        workers.maintain()
        silence = workers.describe()[0]["silent"]
        workers.end()
    os.close(board.descriptor)
    assert silence == pytest.approx(silent, abs=1)
