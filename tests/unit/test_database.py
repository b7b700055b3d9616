"""A database that is made while the disk fills up is there whole, or not at all: what is half made
would stand in the way for good.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spamguard.errors import SpamguardError
from spamguard.folders.sightings import Sightings
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.proxy.history import History
from spamguard.web.auth import CredentialStore
from tests.support.disks import needs_disks, small_disk

KINDS: dict[str, Callable[[Path], object]] = {
    "ledger": lambda place: SqliteLedger.open(place / "ledger.sqlite", "key").close(),
    "history": lambda place: History.open(place / "history.sqlite", 8 << 20, 7).close(),
    "sightings": lambda place: Sightings.open(place / "sightings.sqlite").close(),
    "tokens": lambda place: CredentialStore.open(place).close(),
}


@needs_disks
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_room_there_is(tmp_path, kind):
    made = set()
    for size in range(16, 400, 24):  # kB
        with small_disk(tmp_path / f"{size}", f"{size}k") as disk:
            with suppress(SpamguardError):
                KINDS[kind](disk)
                made.add(size)
            # The file of the sightings is so small that it may fit where its log does not.
            assert size in made or kind == "sightings" or list(disk.iterdir()) == []
            subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
            KINDS[kind](disk)
    assert 0 < len(made) < 16
