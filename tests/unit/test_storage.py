"""Private files, names on the disk, and drafts."""

import os
from itertools import count

import pytest

from corpora import synthetic
from spamguard import storage
from spamguard.engine.filter import Filter
from spamguard.storage import (
    batches,
    create_atomically,
    create_once,
    create_private,
    draft_file,
    remove_stale_drafts,
)

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_a_file_is_for_its_user_alone_and_never_replaces_another(tmp_path):
    with create_private(tmp_path / "file") as file:
        file.write(b"x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_private(tmp_path / "file")


@as_root
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path):
    os.chown(tmp_path, NOBODY, NOBODY)
    create_private(tmp_path / "file").close()
    found = (tmp_path / "file").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (NOBODY, NOBODY, 0o600)


@as_root
def test_a_filter_that_root_has_taught_is_still_its_owners(tmp_path):
    os.chown(tmp_path, NOBODY, NOBODY)
    with Filter.open(tmp_path, _bits=16, _durable=False) as spam_filter:
        for label, raw in synthetic.generate(20, 1):
            spam_filter.learn(raw, label)
        spam_filter.settle()
    assert {path.name: path.stat().st_uid for path in tmp_path.rglob("*")} == {
        path.name: NOBODY for path in tmp_path.rglob("*")
    }
    assert [path.name for path in tmp_path.glob("tables-*")]


def test_a_draft_has_a_name_of_its_own_and_nothing_of_it_is_left(tmp_path):
    with draft_file(tmp_path / "file") as draft, draft_file(tmp_path / "file") as other:
        assert draft != other
        draft.write_bytes(b"whole")
        other.write_bytes(b"half")
        draft.rename(tmp_path / "file")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"whole"}


def test_a_draft_that_was_left_behind_is_swept_once_it_is_old(tmp_path):
    with draft_file(tmp_path / "file") as draft:
        kept = draft.with_name(draft.name)
    kept.write_bytes(b"half")
    remove_stale_drafts(tmp_path)
    assert kept.exists()
    os.utime(kept, (0, 0))
    remove_stale_drafts(tmp_path)
    assert not kept.exists()


def test_of_several_that_make_a_file_once_the_first_counts(tmp_path):
    def late(draft):
        assert draft.stat().st_mode & 0o777 == 0o600
        create_once(tmp_path / "file", lambda other: other.write_bytes(b"first"))
        draft.write_bytes(b"second")

    create_once(tmp_path / "file", late)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"first"}


@pytest.mark.parametrize("unnamed", [True, False], ids=["without a name", "as a draft"])
def test_a_file_has_its_name_once_it_is_whole(tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.setattr(storage, "open_unnamed", lambda _: None)
    with create_atomically(tmp_path / "file") as file:
        file.write(b"whole")
        assert len(list(tmp_path.iterdir())) == (not unnamed)
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError), create_atomically(tmp_path / "file") as file:
        file.write(b"another")
    with pytest.raises(OSError, match="full"), create_atomically(tmp_path / "other") as file:
        raise OSError(f"full after {file.write(b'half')} bytes")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"whole"}


def test_batches() -> None:
    assert list(batches(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(batches([])) == []
    assert next(batches(count(), 3)) == [0, 1, 2]
