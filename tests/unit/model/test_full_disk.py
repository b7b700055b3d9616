"""Tables on a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from spamguard.errors import LedgerError, TableError
from tests.support.disks import small_disk
from tests.unit.filters import mail, opened, teach

BITS = 18  # tables of four megabytes, which are mapped
MAIL = mail(20)


def fill(disk: Path) -> None:
    """To the last page."""
    with suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_teaching_on_a_full_disk_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Empty tables were a file with holes; touching them ended the command by SIGBUS."""
    with small_disk(tmp_path / "disk", "8m") as disk, opened(disk / "state", bits=BITS) as one:
        one.settle()
        fill(disk)
        message = disk.parent / "message"
        message.write_bytes(MAIL[0][1])
        learn = [sys.executable, "-m", "spamguard", "--state", str(disk / "state"), "learn", "--as", MAIL[0][0], str(message)]
        done = subprocess.run(learn, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (0, 2)  # the log of the ledger may have room
        assert done.returncode == 0 or "make room" in done.stderr
        one.judge(MAIL[1][1])
        (disk / "filling").unlink()
        teach(one, MAIL)


def test_tables_for_which_there_is_no_room_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "3m") as disk, opened(disk / "state", bits=BITS) as one:
        with pytest.raises((TableError, LedgerError), match="make room"):
            one.settle()
        assert list((disk / "state").glob("*tables*")) == []
        teach(one, MAIL[:5])
        one.judge(MAIL[6][1])
