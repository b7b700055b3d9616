"""A history that an earlier version has written goes on: every row is there, and the file does not grow by it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.errors import HistoryError
from spamguard.history import FILE, History
from spamguard.history.looks import Wanted
from spamguard.history.row import COLUMNS, columns
from tests.unit.history.rows import recent, row

ROOT = Path(__file__).parents[3]
_TABLE = """
CREATE TABLE judgements (
    id TEXT NOT NULL UNIQUE, time REAL NOT NULL, listener TEXT NOT NULL, client TEXT NOT NULL, sender TEXT NOT NULL,
    recipients TEXT NOT NULL, subject TEXT NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL, label TEXT NOT NULL,
    probability REAL NOT NULL, log_odds REAL NOT NULL, action TEXT NOT NULL, reply TEXT NOT NULL, packed BLOB NOT NULL,
    words TEXT NOT NULL, extractor INTEGER NOT NULL, fingerprint TEXT NOT NULL, personal TEXT NOT NULL DEFAULT '{}')
"""
_OLD = COLUMNS[: COLUMNS.index("author")]
_TABLES = """
CREATE TABLE judgements (
    id TEXT NOT NULL UNIQUE, time REAL NOT NULL, label TEXT NOT NULL, digest BLOB NOT NULL, sender TEXT NOT NULL,
    recipients TEXT NOT NULL, subject TEXT NOT NULL, folded_sender TEXT, folded_recipients TEXT, folded_subject TEXT,
    listener TEXT NOT NULL, client TEXT NOT NULL, size INTEGER NOT NULL, probability REAL NOT NULL, log_odds REAL NOT NULL,
    action TEXT NOT NULL, reply TEXT NOT NULL, extractor INTEGER NOT NULL, fingerprint TEXT NOT NULL, personal TEXT NOT NULL);
CREATE TABLE contents (judgement INTEGER PRIMARY KEY, packed BLOB NOT NULL, words TEXT NOT NULL)
"""
_SHARED = [name for name in _OLD if name not in ("packed", "words")]
_AS_3 = f"""
INSERT INTO contents SELECT rowid, packed, words FROM former ORDER BY rowid LIMIT :number;
INSERT INTO judgements (rowid, {", ".join(_SHARED)}, folded_subject)
    SELECT rowid, {", ".join(_SHARED)}, lower(subject) FROM former ORDER BY rowid LIMIT :number;
DELETE FROM former WHERE rowid IN (SELECT judgement FROM contents)"""


def old(directory: Path, number: int, version: int = 2) -> Path:
    """As version 2 left it, or another; 3 after it was killed while it moved the rows of version 2, of which half are moved."""
    path = directory / FILE
    path.touch(0o600)
    db = sqlite3.connect(path, isolation_level=None)
    for setting in ("page_size = 16384", "auto_vacuum = INCREMENTAL", "journal_mode = WAL", "application_id = 1936156777"):
        db.execute(f"PRAGMA {setting}")
    db.execute(f"PRAGMA user_version = {version}")
    db.execute(_TABLE)
    db.execute("BEGIN")
    marks = ", ".join("?" * len(_OLD))
    db.executemany(f"INSERT INTO judgements VALUES ({marks})", (columns(row(at))[: len(_OLD)] for at in range(number)))
    db.execute("COMMIT")
    if version == 3:
        db.execute("ALTER TABLE judgements RENAME TO former")
        db.executescript(_TABLES)
        for statement in _AS_3.split(";"):
            db.execute(statement, {"number": number // 2})
        db.execute("ALTER TABLE former RENAME TO judgements_of_version_2")
    if version == 1:
        db.execute("ALTER TABLE judgements DROP COLUMN personal")
    db.close()
    return path


def opened(path: Path) -> History:
    return History.open(path, 64 << 20, 30)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_row_is_there_and_more_follow(tmp_path: Path, version: int) -> None:
    path = old(tmp_path, 200, version)
    with opened(path) as one, opened(path) as other:
        expected = [row(at, **({"personal": {}} if version == 1 else {})) for at in range(199, -1, -1)]
        assert recent(one, 1000) == expected
        other.append([row(200, author="Anna <anna@example.org>")])
        assert recent(one, 1) == [row(200, author="Anna <anna@example.org>")]
        assert [found.id for found in one.looks.look(Wanted(sender="ANNA <"), 9).rows] == [row(200).id]
        assert [found.id for found in one.looks.look(Wanted(subject="GRÜSSE 199"), 9).rows] == [row(199).id]
        assert one.contents([row(3).id]) == [(row(3).id, row(3).packed)]
    assert [found.name for found in tmp_path.iterdir()] == [FILE]


def test_the_file_does_not_grow_by_it(tmp_path: Path) -> None:
    path = old(tmp_path, 3000)
    before = path.stat().st_size
    with opened(path) as history:
        assert len(recent(history, 10_000)) == 3000
        assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 1.3 * before + (1 << 20)


def test_pruning_goes_by_the_order_in_which_rows_came(tmp_path: Path) -> None:
    path = old(tmp_path, 3000)
    with History.open(path, 8 << 20, 30) as history:
        for number in range(3000, 3200):
            history.append([row(number)])
        kept = recent(history, 10_000)
    assert 1000 < len(kept) < 3000
    assert [one.id for one in kept] == [row(at).id for at in range(3199, 3199 - len(kept), -1)]


def test_a_row_that_is_damaged_holds_nobody_up(tmp_path: Path) -> None:
    path = old(tmp_path, 10)
    db = sqlite3.connect(path)
    db.execute("UPDATE judgements SET words = '[1' WHERE id = ?", (row(5).id,))
    db.commit()
    db.close()
    with opened(path) as history:
        assert history.find(row(4).id) == row(4)


def test_killed_in_between_the_next_goes_on(tmp_path: Path) -> None:
    path = old(tmp_path, 3000)
    code = (
        f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
        "from spamguard.history import History, schema\nmove, left = schema._move, [10]\n"
        "def counted(db):\n    left[0] -= 1\n    if not left[0]: os.kill(os.getpid(), signal.SIGKILL)\n    return move(db)\n"
        "schema._move = counted\nHistory.open(Path(sys.argv[1]), 64 << 20, 30)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False).returncode == -signal.SIGKILL
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM judgements").fetchone()[0] == 9 * 64  # and nobody saw these alone
    db.close()
    with opened(path) as history:
        history.append([row(3000)])
        assert recent(history, 10_000) == [row(at) for at in range(3000, -1, -1)]


def test_several_that_open_it_at_once_all_find_it_whole(tmp_path: Path) -> None:
    path = old(tmp_path, 3000)
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom tests.unit.history.test_history_versions import *\n"
        "with opened(Path(sys.argv[1])) as history: print(len(recent(history, 10_000)))\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["3000"] * 3


def test_what_a_newer_version_has_opened_is_not_to_be_moved_away(tmp_path: Path) -> None:
    """It is found by what still runs after an upgrade, and is as good as it was."""
    opened(tmp_path / FILE).close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(HistoryError, match="a newer version has opened it: restart"):
        opened(tmp_path / FILE)
