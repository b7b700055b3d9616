"""Files that are no backups, or damaged, or made to deceive: nothing is restored from them."""

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spamguard import secret
from spamguard.backup import archive, restoring
from spamguard.backup.archive import Archive, Header
from spamguard.errors import LedgerError, SourceError
from spamguard.framed import FrameWriter
from tests.unit.backup.places import command, state_of
from tests.unit.filters import upgraded


@pytest.mark.slow
def test_damage_anywhere_restores_nothing(file, tmp_path, capsys):
    whole = file.read_bytes()
    for at in [*range(0, 60), *range(60, len(whole), len(whole) // 40), len(whole) - 1]:
        for damaged in (whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :], whole[:at]):
            file.write_bytes(damaged)
            assert command(tmp_path / "new", "restore", file) == 2, at
            told = capsys.readouterr().err
            assert told.count("\n") == 1
            assert "nothing was restored" in told
    file.write_bytes(whole + b"x")
    assert command(tmp_path / "new", "restore", file) == 2
    assert not (tmp_path / "new").exists()


def test_files_of_something_else(state, tmp_path, capsys):
    command(state, "export", tmp_path / "export")
    for path in (tmp_path / "export", state / "ledger.sqlite", tmp_path / "missing"):
        assert command(tmp_path / "new", "restore", path) == 2
    told = "it is not a file that `spamguard backup` wrote (`import` takes those of `export`); nothing was restored"
    assert capsys.readouterr().err.count(told) == 2


def written(**changes: object) -> Archive:
    """A whole archive whose header or files are not such as a backup has."""
    values = {"format": 1, "program": "", "fingerprint": "f", "time": 0, "sizes": {"key": 1, "ledger.sqlite": 1}}
    stream = io.BytesIO()
    writer = FrameWriter(stream, b"spamguard backup\n", json.dumps({**values, **changes.get("header", {})}).encode())
    for name, pieces in changes.get("files", [(b"key", [b"k"]), (b"ledger.sqlite", [b"l"])]):
        writer.frame(b"F", name)
        for piece in pieces:
            writer.piece(b"D", piece)
    writer.end()
    return Archive("it", stream)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"header": {"format": 2}}, "format 2, this program reads 1: update"),
        ({"header": {"format": "1"}}, "its header is damaged"),
        ({"header": {"time": "today"}}, r"its header is damaged \(time\)"),
        ({"header": {"time": 10**15}}, r"its header is damaged \(time\)"),
        ({"header": {"sizes": []}}, r"its header is damaged \(sizes\)"),
        ({"header": {"sizes": {"key": 1}}}, "its files are not those that it names"),
        ({"files": [(b"../key", [b"k"])]}, "names a file that no backup has"),
        ({"files": [(b"key", [b"k"]), (b"key", [b"k"])]}, "names a file that no backup has"),
        ({"files": [(b"key", [b"k"])]}, "its files are not those that it names"),
        ({"files": [(b"key", [b"kk"]), (b"ledger.sqlite", [b"l"])]}, "its files are not those"),
    ],
)
def test_archives_made_to_deceive(changes, words):
    with pytest.raises(SourceError, match=words):
        written(**changes).check()
    assert written().check() == Header(1, "", "f", 0, {"key": 1, "ledger.sqlite": 1})


@pytest.mark.parametrize("header", [b"[" * 100_000, b"[]", b"{}", b" " * (2 << 20)])
def test_headers_made_to_deceive(header):
    stream = io.BytesIO()
    FrameWriter(stream, b"spamguard backup\n", header).end()
    with pytest.raises(SourceError, match="its header is damaged"):
        Archive("it", stream).check()


def test_a_whole_archive_of_nonsense_changes_nothing(tmp_path, state):
    before = state_of(state)
    with pytest.raises((SourceError, LedgerError)), restoring.proved(written(), written().check(), state, lambda _: None):
        pass
    assert state_of(state) == before
    assert not list(state.glob(".restore-*"))


def packed(state: Path, to: Path) -> Path:
    """A backup of files as they are, whatever they hold."""
    files = {name: state / name for name in ("key", "ledger.sqlite")}
    header = Header(1, "", secret.fingerprint((state / "key").read_bytes()), 0, {name: path.stat().st_size for name, path in files.items()})
    with to.open("wb") as stream:
        archive.write(stream, header, files, lambda _: None)
    return to


def test_a_damaged_receipt_is_found_before_anything_is_touched(state, file, tmp_path, capsys):
    bad = tmp_path / "bad"
    shutil.copytree(state, bad)
    with closing(sqlite3.connect(bad / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET packed = CAST(packed || x'00' AS BLOB) WHERE seq = 7")
    before = state_of(state)
    assert command(state, "restore", "--replace", packed(bad, tmp_path / "packed")) == 2
    assert "receipt in the ledger is damaged" in capsys.readouterr().err
    assert state_of(state) == before


@pytest.mark.parametrize(("schema", "status"), [(1, 0), (99, 2)])
def test_a_backup_of_another_time(state, tmp_path, schema, status, capsys):
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {schema}")
    assert command(tmp_path / "new", "restore", packed(state, tmp_path / "packed")) == status
    assert ("has schema 99" in capsys.readouterr().err) == (status == 2)


def test_a_backup_of_before_an_upgrade_that_reads_mail_otherwise(state, tmp_path, capsys):
    """It was restored, as "lessons of 0 messages", and everything was unsure."""
    upgraded(state)
    assert command(tmp_path / "new", "restore", packed(state, tmp_path / "packed")) == 0
    said = capsys.readouterr()
    assert "lessons of 0 messages" in said.out
    assert "note: 30 lessons from before an upgrade that reads mail otherwise: no use until the mail is read anew" in said.err
