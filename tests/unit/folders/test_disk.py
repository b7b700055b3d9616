"""A disk that is really full, below both the ledger and the sightings."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spamguard.folders import watcher
from tests.support.disks import needs_disks, small_disk
from tests.unit.folders.maildirs import deliver, move
from tests.unit.folders.watched import DEBOUNCE, MAIL, Watched

LEFT = MAIL[:20]


def fill(file: Path) -> None:
    """Fill the disk to the last byte."""
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while stream.write(b"x" * size):
                    pass


def turn_until(one: Watched, done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        one.watcher.run_once(DEBOUNCE)


@needs_disks
def test_nothing_is_lost_and_little_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.2)
    with small_disk(tmp_path / "disk", "16m") as disk:
        one = Watched(disk, flagged_is_ham=True)
        moved = [deliver(one.box, raw) for raw in LEFT]
        flagged = [deliver(one.box, raw) for raw in MAIL[20:30]]
        one.rest()
        fill(disk / "filler")
        for message in moved:
            move(message, one.box / ".Junk")
        for message in flagged:
            message.rename(one.box / "cur" / f"{message.name}:2,F")
        turn_until(one, lambda: False, 2)
        told = [
            record.getMessage()
            for record in caplog.records
            if record.levelname in ("WARNING", "ERROR")
        ]
        assert told
        assert len(told) == len(set(told)) < 5
        during = one.votes()
        assert len(during) < 30
        (disk / "filler").unlink()
        turn_until(one, lambda: len(one.votes()) == 30, 30)
        one.rest()
        assert one.votes() == {
            f"anna {number}": "spam" if number < 20 else "ham" for number in range(30)
        }
        assert during.items() <= one.votes().items()
        assert one.filter.ledger.last_seq() == 30
        one.stop()
        one.start()
        one.rest()
        assert one.filter.ledger.last_seq() == 30
        one.stop()
        one.filter.close()
