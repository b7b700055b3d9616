"""The ledger asked about many messages: so many of them in each statement, as no statement takes any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spamguard.ledger import statements

Ask = Callable[[str, tuple[object, ...]], list[tuple[Any, ...]]]
"""Runs a statement; LedgerError."""

_CHUNK = 128  # digests in one statement, or range: some 500 kB of receipts

Range = tuple[bytes, bytes]
"""Digests between two, the first excluded, the last one of them."""


def of_digests(ask: Ask, statement: str, digests: Sequence[bytes], *more: object) -> Iterator[tuple[Any, ...]]:
    """Rows of a statement with `IN ({})`; those of one digest are answers to the same one. more: values that stand after them."""
    for start in range(0, len(digests), _CHUNK):
        some = digests[start : start + _CHUNK]
        yield from ask(statement.format(",".join("?" * len(some))), (*some, *more))


def ranges(ask: Ask, *, backwards: bool) -> Iterator[Range]:
    """All digests, in their order or the other way round, some at a time."""
    found = _ranges(ask)
    return reversed(list(found)) if backwards else found


def _ranges(ask: Ask) -> Iterator[Range]:
    after = b""
    while (last := ask(statements.LAST_OF_NEXT_DIGESTS, (after, _CHUNK))[0][0]) is not None:
        yield after, last
        after = last
