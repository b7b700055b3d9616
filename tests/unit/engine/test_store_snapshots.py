"""Snapshots: written whole, read as they were, and proof of lost events."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes.tables import Tables
from spamguard.cli import main
from spamguard.engine import snapshot
from spamguard.errors import TableError
from spamguard.ledger.schema import PAGE_BYTES
from tests.e2e.daemon import SETTLE
from tests.unit.bayes.lessons import made_up, replayed
from tests.unit.filters import held, mail, opened, python, teach

CLASSES = ("ham", "spam", "alpha", "zoo")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Tables]:
    tables = replayed(made_up(1, 80, CLASSES))
    snapshot.write_snapshot(tmp_path / "tables", tables, durable=True)
    return tmp_path / "tables", tables


def test_every_truncation_is_told_with_its_remedy(written: tuple[Path, Tables]) -> None:
    path, _ = written
    whole = path.read_bytes()
    for size in (0, 5, 30, 200, 4096, len(whole) // 2, len(whole) - 1, len(whole) + 1):
        path.write_bytes((whole + b"\0")[:size])
        with pytest.raises(
            TableError, match=r"tables: .*made anew from the ledger.*run `spamguard rebuild`"
        ):
            snapshot.read_snapshot(path)


def test_a_damaged_block_is_told_when_the_file_is_opened(written: tuple[Path, Tables]) -> None:
    path, tables = written
    whole = path.read_bytes()
    start = whole.index(tables.blocks.tobytes())
    for block in (2**31 - 1, tables.used_blocks, -1):
        damaged = np.int32(block).tobytes()
        path.write_bytes(whole[:start] + damaged + whole[start + len(damaged) :])
        with pytest.raises(TableError, match="its blocks are not where they should be"):
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


def train(state: Path) -> None:
    """Settle in a process of its own, as the daemon does."""
    subprocess.run([*SETTLE, str(state)], timeout=60, check=True)


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
    train(damaged)
    with opened(damaged) as spam_filter:
        left, lost = spam_filter.ledger.last_seq(), spam_filter.find_loss()
        assert 0 < left < held_by_tables
        assert lost is not None
        assert lost.events == held_by_tables - left
        assert list(spam_filter.ledger.all_votes())[-1].time == lost.since <= lost.until
    assert status(damaged, capsys)["lost"] == {
        "events": lost.events,
        "since": lost.since,
        "until": lost.until,
    }
    main(["--state", str(damaged), "doctor"])
    told_by_doctor = capsys.readouterr().out
    assert f"FAILED  ledger: at least {lost.events} events are missing" in told_by_doctor
    assert "spamguard restore" in told_by_doctor
    assert "teach-folders" in told_by_doctor


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
    train(tmp_path)
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
