"""Fixtures of this directory: watchers that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.unit.folders.watched import Watched


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Makes a watcher with these settings, which has not looked at anything yet."""
    with ExitStack() as stack:

        def make(place: Path = tmp_path, **settings: object) -> Watched:
            return stack.enter_context(closing(Watched(place, **settings)))

        yield make


@pytest.fixture
def watched(watch: Callable[..., Watched]) -> Watched:
    one = watch()
    one.rest()
    return one


@pytest.fixture
def weighed(watch: Callable[..., Watched]) -> Callable[..., Watched]:
    """Makes a watcher that counts evidence, and has looked at all mailboxes."""

    def make(**settings: object) -> Watched:
        one = watch(**({"answered_is_ham": True, "flagged_is_ham": True} | settings))
        one.rest()
        return one

    return make
