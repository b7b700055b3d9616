"""Sightings are kept, found again after a restart, small and private, and their errors are one
line.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from pathlib import Path

import pytest

from spamguard.errors import SpamguardError
from spamguard.folders.reconcile import Sighting
from spamguard.folders.sightings import (
    MAX_GONE_SECONDS,
    SIGHTINGS_FILE,
    Sightings,
    SightingsError,
)

DAY = 86_400
A, B = b"a" * 16, b"b" * 16
PLAIN = Sighting("", 7, A)


def opened(directory: Path) -> Sightings:
    return Sightings.open(directory / SIGHTINGS_FILE)


def test_a_failed_change_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        sightings.update("anna", [PLAIN], [])
        assert sightings.name_keys("anna", "").tolist() == [7]
        with pytest.raises(SightingsError):
            sightings.update("anna", [Sighting("", 8, B), Sighting(".new", 1 << 63, B)], [("", 7)])
        assert sightings.name_keys("anna", "").tolist() == [7]
        assert sightings.find("anna", [A, B], []) == [PLAIN]
        assert sightings.folders("anna") == [""]
        sightings.update("anna", [Sighting(".new", 8, B)], [])
        assert sightings.find("anna", [B], []) == [Sighting(".new", 8, B)]


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SIGHTINGS_FILE).write_bytes(content)
    with pytest.raises(
        SpamguardError, match=r"^sightings .*: move it away and restart the daemon[^\n]*$"
    ):
        opened(tmp_path)


def test_errors_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SightingsError, match=r"^sightings /[^\n]* \[No such file or directory\]$"):
        Sightings.open(tmp_path / "nowhere" / SIGHTINGS_FILE)
    sightings = opened(tmp_path)
    sightings.close()
    with pytest.raises(SightingsError):
        sightings.name_keys("anna", "")
    with opened(tmp_path) as sightings:
        blocker = sqlite3.connect(tmp_path / SIGHTINGS_FILE, isolation_level=None)
        sightings._db.execute("PRAGMA busy_timeout = 10")
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(SightingsError, match="locked"):
            sightings.update("anna", [PLAIN], [])
        blocker.close()


def daily(start: int, end: int) -> list[int]:
    """A scan each day, as the watcher does it more often: a clock that jumps is not believed."""
    return [*range(start, end, DAY), end]


def missed(
    sightings: Sightings, there: set[str], times: list[int], closed: Collection[str] = ()
) -> list[str]:
    return [name for now in times for name in sightings.forget_old(there, now, closed)]


def test_mailboxes_below_a_closed_directory_are_not_missing(tmp_path: Path) -> None:
    with opened(tmp_path) as sightings:
        for name in ("/home/anna/Maildir", "/home/ben/Maildir"):
            sightings.mark_scanned(name)
        times = daily(10**9, 10**9 + MAX_GONE_SECONDS + 1)
        assert missed(sightings, set(), times, {"/home/anna"}) == ["/home/ben/Maildir"]
        assert sightings.mailboxes() == ["/home/anna/Maildir"]
        # it counts from when it can be looked for
        assert sightings.forget_old(set(), 10**9 + MAX_GONE_SECONDS + 2) == []
