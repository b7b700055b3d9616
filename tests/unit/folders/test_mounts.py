"""The kernel's list of mounts is read, whatever names the mounts have."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from spamguard.folders.changes import MountMonitor
from tests.support.disks import mounted, needs_disks


@needs_disks
@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a\tb",
        "a\nb",
        "a\rb",
        "a\r\nb c",
        "a\\b",
        "a\\012b",
        "a#b",
        "\x0b\x0c\x1c",
        "ä\u2028",
        "\udcff",
    ],
)
def test_a_place_of_any_name(tmp_path: Path, name: str) -> None:
    """Users choose them, by FUSE; one with a carriage return kept the watcher from starting."""
    place, disk = tmp_path / name, tmp_path / "disk"
    for directory in (place, disk):
        directory.mkdir()
    with closing(MountMonitor()) as before, mounted(disk, place):
        assert before.take_new() == {str(place)}
        assert before.take_new() == set()
        with closing(MountMonitor()) as after:
            assert after.take_new() == set()
