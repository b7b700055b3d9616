"""A backup made while others teach, and put back: whole or not at all, elsewhere or in place, and
the same filter.
"""

import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from spamguard import backup, keys
from spamguard.backup import BackupReader
from spamguard.engine.fold import build_tables
from spamguard.errors import LedgerError, UsageError
from tests.support.disks import small_disk
from tests.support.killing import killed_at
from tests.unit.backup.places import LESSONS, command, names, state_of
from tests.unit.filters import BITS, ROOT, bits_of, held, opened, teach

pytestmark = pytest.mark.slow


def test_there_and_back_it_is_the_same_filter(state, file, tmp_path):
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert command(tmp_path / "new", "restore", file) == 0
    assert {"key", "ledger.sqlite", "sightings.sqlite"} < set(names(tmp_path / "new"))
    assert not [name for name in names(tmp_path / "new") if name.startswith((".", "before"))]
    assert state_of(tmp_path / "new") == state_of(state)
    with opened(tmp_path / "new") as one, opened(state) as other:
        assert one.key == other.key
        label, raw = LESSONS[0]
        assert one.learn(raw, label) is False
        assert list(one.ledger.all_votes()) == list(other.ledger.all_votes())


def test_what_is_restored_is_a_node_of_its_own(state, file, tmp_path):
    command(tmp_path / "new", "restore", file)
    with opened(tmp_path / "new") as one, opened(state) as other:
        assert one.ledger.node != other.ledger.node
        teach(one, [("spam", LESSONS[30][1])])
        teach(other, [("ham", LESSONS[31][1])])
        one.ledger.merge(other.ledger.all_votes())
        other.ledger.merge(one.ledger.all_votes())
        one.settle()
        other.settle()
        assert held(one) == held(other)
        assert sum(one.status().classes.values()) == 32


TEACHING = """
import itertools
with opened(Path(sys.argv[1])) as one:
    print(flush=True)
    for number in itertools.count():
        teach(one, [(label, raw + b"%d" % number) for label, raw in mail(20)])
"""


def test_while_others_teach_it_is_one_moment(tmp_path):
    with opened(tmp_path / "state") as one:
        teach(one, LESSONS)
    head = "import sys; from pathlib import Path; from tests.unit.filters import *\n"
    teacher = subprocess.Popen(
        [sys.executable, "-c", head + TEACHING, str(tmp_path / "state")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    try:
        teacher.stdout.readline()
        for number in range(4):
            time.sleep(0.2)
            assert command(tmp_path / "state", "backup", tmp_path / f"{number}") == 0
        assert teacher.poll() is None
    finally:
        teacher.kill()
        teacher.communicate()
    ends = []
    for number in range(4):
        assert command(tmp_path / f"state{number}", "restore", tmp_path / f"{number}") == 0
        with opened(tmp_path / f"state{number}") as one, opened(tmp_path / "state") as other:
            ends.append(one.ledger.last_seq())
            assert held(one) == bits_of(build_tables(other.ledger, ends[-1], BITS))
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]


# Refusals


def test_what_is_there_is_not_overwritten_unasked(state, file, capsys):
    before = state_of(state)
    assert command(state, "restore", file) == 2
    assert "say --replace to put it aside" in capsys.readouterr().err
    assert state_of(state) == before


def test_replacing_keeps_what_was_there(state, file):
    with opened(state) as one:
        teach(one, LESSONS[30:])
        one.settle()
        later = held(one)
    assert command(state, "restore", "--replace", file) == 0
    with opened(state) as one:
        assert sum(one.status().classes.values()) == 30
    (aside,) = state.glob("before-restore-*")
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700
    assert state_of(aside) == later
    assert len(list(state.glob("tables-*.bin"))) == 1


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
            backup.prove_backup(one, one.verify(), state, lambda _: None) as draft,
            pytest.raises(UsageError),
        ):
            backup.install_backup(
                draft, state, lambda: backup.check_overwrite(state, replace=False)
            )
    assert mode_of(state) == "wal"
    assert command(state, "restore", "--replace", file) == 0
    (aside,) = state.glob("before-restore-*")
    assert mode_of(aside) == mode_of(state) == "wal"


def test_one_taught_with_another_key_is_replaced_too(tmp_path, file):
    other = tmp_path / "other"
    other.mkdir()
    keys.store_key(other / "key", b"another key altogether, of 32 b.")
    with opened(other) as one:
        teach(one, LESSONS[:3])
    assert command(other, "restore", "--replace", file) == 0
    with opened(other) as one:
        assert sum(one.status().classes.values()) == 30
    (aside,) = other.glob("before-restore-*")
    assert (aside / "key").read_bytes() == b"another key altogether, of 32 b."


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
    assert names(tmp_path / "odd") == ["ledger.sqlite"]


def test_no_room_to_restore_into(file, tmp_path, capsys):
    for size in (20, 100, 400):  # kB: for the files in it, or the tables
        with small_disk(tmp_path / f"{size}", f"{size}k") as disk:
            assert command(disk / "new", "restore", file) == 2
            assert (told := capsys.readouterr().err).startswith(f"spamguard: {disk}/new")
            assert "No space left on device" in told
            assert names(disk / "new") == []


def test_a_file_has_no_room_for_a_filter(file, capsys):
    assert command(file, "restore", file) == 2
    assert (
        capsys.readouterr().err
        == f"spamguard: {file}: is no directory: choose a state directory you may write to\n"
    )


def test_a_disk_that_cannot_be_written(state, tmp_path, capsys):
    """Nobody's rights would change that."""
    with small_disk(tmp_path / "disk", "64k,ro") as disk:
        for word in ("backup", "export"):
            assert command(state, word, disk / "file") == 2
            told = "Read-only file system: choose a place that can be written\n"
            assert capsys.readouterr().err.endswith(told)


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


def test_a_damaged_receipt_is_not_backed_up(state, tmp_path, capsys):
    """It could not be restored, and would take the place of a backup that can."""
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET packed = CAST(packed || x'00' AS BLOB) WHERE seq = 7")
    assert command(state, "backup", tmp_path / "backup") == 2
    assert "no backup was made: restore it from an earlier one [message " in capsys.readouterr().err
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


def test_no_filter_and_no_file(tmp_path, capsys):
    assert command(tmp_path / "none", "backup", tmp_path / "backup") == 2
    assert command(tmp_path / "none", "restore", tmp_path / "backup") == 2
    assert "no filter there" in capsys.readouterr().err
    assert names(tmp_path) == []


# Killed


def test_a_backup_that_is_killed_leaves_the_old_one_or_the_new_one(state, tmp_path):
    file = tmp_path / "place" / "backup"
    file.parent.mkdir()
    command(state, "backup", file)
    with opened(state) as one:
        teach(one, LESSONS[30:])
    for step in count():
        status = killed_at(step, lambda: command(state, "backup", file))
        with file.open("rb") as stream:
            assert BackupReader("it", stream).verify()
        if status == 0:
            break
    assert step > 5
    with pytest.raises(UsageError):
        backup.check_overwrite(state, replace=False)


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
