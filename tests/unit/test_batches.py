"""Many things, some at a time."""

from __future__ import annotations

from itertools import count

from spamguard.storage import batches


def test_batches() -> None:
    assert list(batches(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(batches([])) == []
    assert next(batches(count(), 3)) == [0, 1, 2]
