"""What the tests of the kernel share: the same work done with it and by numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
from hypothesis import settings

from spamguard import kernel

Result = TypeVar("Result")
COMPILED = kernel._load()
needs_kernel = pytest.mark.skipif(COMPILED is None, reason="the kernel is not compiled here, or switched off")
repeatable = settings(derandomize=True, deadline=None, max_examples=100, database=None)


@contextmanager
def using(functions: kernel.Functions | None) -> Iterator[None]:
    """Within, these are in force."""
    before = kernel._functions
    kernel._functions = functions
    try:
        yield
    finally:
        kernel._functions = before


def both(work: Callable[[], Result]) -> tuple[Result, Result]:
    """What it gives with the kernel, and by numpy."""
    assert COMPILED is not None
    with using(COMPILED):
        compiled = work()
    with using(None):
        return compiled, work()
