"""A history that an earlier version has written goes on in place; one of the first versions is begun anew."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from spamguard.errors import HistoryError
from spamguard.history import FILE, History
from spamguard.history.looks import Wanted
from tests.unit.history.rows import recent, row


def opened(path: Path) -> History:
    return History.open(path, 64 << 20, 30)


def old(directory: Path, version: int, *changes: str) -> Path:
    """A file as it was then: today's, with a hundred rows, changed back."""
    path = directory / FILE
    with opened(path) as history:
        history.append([row(at) for at in range(100)])
    with sqlite3.connect(path, isolation_level=None) as db:
        for statement in (*changes, f"PRAGMA user_version = {version}"):
            db.execute(statement)
    db.close()
    return path


def test_every_row_of_version_3_is_there_and_more_follow(tmp_path: Path) -> None:
    dropped = [f"ALTER TABLE judgements DROP COLUMN {name}" for name in ("author", "folded_author")]
    path = old(tmp_path, 3, *dropped)
    with opened(path) as one, opened(path) as other:
        assert recent(one, 1000) == [row(at) for at in range(99, -1, -1)]
        other.append([row(100, author="Anna <anna@example.org>")])
        assert recent(one, 1) == [row(100, author="Anna <anna@example.org>")]
        assert [found.id for found in one.looks.look(Wanted(sender="ANNA <"), 9).rows] == [row(100).id]


@pytest.mark.parametrize("version", [1, 2])
def test_the_first_versions_are_begun_anew(tmp_path: Path, version: int) -> None:
    """All was in one table."""
    path = old(tmp_path, version, "DROP TABLE contents")
    with opened(path) as one, opened(path) as other:
        assert recent(one, 1000) == []
        other.append([row(100)])
        assert recent(one, 1000) == [row(100)]


def test_what_an_earlier_state_left_of_the_first_versions_takes_no_room(tmp_path: Path) -> None:
    """It moved their rows in small steps, and may have been killed. All that came later would be removed at once, as too much."""
    path = old(
        tmp_path, 4, "CREATE TABLE judgements_of_version_2 (packed BLOB)", "INSERT INTO judgements_of_version_2 VALUES (zeroblob(16000000))"
    )
    with History.open(path, 1 << 20, 30) as one:
        for at in range(100, 200):
            one.append([row(at)])
        assert recent(one, 100) == [row(at) for at in range(199, 99, -1)]


def test_what_a_newer_version_has_opened_is_not_to_be_moved_away(tmp_path: Path) -> None:
    """It is found by what still runs after an upgrade, and is as good as it was."""
    opened(tmp_path / FILE).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(HistoryError, match="a newer version has opened it: restart"):
        opened(tmp_path / FILE)
