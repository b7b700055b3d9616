"""Commands on one filter at the same time, and killed at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from corpora import synthetic
from spamguard.engine.filter import Filter
from spamguard.ledger.sqlite import SqliteLedger
from tests.e2e.commands.command import (
    ENVIRONMENT,
    assert_receipts_and_tables_agree,
)
from tests.support.commands import spamguard
from tests.support.waiting import COMMAND_SECONDS

WORKER = """
import io, json, sys
from types import SimpleNamespace
from spamguard.cli import main
from corpora import synthetic
number, state = int(sys.argv[1]), sys.argv[2]
mail = list(synthetic.generate(48, 11))[number::4]
print("ready", flush=True)
sys.stdin.readline()
for label, raw in mail:
    for command in (["learn", "--as", label, "-"], ["judge", "--json", "-"], ["filter"]):
        sys.stdin = SimpleNamespace(buffer=io.BytesIO(raw))
        assert main(["--state", state, *command]) in (0, 1, 3), command
"""


def test_four_processes_teach_and_judge_at_once(state):
    line = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen(
            [*line, str(number), str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        for number in range(4)
    ]
    for worker in workers:
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    for worker in workers:
        out, err = worker.communicate(timeout=COMMAND_SECONDS)
        assert (worker.returncode, err) == (0, b""), err
        assert out.count(b"taught 1 message as ") == 12
    expected = Counter(label for label, _ in synthetic.generate(48, 11))
    with Filter.open(state) as spam_filter:
        assert dict(spam_filter.status().classes) == expected
    assert_receipts_and_tables_agree(state)


def fingerprint_of(state):
    from spamguard import keys

    return keys.key_fingerprint(keys.load_key(state / "key", create=False))


# Killed at any moment

SLICE = 136  # messages: two batches and a short one


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Ten mboxes of `SLICE` messages."""
    place = tmp_path_factory.mktemp("slices")
    for number, (_, raw) in enumerate(synthetic.generate(10 * SLICE, 13)):
        with (place / f"{number // SLICE}.mbox").open("ab") as mbox:
            mbox.write(
                b"From a@example.org Thu Jan  4 10:11:12 2024\n"
                + raw.replace(b"\nFrom ", b"\n>From ")
                + b"\n"
            )
    return sorted(place.iterdir())


@pytest.mark.nightly
def test_killed_a_hundred_times(state, slices):
    """Learning and forgetting are killed at random moments. Each batch is there whole or not at
    all, and the tables follow the receipts.
    """
    rng = random.Random(17)
    killed = 0
    taught: list[tuple[Path, str]] = []
    added: set[int] = set()  # events that commands left behind
    # the first one takes longer; after all of them the tables are as large as they become
    for part in slices[:4]:
        begun = time.perf_counter()
        done = spamguard(state, "learn", "--as", "ham", "--user", "first", part)
        assert done.returncode == 0
        long = time.perf_counter() - begun
    for round_ in range(400):
        if killed == 100:
            break
        part, command, user = (
            rng.choice(slices),
            ["learn", "--as", rng.choice(["ham", "spam"])],
            f"user{round_}",
        )
        if taught and rng.random() < 0.3:
            command = ["forget"]
            part, user = taught.pop(rng.randrange(len(taught)))
        else:
            taught.append((part, user))
        last = last_event(state)
        done = spamguard(state, *command, "--user", user, part, kill_after=rng.uniform(0, long))
        status = done.returncode
        killed += status == -signal.SIGKILL
        long *= (
            1.02 if status == -signal.SIGKILL else 0.95
        )  # the machine may be busier at times, and less busy then
        added.add(last_event(state) - last)
        if round_ % 25 == 0:
            assert_receipts_and_tables_agree(state)
    assert killed == 100
    assert added <= {0, 64, 128, SLICE}  # whole batches only,
    assert added & {64, 128}  # and some were killed between two
    assert_receipts_and_tables_agree(state)
    assert spamguard(state, "status").returncode == 0


def last_event(state):
    with SqliteLedger.open(state / "ledger.sqlite", fingerprint_of(state), durable=False) as ledger:
        return ledger.last_seq()
