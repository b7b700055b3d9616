"""Private files, names on the disk, drafts, and messages on their way through."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.storage import (
    MAX_MEMORY_BYTES,
    Spool,
    SpoolView,
    draft_file,
    remove_stale_drafts,
)
from tests.support.processes import own_descriptors


def test_a_draft_that_was_left_behind_is_swept_once_it_is_old(tmp_path):
    with draft_file(tmp_path / "file") as draft:
        kept = draft.with_name(draft.name)
    kept.write_bytes(b"half")
    remove_stale_drafts(tmp_path)
    assert kept.exists()
    os.utime(kept, (0, 0))
    remove_stale_drafts(tmp_path)
    assert not kept.exists()


# ---- messages on their way

LARGE = os.urandom(MAX_MEMORY_BYTES + 300_000)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    one = Spool(tmp_path)
    yield one
    one.close()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Files cannot grow beyond this: the write that crosses it is cut short, the next one fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(0, 400_000), max_size=6), st.integers(0, 900_000))
def test_what_was_written_is_read(tmp_path: Path, sizes: list[int], start: int) -> None:
    spool, written = Spool(tmp_path), b""
    for size in sizes:
        piece = LARGE[len(written) % 1000 :][:size]
        spool.write(piece)
        written += piece
        assert (spool.size, spool.read_start(1000)) == (len(written), written[:1000])
    assert (spool.descriptor is None) == (len(written) <= MAX_MEMORY_BYTES)
    assert spool.read() == spool.read() == spool.read_start(len(written) + 1) == written
    assert b"".join(spool.chunks(start)) == written[start:]
    content = SpoolView(b"on top", spool, min(start, len(written)))
    assert b"".join(content.chunks()) == b"on top" + written[start:]
    assert content.size == len(b"".join(content.chunks()))
    spool.close()


def test_a_kill_leaves_nothing_behind(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from spamguard.storage import Spool\n"
    code += "Spool(Path(sys.argv[1])).write(bytes(2 << 20)); os.kill(os.getpid(), 9)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def unusable(spool: Spool) -> None:
    """Neither a part of the message nor a message without its middle can be had."""
    for use in (
        lambda: spool.write(b"more"),
        lambda: spool.read_start(1),
        spool.read,
        lambda: list(spool.chunks()),
    ):
        with pytest.raises(OSError, match=r"."):
            use()
    assert spool.descriptor is None


@pytest.mark.parametrize("room", [0, 100_000, MAX_MEMORY_BYTES + 100_000])
def test_a_full_disk(spool: Spool, tmp_path: Path, room: int) -> None:
    before = own_descriptors()
    spool.write(LARGE[:1000])
    with full_disk(room), pytest.raises(OSError, match="too large") as first:
        spool.write(LARGE[1000:])
    assert spool.size == 1000
    with pytest.raises(OSError, match="too large") as later:  # though there would be room again
        spool.write(b"more")
    assert later.value.errno == first.value.errno
    unusable(spool)
    spool.close()
    with pytest.raises(OSError, match="too large"):
        spool.read()
    assert list(tmp_path.iterdir()) == []
    assert own_descriptors() == before


def test_a_disk_that_fills_up_later(spool: Spool) -> None:
    spool.write(LARGE)
    chunks = spool.chunks()
    next(chunks)
    with full_disk(len(LARGE) + 10), pytest.raises(OSError, match="too large"):
        spool.write(LARGE)
    with pytest.raises(OSError, match="too large"):
        next(chunks)


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_bytes(LARGE)
    spool = Spool.open_file(path)
    chunks = spool.chunks()
    next(chunks)
    os.truncate(path, 10)
    with pytest.raises(OSError, match="shorter"):
        b"".join(chunks)
    spool.close()
