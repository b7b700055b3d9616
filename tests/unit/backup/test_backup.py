"""A backup made while others teach, and put back: whole or not at all, elsewhere or in place, and
the same filter.
"""

import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from spamguard import backup, keys
from spamguard.backup import BackupReader
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, UsageError
from tests.support.disks import small_disk
from tests.support.killing import killed_at
from tests.unit.backup.places import LESSONS, command, names, state_of
from tests.unit.filters import held, opened, teach

pytestmark = pytest.mark.slow


# Refusals


def test_nobody_may_have_it_open(state, file, capsys):
    before = state_of(state)
    with opened(state) as one:
        one.judge(LESSONS[0][1])
        assert command(state, "restore", "--replace", file) == 2
        assert "stop it, then restore" in capsys.readouterr().err
        assert held(one) == before
        teach(one, LESSONS[30:31])
    assert command(state, "restore", "--replace", file) == 0


def mode_of(directory: Path) -> str:
    with closing(sqlite3.connect(directory / "ledger.sqlite")) as db:
        return str(db.execute("PRAGMA journal_mode").fetchone()[0])


def test_ledgers_stay_such_that_readers_and_writers_do_not_wait_for_each_other(state, file):
    with file.open("rb") as stream:
        one = BackupReader("it", stream)
        with (
            backup.prove_backup(one, state, lambda _: None) as draft,
            Filter.open(state, _load=False),
            pytest.raises(UsageError),
        ):
            backup.install_backup(draft, state)
    assert mode_of(state) == "wal"
    assert command(state, "restore", "--replace", file) == 0
    (aside,) = state.glob("before-restore-*")
    assert mode_of(aside) == mode_of(state) == "wal"


@pytest.mark.parametrize("damage", [b"", b"rubbish" * 1000])
def test_a_damaged_ledger_is_what_backups_are_for(state, file, damage):
    (state / "ledger.sqlite").write_bytes(damage)
    assert command(state, "restore", "--replace", file) == 0
    with opened(state) as one:
        assert sum(one.status().classes.values()) == 30


def test_a_ledger_that_cannot_be_opened_stays(tmp_path, file, capsys):
    (tmp_path / "odd" / "ledger.sqlite").mkdir(parents=True)
    assert command(tmp_path / "odd", "restore", "--replace", file) == 2
    assert "cannot be opened" in capsys.readouterr().err
    assert names(tmp_path / "odd") == ["daemon.lock", "ledger.sqlite"]


def test_no_room_to_restore_into(file, tmp_path, capsys):
    for size in (20, 100, 400):  # kB: for the files in it, or the tables
        with small_disk(tmp_path / f"{size}", f"{size}k") as disk:
            assert command(disk / "new", "restore", file) == 2
            assert (told := capsys.readouterr().err).startswith(f"spamguard: {disk}/new")
            assert "No space left on device" in told
            assert names(disk / "new") == ["daemon.lock"]


def test_a_disk_that_cannot_be_written(state, tmp_path, capsys):
    """Nobody's rights would change that."""
    with small_disk(tmp_path / "disk", "64k,ro") as disk:
        assert command(state, "backup", disk / "file") == 2
        assert "Read-only file system" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:32768] + b"\xff" * 32768 + data[65536:],
        lambda data: data[:-16383] + b"\x7f" + data[-16382:],  # of which SQLite tells in two lines
        lambda data: b"sqam".join(data.rsplit(b"spam", 1)),
    ],
)
def test_a_damaged_ledger_is_not_backed_up(tmp_path, capsys, damage):
    """Nor one in which a single bit of a label has turned."""
    with opened(tmp_path / "state") as one:
        teach(one, LESSONS)
    path = tmp_path / "state" / "ledger.sqlite"
    path.write_bytes(damage(path.read_bytes()))
    assert command(tmp_path / "state", "backup", tmp_path / "backup") == 2
    told = capsys.readouterr().err
    assert (told.count("\n"), told.count("\\n")) == (1, 0)
    assert not (tmp_path / "backup").exists()


def test_no_room(state, tmp_path, capsys):
    made = []
    for size in range(20, 900, 40):  # kB
        with small_disk(tmp_path / f"{size}", f"{size}k") as disk:
            made.append(command(state, "backup", disk / "backup") == 0)
            assert names(disk) == (["backup"] if made[-1] else [])
            told = capsys.readouterr().err
            assert made[-1] or (
                f"{disk}/" in told and ("make room" in told or "the disk refused" in told)
            )
    assert made == sorted(made)
    assert {*made} == {False, True}


# Killed


def fits(place: Path) -> bool:
    """Whether the key is the ledger's. Between two renames it is not: loud, and mended by restoring
    again.
    """
    try:
        opened(place).close()
    except LedgerError as error:
        return "taught with key" not in str(error)
    return True


@pytest.mark.parametrize("same_key", [True, False])
def test_a_restore_that_is_killed_leaves_the_old_one_or_the_new_one(tmp_path, file, same_key):
    old = tmp_path / "old"
    old.mkdir()
    keys.store_key(
        old / "key",
        (tmp_path / "state" / "key").read_bytes()
        if same_key
        else b"another key altogether, of 32 b.",
    )
    with opened(old) as one:
        teach(one, LESSONS[:3])
    seen = set()
    for step in count():
        place = tmp_path / f"place{step}"
        shutil.copytree(old, place)
        status = killed_at(step, lambda place=place: command(place, "restore", "--replace", file))
        if same_key or fits(place):
            with opened(place) as one:
                seen.add(sum(one.status().classes.values()))
        assert command(place, "restore", "--replace", file) == 0
        with opened(place) as one:
            assert sum(one.status().classes.values()) == 30
        assert not list(place.glob(".restore-*"))
        shutil.rmtree(place)
        if status == 0:
            break
    assert seen == {3, 30}
