"""Files that are no backups, or damaged, or made to deceive: nothing is restored from them."""

import hashlib
import io
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from spamguard import backup, keys
from spamguard.backup import BackupHeader, BackupReader
from spamguard.errors import LedgerError, SourceError
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


LEDGER = ("ledger.sqlite", b"l")
SIZES = {"key": 1, "ledger.sqlite": 1}
HEADER = {"format": 1, "program": "", "fingerprint": "f", "time": 0, "sizes": SIZES}


def archived(
    header: object = None, files: tuple[tuple[str, bytes], ...] = (("key", b"k"), LEDGER), **values
) -> bytes:
    """An archive with right checksums whose header or files may not be such as a backup has."""
    if header is None:
        header = json.dumps({**HEADER, **values}).encode()
    stream, sums = io.BytesIO(), ""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in (("spamguard-backup.json", header), *files):
            sums += f"{hashlib.sha256(content).hexdigest()}  {name}\n"
            archive.addfile(member(name, content), io.BytesIO(content))
        archive.addfile(member("SHA256SUMS", sums.encode()), io.BytesIO(sums.encode()))
        end = archive.offset + 1024
    return stream.getvalue()[:end]


def written(*header, **values) -> BackupReader:
    return BackupReader("it", io.BytesIO(archived(*header, **values)))


def member(name: str, content: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    return entry


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2, this program reads 1: update"),
        ({"format": "1"}, "its header is damaged"),
        ({"time": "today"}, "its header is damaged"),
        ({"time": 10**15}, "its header is damaged"),
        ({"sizes": []}, "its header is damaged"),
        ({"sizes": {"key": 1}}, "its header is damaged"),
        ({"sizes": {"../key": 1, **SIZES}}, "its header is damaged"),
        ({"sizes": {"key": 1, "ledger.sqlite": -1}}, "its header is damaged"),
        ({"sizes": {"key": 1, "ledger.sqlite": 1 << 40}}, "is damaged"),
        ({"files": (("../key", b"k"), LEDGER)}, "it is damaged"),
        ({"files": (("key", b"k"), ("key", b"k"))}, "it is damaged"),
        ({"files": (("key", b"k"),)}, "it is damaged"),
        ({"files": (("key", b"kk"), LEDGER)}, "it is damaged"),
        ({"files": (LEDGER, ("key", b"k"))}, "it is damaged"),
        ({"files": (("key", b"k"), LEDGER, ("more", b""))}, "it is damaged"),
    ],
)
def test_archives_made_to_deceive(changes, words):
    with pytest.raises(SourceError, match=words):
        written(**changes).verify()
    assert written().verify() == BackupHeader(1, "", "f", 0, {"key": 1, "ledger.sqlite": 1})


@pytest.mark.parametrize("header", [b"", b"[" * 50_000, b"[]", b"{}", b" " * (2 << 20)])
def test_headers_made_to_deceive(header):
    with pytest.raises(SourceError, match="its header is damaged"):
        written(header).verify()


def test_a_whole_archive_of_nonsense_changes_nothing(tmp_path, state):
    before = state_of(state)
    with (
        pytest.raises((SourceError, LedgerError)),
        backup.prove_backup(written(), state, lambda _: None),
    ):
        pass
    assert state_of(state) == before
    assert not list(state.glob(".restore-*"))


def packed(state: Path, to: Path) -> Path:
    """A backup of files as they are, whatever they hold."""
    files = {name: state / name for name in ("key", "ledger.sqlite")}
    fingerprint = keys.key_fingerprint((state / "key").read_bytes())
    with to.open("wb") as stream:
        backup.write_backup(stream, files, fingerprint, lambda _: None)
    return to


@pytest.mark.parametrize("schema", [1, 99])
def test_a_backup_of_another_schema(state, tmp_path, schema, capsys):
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {schema}")
    assert command(tmp_path / "new", "restore", packed(state, tmp_path / "packed")) == 2
    assert f"has schema {schema}" in capsys.readouterr().err


def test_a_backup_of_before_an_upgrade_that_reads_mail_otherwise(state, tmp_path, capsys):
    """It was restored, as "lessons of 0 messages", and everything was unsure."""
    upgraded(state)
    assert command(tmp_path / "new", "restore", packed(state, tmp_path / "packed")) == 0
    said = capsys.readouterr()
    assert "lessons of 0 messages" in said.out
    assert (
        "note: 30 lessons from before an upgrade that reads mail otherwise:"
        " no use until the mail is read again" in said.err
    )
