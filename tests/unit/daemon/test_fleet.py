"""What the master makes of workers that it has not heard for a while."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time

import pytest

from spamguard.daemon.fleet import Fleet, Member, Timing
from spamguard.metrics.counters import Board


@pytest.mark.parametrize(("ago", "silent"), [(0, 0), (5, 0), (100, 0), (108, 8)])
def test_a_pause_of_the_master_is_no_silence_and_no_credit(ago: float, silent: float) -> None:
    """ago: seconds since the worker was heard, of which the pause took 100. Heard already since then, it is not silent for less than
    nothing: should it hang now, it would be missed only after the pause's length more."""
    now = time.monotonic()
    board = Board.create()
    ours, theirs = socket.socketpair()
    with selectors.DefaultSelector() as selector, ours, theirs, subprocess.Popen(["sleep", "60"]) as process:
        fleet = Fleet("none", Timing(), selector, board, tended=now - 100)
        fleet.members.append(Member(process, ours, board.free(), 1, now - 200, now - ago, 120, ready=True))
        fleet.tend()
        found = fleet.described()[0]["silent"]
        fleet.end()
    os.close(board.descriptor)
    assert found == pytest.approx(silent, abs=1)
