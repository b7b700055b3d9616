"""Examples from much mail on all cores: order, bounds, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from corpora import synthetic
from spamguard.engine import parallel_extract
from spamguard.engine.prepare import BATCH_MESSAGES, ExampleReader
from spamguard.errors import SpamguardError
from spamguard.sources import SourceMessage
from tests.support.processes import children
from tests.support.waiting import PATIENCE
from tests.unit.filters import KEY

ROOT = Path(__file__).parents[3]


def mail(number):
    return [
        SourceMessage(str(at), raw, label)
        for at, (label, raw) in enumerate(synthetic.generate(number, 5))
    ]


def assert_ready(found, messages):
    preparer = ExampleReader(KEY)
    for one, message in zip(found, messages, strict=True):
        expected = preparer.read_example(message.raw)
        assert (one.label, one.example.digest) == (message.label, expected.digest)
        assert np.array_equal(one.example.features.tokens, expected.features.tokens)
        assert np.array_equal(one.example.features.numbers, expected.features.numbers)


@pytest.mark.parametrize("number", [0, 1, 40])
def test_few_are_made_ready_here(number, monkeypatch):
    monkeypatch.setattr(parallel_extract, "_extract_in_pool", None)
    assert_ready(parallel_extract.extract_examples(KEY, mail(number), 8), mail(number))


def test_one_core_needs_no_pool(monkeypatch):
    monkeypatch.setattr(parallel_extract, "_extract_in_pool", None)
    assert_ready(
        parallel_extract.extract_examples(KEY, mail(parallel_extract.MIN_POOL_MESSAGES + 50), 1),
        mail(parallel_extract.MIN_POOL_MESSAGES + 50),
    )


@pytest.mark.slow
def test_many_go_through_a_pool_in_order(monkeypatch):
    monkeypatch.setattr(parallel_extract, "_extract_here", None)  # of this process
    assert_ready(
        parallel_extract.extract_examples(KEY, mail(parallel_extract.MIN_POOL_MESSAGES + 150), 2),
        mail(parallel_extract.MIN_POOL_MESSAGES + 150),
    )


class Watched:
    """Endless mail that counts what was taken from it."""

    def __init__(self, raw):
        self.taken = 0
        self.raw = raw

    def __iter__(self):
        for self.taken in count(1):
            yield SourceMessage("x", self.raw)


def test_no_more_is_read_ahead_than_is_allowed(monkeypatch):
    source = Watched(b"Subject: x\n\n" + bytes(200_000))
    monkeypatch.setattr(parallel_extract, "_MAX_IN_FLIGHT_BYTES", 2_000_000)
    examples = parallel_extract.extract_examples(KEY, source, 2)
    for _ in range(100):
        next(examples)
    assert (
        source.taken
        <= 100 + parallel_extract.MIN_POOL_MESSAGES + 2_000_000 // 200_000 + 3 * BATCH_MESSAGES
    )
    examples.close()  # what waits is not worked off


def test_a_killed_process_is_a_clear_error():
    examples = parallel_extract.extract_examples(KEY, Watched(b"Subject: x\n\nx\n"), 2)
    next(examples)
    for pid in children_of_the_fork_server():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(SpamguardError, match="was killed"):
        for _ in examples:
            pass


def children_of_the_fork_server():
    from multiprocessing import forkserver

    server = forkserver._forkserver._forkserver_pid
    return children(server)


FOR_EVER = """
import itertools
from spamguard.engine import parallel_extract
from spamguard.sources import SourceMessage
if __name__ == "__main__":
    message = SourceMessage("x", b"Subject: x")
    examples = parallel_extract.extract_examples(bytes(32), itertools.repeat(message), 2)
    for number, _ in enumerate(examples):
        if number == 1000:
            print("working", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_teacher(tmp_path, how):
    (tmp_path / "teach.py").write_text(FOR_EVER)
    teacher = subprocess.Popen(
        [sys.executable, tmp_path / "teach.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    with teacher:
        assert teacher.stdout.readline() == b"working\n"
        assert len(group(teacher.pid)) >= 4  # teacher, fork server, two at work
        teacher.send_signal(how)
        try:
            teacher.communicate(timeout=PATIENCE)
        finally:
            teacher.kill()
    deadline = time.monotonic() + PATIENCE
    while group(teacher.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group(teacher.pid) == []


def group(session):
    """Living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found
