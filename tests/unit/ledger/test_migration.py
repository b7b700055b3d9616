"""A ledger of an older schema: brought to today's whole or not at all, a copy of the old one kept."""

import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from spamguard.errors import LedgerError
from spamguard.ledger import NewVote, SqliteLedger, migration
from tests.support.disks import needs_disks, small_disk
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]
NEW = migration.SCHEMA_VERSION


def make_old(path: Path, lessons: int = 3, size: int = 0) -> Path:
    """A ledger as the first program wrote it: schema 1, no index of users, the log of the last writer still to be written back."""
    with SqliteLedger.open(path, "key") as ledger:
        ledger.append([NewVote(b"%d" % number, "", "spam", b"x" * size, b"", "", 0, 1) for number in range(lessons)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP INDEX events_of_users")
        db.execute("PRAGMA user_version = 1")
    return path


@pytest.fixture
def old(tmp_path):
    return make_old(tmp_path / "receipts.ledger")


def copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.v1")


def look(path: Path) -> tuple[int, list[str], list[tuple[object, ...]]]:
    """Schema, indexes of ours, events."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        indexes = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND name LIKE 'events%'")]
        return migration.schema_of(db), indexes, db.execute("SELECT * FROM events ORDER BY seq").fetchall()


def test_an_old_ledger_is_migrated_and_a_copy_kept(old):
    before = look(old)
    with SqliteLedger.open(old, "key") as ledger:
        assert len(list(ledger.votes())) == 3
        assert ledger.append([NewVote(b"new", "", "ham", b"", b"", "", 0, 1)]) == [True]
    assert stat.S_IMODE(copy_of(old).stat().st_mode) == 0o600
    names = {one.name for one in old.parent.iterdir()}
    assert {name for name in names if not name.endswith(("-shm", "-wal"))} == {old.name, copy_of(old).name}
    version, indexes, events = look(old)
    assert (version, indexes, events[:3]) == (NEW, ["events_of_users"], before[2])
    assert look(copy_of(old)) == before


def test_the_copy_is_a_ledger_of_its_own(old):
    SqliteLedger.open(old, "key").close()
    moved = copy_of(old).rename(old.parent / "again")
    with SqliteLedger.open(moved, "key") as ledger:
        assert len(list(ledger.votes())) == 3


def test_a_ledger_of_today_is_left_alone(old):
    SqliteLedger.open(old, "key").close()
    copy_of(old).unlink()
    SqliteLedger.open(old, "key").close()
    assert not copy_of(old).exists()


def test_a_new_ledger_needs_no_copy(tmp_path):
    SqliteLedger.open(tmp_path / "new", "key").close()
    assert look(tmp_path / "new")[:2] == (NEW, ["events_of_users"])
    assert not copy_of(tmp_path / "new").exists()


def test_another_key_is_refused_before_anything_is_touched(old):
    before = old.read_bytes()
    with pytest.raises(LedgerError, match="taught with key"):
        SqliteLedger.open(old, "other")
    assert old.read_bytes() == before
    assert not copy_of(old).exists()


def test_a_newer_ledger_is_refused_with_a_clear_line(old):
    with closing(sqlite3.connect(old)) as db:
        db.execute(f"PRAGMA user_version = {NEW + 1}")
    with pytest.raises(
        LedgerError, match=rf"has schema {NEW + 1}, this program knows up to {NEW}: use the spamguard that wrote it, or newer"
    ):
        SqliteLedger.open(old, "key")


@needs_disks
def test_no_room_for_the_copy(tmp_path):
    with small_disk(tmp_path / "disk", "3m") as disk:
        path = make_old(disk / "ledger", 100, 5000)
        before = look(path)
        (disk / "ballast").write_bytes(b"x" * (shutil.disk_usage(disk).free - 300_000))
        with pytest.raises(LedgerError, match="the disk is full: make room and try again"):
            SqliteLedger.open(path, "key")
        assert look(path) == before
        assert [one.name for one in disk.iterdir() if "v1" in one.name] == []


CODE = "import sys; from pathlib import Path; from spamguard.ledger import *; SqliteLedger.open(Path(sys.argv[1]), 'key').close()"


def opening(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CODE, str(path)], cwd=ROOT)


def test_several_that_open_it_at_once(tmp_path):
    path = make_old(tmp_path / "ledger", 400, 5000)
    before = look(path)
    several = [opening(path) for _ in range(4)]
    assert [one.wait(PATIENCE) for one in several] == [0] * 4
    assert look(path) == (NEW, ["events_of_users"], before[2])
    assert look(copy_of(path)) == before


@pytest.mark.slow
def test_killed_in_the_middle_it_is_the_old_one_or_the_new_one(tmp_path):
    path = make_old(tmp_path / "ledger", 4000, 5000)
    before = look(path)
    seen = set()
    for _ in range(12):
        worker = opening(path)
        draft = path.with_name(f".{path.name}.v1.new")
        while not draft.exists() and worker.poll() is None:
            time.sleep(0.0005)
        time.sleep(0.005 * len(seen))
        worker.kill()
        worker.wait()
        version, indexes, events = look(path)
        assert (version, indexes) in ((1, []), (NEW, ["events_of_users"]))
        assert events == before[2]
        seen.add(version)
        if version == NEW:
            if 1 in seen:
                break
            for file in tmp_path.iterdir():  # it was quicker than the kill: the same with one that is old once more
                file.unlink()
            make_old(path, 4000, 5000)
            before = look(path)
    assert 1 in seen
    with SqliteLedger.open(path, "key") as ledger:
        assert ledger.last_seq() == 4000
    assert look(path)[0] == NEW
    assert look(copy_of(path)) == before
    assert not path.with_name(f".{path.name}.v1.new").exists()
