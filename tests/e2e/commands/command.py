"""Commands as processes of their own, and checks of the state that they leave behind."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from spamguard.engine.filter import Filter
from tests.support.commands import ENVIRONMENT
from tests.support.waiting import COMMAND_SECONDS
from tests.unit.bayes.lessons import counted_arrays

BITS = 16
COMMAND = [sys.executable, "-m", "spamguard"]
NOBODY = 65534


def alone(state, *arguments, **settings):
    """Run a command as users do, not by `tests.support.commands`. settings: of `subprocess.run`."""
    line = [*COMMAND, "--state", str(state), *map(str, arguments)]
    return subprocess.run(
        line,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=ENVIRONMENT,
        timeout=COMMAND_SECONDS,
        check=False,
        **settings,
    )


def assert_failed(done, *words):
    """It failed with one clear line."""
    err = done.stderr.decode()
    assert (done.returncode, done.stdout, err.count("\n")) == (2, b"", 1), err
    assert err.startswith("spamguard: ")
    assert "Traceback" not in err
    assert all(word in err for word in words), err


def counted(state):
    with Filter.open(state) as spam_filter:
        return {
            name: np.array(values) for name, values in counted_arrays(spam_filter._store.tables)
        }


def assert_receipts_and_tables_agree(state):
    """The tables equal those made afresh from the receipts, bit for bit. The sizes agree only while
    unsettled lessons make the tables no larger (`bayes.tables.table_bits`).
    """
    before = counted(state)
    with Filter.open(state, _load=False) as spam_filter:
        spam_filter.settle()
    after = counted(state)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
