"""What the courier says of itself, and what readers make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spamguard.shared.status import (
    STATUS_FILE,
    NodeStatus,
    SharedStatus,
    read_status,
)

NOW = 1_790_000_000.0
NODE = NodeStatus("a", "mx1", "https://mx1.example", "1.0.0", 5, 0, NOW, "11")
WELL = SharedStatus("a", NOW, 5, 5, NOW, nodes=(NODE, replace(NODE, node="b", name="mx2")))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"nodes": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_a_silent_courier(tmp_path, data):
    (tmp_path / STATUS_FILE).write_bytes(data)
    status = read_status(tmp_path)
    (tmp_path / "absent").mkdir()
    assert status == SharedStatus() == read_status(tmp_path / "absent")
    assert list(status.notes(NOW)) == ["shared log: the courier has not been heard yet"]


def test_a_courier_that_has_ended_is_away():
    assert list(WELL.notes(NOW + 60)) == ["shared log: the courier has not been heard for 1 min"]
    assert WELL.is_away(NOW + 60)


def test_alarms_and_other_settings_are_told():
    odd = replace(NODE, node="b", name="mx2", settings="22")
    worried = replace(WELL, alarms=("broken",), joining=True, nodes=(NODE, odd))
    joining, *others = worried.notes(NOW)
    assert "this node joins it, and has 5 of 5 events" in joining
    assert others == [
        "shared log: broken",
        "shared log: mx2 has other settings than this node",
    ]
