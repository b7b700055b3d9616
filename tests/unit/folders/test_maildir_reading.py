"""The message in a file of a Maildir, whole or not at all."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest

from spamguard.folders.scan import UnfinishedFileError, read_message
from spamguard.sources import UnreadableFileError

RAW = b"Subject: x\n\n" + b"hello\n" * 1000
LONG_AGO = 1_600_000_000


def written(place: Path, data: bytes, *, name: str = "1.a.b", age: float | None = None) -> bytes:
    """Read a file with this content that was changed so many seconds ago (default: years)."""
    path = place / name
    path.write_bytes(data)
    changed = LONG_AGO if age is None else time.time() - age
    os.utime(path, (changed, changed))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_message(descriptor, name)
    finally:
        os.close(descriptor)


def test_what_is_being_written_is_left_alone(tmp_path):
    for age in (0.0, -0.5):
        with pytest.raises(UnfinishedFileError):
            written(tmp_path, RAW, age=age)
    assert written(tmp_path, RAW, age=2) == RAW
    assert written(tmp_path, RAW, name=f"1.a.b,S={len(RAW)},W=9:2,S", age=0) == RAW
    for name in (f"1.a.b,S={len(RAW) + 1}", f"1.a.b,S={len(RAW) + 1}:2,S"):
        with pytest.raises(UnfinishedFileError):
            written(tmp_path, RAW, name=name, age=10)
        assert written(tmp_path, RAW, name=name) == RAW  # nobody will complete it any more
    assert written(tmp_path, RAW, name=f"1.a.b,S={len(RAW) - 1}") == RAW
    with pytest.raises(UnfinishedFileError):
        written(tmp_path, gzip.compress(RAW)[:-9], age=10)
    assert written(tmp_path, gzip.compress(RAW), name=f"1.a.b,S={len(RAW)}", age=0) == RAW


def test_a_file_that_is_empty(tmp_path):
    with pytest.raises(UnfinishedFileError):
        written(tmp_path, b"", age=10)
    with pytest.raises(UnreadableFileError, match="empty"):
        written(tmp_path, b"")


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "1.a.b"
    path.write_bytes(RAW)
    os.utime(path, (LONG_AGO, LONG_AGO))
    real = os.fstat

    def slow(descriptor: int) -> os.stat_result:
        with path.open("ab") as stream:
            stream.write(b"more")
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", slow)
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(UnfinishedFileError):
        read_message(descriptor, path.name)
    os.close(descriptor)
