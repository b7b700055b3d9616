"""State directories that cannot be used, and full disks."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError
from tests.support.disks import small_disk
from tests.unit.filters import mail, opened, teach


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with opened(tmp_path / "state") as spam_filter:
        teach(spam_filter, mail(20))
        spam_filter.settle()
    return tmp_path / "state"


def note(state: Path, key: str, value: str) -> None:
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db, db:
        assert db.execute("UPDATE meta SET value = ? WHERE key LIKE ?", (value, key)).rowcount == 1


@pytest.mark.parametrize("value", ["many", "", "-5", "29", "1" * 5000, "２２"])
def test_a_size_of_tables_that_cannot_be(state: Path, value: str) -> None:
    note(state, "bits", value)
    with pytest.raises(
        LedgerError, match="size of its tables is damaged: restore it from a backup"
    ):
        Filter.open(state)


BITS = 18  # tables of four megabytes, which are mapped
MAIL = mail(20)


def fill(disk: Path) -> None:
    """To the last page."""
    with suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_teaching_on_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Empty tables were a file with holes; touching them ended the command by SIGBUS."""
    with (
        small_disk(tmp_path / "disk", "8m") as disk,
        opened(disk / "state", bits=BITS) as spam_filter,
    ):
        spam_filter.settle()
        fill(disk)
        message = disk.parent / "message"
        message.write_bytes(MAIL[0][1])
        learn = [
            sys.executable,
            "-m",
            "spamguard",
            "--state",
            str(disk / "state"),
            "learn",
            "--as",
            MAIL[0][0],
            str(message),
        ]
        done = subprocess.run(learn, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 2)  # the log of the ledger may have room
        assert done.returncode == 0 or "make room" in done.stderr
        spam_filter.judge(MAIL[1][1])
        (disk / "filling").unlink()
        teach(spam_filter, MAIL)
