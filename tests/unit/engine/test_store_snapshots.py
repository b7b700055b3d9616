"""Snapshots: written whole, read as they were, and proof of lost events."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes.tables import BASE_CLASSES, Tables
from spamguard.cli import main
from spamguard.engine import snapshot
from spamguard.errors import TableError
from spamguard.ledger.schema import PAGE_BYTES
from tests.unit.bayes.lessons import add, made_up, replayed
from tests.unit.filters import bits_of, held, mail, opened, python, teach

CLASSES = ("ham", "spam", "alpha", "zoo")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Tables]:
    tables = replayed(made_up(1, 80, CLASSES))
    snapshot.write_snapshot(tmp_path / "tables", tables, durable=True)
    return tmp_path / "tables", tables


def test_what_is_read_is_what_was_written(written: tuple[Path, Tables]) -> None:
    path, tables = written
    loaded = snapshot.read_snapshot(path)
    assert bits_of(loaded) == bits_of(tables)
    assert (loaded.bits, loaded.classes) == (tables.bits, [*BASE_CLASSES, "alpha", "zoo"])
    assert [array.dtype for array in (loaded.rows, loaded.messages)] == [np.int32, np.int64]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]  # no draft is left


def test_whoever_maps_it_may_write_without_changing_the_file(tmp_path: Path) -> None:
    tables = replayed(made_up(2, 20))
    tables.rows = np.tile(tables.rows, (1 << 7, 1))  # large enough to be mapped
    tables.bits += 7
    snapshot.write_snapshot(tmp_path / "tables", tables, durable=False)
    before = (tmp_path / "tables").read_bytes()
    mine, other = (
        snapshot.read_snapshot(tmp_path / "tables"),
        snapshot.read_snapshot(tmp_path / "tables"),
    )
    state = bits_of(other)
    for lesson in made_up(3, 20):
        add(mine, lesson)
    assert bits_of(mine) != state
    assert bits_of(other) == state
    assert (tmp_path / "tables").read_bytes() == before


def test_a_mapped_snapshot_outlives_its_file(written: tuple[Path, Tables]) -> None:
    path, tables = written
    loaded = snapshot.read_snapshot(path)
    path.unlink()
    assert bits_of(loaded) == bits_of(tables)


def test_a_file_has_no_holes(tmp_path: Path) -> None:
    """Who maps a hole on a full tmpfs and touches it is ended by SIGBUS."""
    tables = replayed([])
    tables.rows = np.zeros((1 << 18, 4), np.int32)
    tables.rows[70_000, 1] = 5
    snapshot.write_snapshot(tmp_path / "tables", tables, durable=False)
    stat = (tmp_path / "tables").stat()
    assert stat.st_blocks * 512 >= stat.st_size > 4 << 20
    assert np.flatnonzero(snapshot.read_snapshot(tmp_path / "tables").rows).tolist() == [
        70_000 * 4 + 1
    ]


@pytest.mark.slow
def test_a_hundred_classes(tmp_path: Path) -> None:
    names = [f"a-class-with-a-long-name-{number:03}" for number in range(100)]
    tables = replayed(made_up(4, 600, (*BASE_CLASSES, *names)))
    snapshot.write_snapshot(tmp_path / "tables", tables, durable=False)
    assert bits_of(snapshot.read_snapshot(tmp_path / "tables")) == bits_of(tables)


def test_every_truncation_is_told_with_its_remedy(written: tuple[Path, Tables]) -> None:
    path, _ = written
    whole = path.read_bytes()
    for size in (0, 5, 30, 200, 4096, len(whole) // 2, len(whole) - 1, len(whole) + 1):
        path.write_bytes((whole + b"\0")[:size])
        with pytest.raises(
            TableError, match=r"tables: .*made anew from the ledger.*run `spamguard rebuild`"
        ):
            snapshot.read_snapshot(path)


@pytest.mark.parametrize("at", [0, 18, 20, 28, 40, 300])
def test_a_damaged_head_is_told_with_its_remedy(written: tuple[Path, Tables], at: int) -> None:
    path, _ = written
    whole = bytearray(path.read_bytes())
    whole[at] ^= 4
    path.write_bytes(whole)
    with pytest.raises(TableError, match="rebuild"):
        snapshot.read_snapshot(path)


def test_a_missing_file_or_a_directory_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(TableError, match="cannot be read"):
            snapshot.read_snapshot(path)


def test_nothing_is_left_behind_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(OSError, match="No space"):
        snapshot.write_snapshot(tmp_path / "tables", replayed([]), durable=False)
    assert list(tmp_path.iterdir()) == []


TAUGHT = 40
TEACH_AND_DIE = f"""
import os, signal
one = opened(Path(sys.argv[1]))
more = int(sys.argv[2]) if sys.argv[2:] else 0
for label, raw in mail({TAUGHT} + more)[{TAUGHT} if more else 0:]:
    one.learn(raw, label)
