"""Tables as a file: what is read is what was written, and damage is told with its remedy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes.tables import BASE_CLASSES, Tables
from spamguard.errors import TableError
from spamguard.model import snapshot
from tests.unit.bayes.lessons import add, made_up, replayed
from tests.unit.filters import bits_of

CLASSES = ("ham", "spam", "alpha", "zoo")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Tables]:
    tables = replayed(made_up(1, 80, CLASSES))
    snapshot.write(tmp_path / "tables", tables, durable=True)
    return tmp_path / "tables", tables


def test_what_is_read_is_what_was_written(written: tuple[Path, Tables]) -> None:
    path, tables = written
    found = snapshot.read(path)
    assert bits_of(found) == bits_of(tables)
    assert (found.bits, found.classes) == (tables.bits, [*BASE_CLASSES, "alpha", "zoo"])
    assert [array.dtype for array in (found.rows, found.messages)] == [np.int32, np.int64]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]  # no draft is left


def test_whoever_maps_it_may_write_without_changing_the_file(tmp_path: Path) -> None:
    tables = replayed(made_up(2, 20))
    tables.rows = np.tile(tables.rows, (1 << 7, 1))  # large enough to be mapped
    tables.bits += 7
    snapshot.write(tmp_path / "tables", tables, durable=False)
    before = (tmp_path / "tables").read_bytes()
    mine, other = snapshot.read(tmp_path / "tables"), snapshot.read(tmp_path / "tables")
    state = bits_of(other)
    for lesson in made_up(3, 20):
        add(mine, lesson)
    assert bits_of(mine) != state
    assert bits_of(other) == state
    assert (tmp_path / "tables").read_bytes() == before


def test_a_mapped_snapshot_outlives_its_file(written: tuple[Path, Tables]) -> None:
    path, tables = written
    found = snapshot.read(path)
    path.unlink()
    assert bits_of(found) == bits_of(tables)


def test_a_file_has_no_holes(tmp_path: Path) -> None:
    """Who maps a hole on a full tmpfs and touches it is ended by SIGBUS."""
    tables = replayed([])
    tables.rows = np.zeros((1 << 18, 4), np.int32)
    tables.rows[70_000, 1] = 5
    snapshot.write(tmp_path / "tables", tables, durable=False)
    found = (tmp_path / "tables").stat()
    assert found.st_blocks * 512 >= found.st_size > 4 << 20
    assert np.flatnonzero(snapshot.read(tmp_path / "tables").rows).tolist() == [70_000 * 4 + 1]


def test_a_hundred_classes(tmp_path: Path) -> None:
    names = [f"a-class-with-a-long-name-{number:03}" for number in range(100)]
    tables = replayed(made_up(4, 600, (*BASE_CLASSES, *names)))
    snapshot.write(tmp_path / "tables", tables, durable=False)
    assert bits_of(snapshot.read(tmp_path / "tables")) == bits_of(tables)


def test_every_truncation_is_told_with_its_remedy(written: tuple[Path, Tables]) -> None:
    path, _ = written
    whole = path.read_bytes()
    for size in (0, 5, 30, 200, 4096, len(whole) // 2, len(whole) - 1, len(whole) + 1):
        path.write_bytes((whole + b"\0")[:size])
        with pytest.raises(TableError, match=r"tables: .*made anew from the ledger.*run `spamguard rebuild`"):
            snapshot.read(path)


@pytest.mark.parametrize("at", [0, 18, 20, 28, 40, 300])
def test_a_damaged_head_is_told_with_its_remedy(written: tuple[Path, Tables], at: int) -> None:
    path, _ = written
    whole = bytearray(path.read_bytes())
    whole[at] ^= 4
    path.write_bytes(whole)
    with pytest.raises(TableError, match="rebuild"):
        snapshot.read(path)


@pytest.mark.parametrize("name", ["rows", "messages"])
def test_tables_of_a_machine_with_another_order_of_bytes_are_told_with_the_remedy(name: str, tmp_path: Path) -> None:
    tables = replayed(made_up(1, 20))
    array = getattr(tables, name)
    setattr(tables, name, array.astype(array.dtype.newbyteorder()))  # the same numbers, as such a machine writes them
    snapshot.write(tmp_path / "tables", tables, durable=False)
    with pytest.raises(TableError, match=r"another order of bytes.*rebuild"):
        snapshot.read(tmp_path / "tables")


def test_a_missing_file_or_a_directory_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(TableError, match="cannot be read"):
            snapshot.read(path)


def test_nothing_is_left_behind_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(OSError, match="No space"):
        snapshot.write(tmp_path / "tables", replayed([]), durable=False)
    assert list(tmp_path.iterdir()) == []
