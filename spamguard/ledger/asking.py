"""The ledger asked about many messages: so many of them in each statement, as no statement takes any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Ask = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]
"""Runs a statement; LedgerError."""

_CHUNK = 128  # digests in one statement


def of_digests(ask: Ask, statement: str, digests: Sequence[bytes], *more: object) -> Iterator[tuple[Any, ...]]:
    """Rows of a statement with `IN ({})`; those of one digest are answers to the same one. more: values that stand after them."""
    for start in range(0, len(digests), _CHUNK):
        some = digests[start : start + _CHUNK]
        yield from ask(statement.format(",".join("?" * len(some))), (*some, *more))