os.kill(os.getpid(), signal.SIGKILL)
"""
# https://www.sqlite.org/fileformat2.html#the_write_ahead_log
WAL_HEADER, FRAME_HEADER = 32, 24


def damage_log(state: Path) -> None:
    """Turn one bit in a page that the current log holds, half way to its end."""
    log = state / "ledger.sqlite-wal"
    content = bytearray(log.read_bytes())
    frame = FRAME_HEADER + PAGE_BYTES
    starts = range(WAL_HEADER, len(content), frame)
    current = [
        start for start in starts if content[start + 8 : start + 16] == content[16:24]
    ]  # of these salts
    content[current[len(current) // 2] + FRAME_HEADER + 100] ^= 1
    log.write_bytes(content)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory as a killed process left it; not to be changed."""
    state = tmp_path_factory.mktemp("killed") / "state"
    state.mkdir()
    assert python(TEACH_AND_DIE, str(state)).returncode == -signal.SIGKILL
    return state


@pytest.fixture
def damaged(killed: Path, tmp_path: Path) -> Path:
    """A state directory whose ledger has lost events that its tables hold."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    damage_log(tmp_path)
    return tmp_path


def events_of_tables(state: Path) -> int:
    (tables,) = state.glob("tables-*.bin")
    return int(tables.name.split("-")[2])


def train(state: Path, *more: str) -> str:
    """What the trainer logs, in a process of its own, as the daemon starts it."""
    line = [sys.executable, "-m", "spamguard.daemon.settle", str(state), *more]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stderr


def status(state: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["--state", str(state), "status", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_damaged_log_is_told_with_the_number_of_events_and_a_remedy(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_by_tables = events_of_tables(damaged)
    with pytest.raises(TableError, match="run `spamguard rebuild`") as told:
        opened(damaged)
    assert "nothing is lost" not in str(told.value)
    told_at_start = train(damaged, "first")
    with opened(damaged) as spam_filter:
        left, lost = spam_filter.ledger.last_seq(), spam_filter.find_loss()
        assert 0 < left < held_by_tables
        assert lost is not None
        assert lost.events == held_by_tables - left
        assert spam_filter.ledger.last_time() == lost.since <= lost.until
    (line,) = [line for line in told_at_start.splitlines() if "missing" in line]
    assert f"at least {lost.events} events are missing from the ledger, taught between " in line
    assert "spamguard restore" in line
    assert "teach-folders" in line
    assert status(damaged, capsys)["lost"] == {
        "events": lost.events,
        "since": lost.since,
        "until": lost.until,
    }
    main(["--state", str(damaged), "doctor"])
    assert f"FAILED  ledger: at least {lost.events} events are missing" in capsys.readouterr().out


@pytest.mark.slow
def test_a_loss_is_told_until_rebuild_has_told_it_to_a_person(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(damaged)
    with opened(damaged) as spam_filter:
        lost = spam_filter.find_loss()
        assert lost is not None
        for label, raw in mail(2 * TAUGHT)[
            TAUGHT:
        ]:  # new events take the lost numbers, new tables the place of the old
            spam_filter.learn(raw, label)
        spam_filter.settle()
        assert spam_filter.find_loss() == lost
    assert main(["--state", str(damaged), "rebuild"]) == 0
    assert f"at least {lost.events} events are missing" in capsys.readouterr().out
    assert status(damaged, capsys)["lost"] is None


def test_rebuild_alone_tells_what_is_missing(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_by_tables = events_of_tables(damaged)
    assert main(["--state", str(damaged), "rebuild"]) == 0
    with opened(damaged) as spam_filter:
        lost = held_by_tables - spam_filter.ledger.last_seq()
    assert f"{lost:,}" in capsys.readouterr().out


def test_what_is_taught_after_a_loss_is_learnt(
    damaged: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """New events take the numbers of the lost ones, up to those that the old tables hold and
    beyond.
    """
    train(damaged)
    new = mail(2 * TAUGHT)[TAUGHT:]
    with opened(damaged) as first, opened(tmp_path_factory.mktemp("other") / "state") as second:
        left = first.ledger.last_seq()
        teach(second, mail(TAUGHT)[:left])
        second.settle()
        for each in (first, second):
            teach(each, new)
        assert held(first) == held(second)


@pytest.mark.parametrize("place", ["header", "first", "last"])
def test_the_last_lesson_is_missed_whatever_byte_of_the_log_was_damaged(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """Though no tables hold it yet. It stays told when new lessons have taken its number."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    assert python(TEACH_AND_DIE, str(tmp_path), "1").returncode == -signal.SIGKILL
    log = tmp_path / "ledger.sqlite-wal"
    content = bytearray(log.read_bytes())
    frames = range(WAL_HEADER, len(content), FRAME_HEADER + PAGE_BYTES)
    current = [start for start in frames if content[start + 8 : start + 16] == content[16:24]]
    at = {"header": 16, "first": current[0] + 200, "last": current[-1] + 200}[place]
    content[at] ^= 1
    log.write_bytes(content)
    assert train(tmp_path, "first").count("missing from the ledger") == 1
    lost = status(tmp_path, capsys)["lost"]
    with opened(tmp_path) as spam_filter:
        missing = TAUGHT + 1 - spam_filter.ledger.last_seq()
        assert missing > 0
        assert isinstance(lost, dict)
        assert lost["events"] == missing
        teach(spam_filter, mail(TAUGHT + 10)[TAUGHT + 1 :])
        assert spam_filter.find_loss() == snapshot.LedgerLoss(**lost)
    assert main(["--state", str(tmp_path), "rebuild"]) == 0
    capsys.readouterr()
    assert status(tmp_path, capsys)["lost"] is None


def test_nothing_is_missing_where_nothing_was_damaged(killed: Path, tmp_path: Path) -> None:
    """Neither after a kill, nor after more than one settling."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    with opened(tmp_path) as spam_filter:
        assert spam_filter.ledger.last_seq() == TAUGHT
        assert spam_filter.find_loss() is None
        spam_filter.settle()
        assert spam_filter.find_loss() is None


def test_equal_settled_tables_have_one_name(tmp_path: Path) -> None:
    """The lineage is the SHA-256 of the file, wherever and in whatever order it was taught."""
    stamps = []
    for place, lessons in (("one", mail(40)), ("other", mail(40)[::-1])):
        with opened(tmp_path / place) as spam_filter:
            teach(spam_filter, lessons)
            spam_filter.settle()
            stamps.append(spam_filter._store.stamp)
            path = tmp_path / place / stamps[-1].file
            assert stamps[-1].lineage == hashlib.sha256(path.read_bytes()).hexdigest()
    assert stamps[0].lineage == stamps[1].lineage
