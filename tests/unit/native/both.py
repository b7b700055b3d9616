"""What the tests of the kernel share: the same work done with it and by numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from spamguard import native

Result = TypeVar("Result")
COMPILED = native._load()
needs_kernel = pytest.mark.skipif(
    COMPILED is None, reason="the kernel is not compiled here, or switched off"
)
repeatable = settings(derandomize=True, deadline=None, max_examples=100, database=None)


@contextmanager
def using(functions: Any) -> Iterator[None]:
    """Within, these are in force."""
    before = native.functions
    native.functions = functions
    try:
        yield
    finally:
        native.functions = before


def both(work: Callable[[], Result]) -> tuple[Result, Result]:
    """What it gives with the kernel, and by numpy."""
    assert COMPILED is not None
    with using(COMPILED):
        compiled = work()
    with using(None):
        return compiled, work()
