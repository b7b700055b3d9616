"""Many things, some at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

BATCH = 64  # messages of a transaction (bench_ledger.py: 36,000 receipts/s, one by one 3,800/s)

Item = TypeVar("Item")


def batches(items: Iterable[Item], size: int = BATCH) -> Iterator[list[Item]]:
    """The items in lists of `size`, the last one shorter."""
    pending = iter(items)
    while batch := list(islice(pending, size)):
        yield batch
