"""Saying what is wrong with people's files once, and not at every look at them."""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Mapping
from typing import NamedTuple

_MOST = 10_000  # things remembered; beyond that some are told again

_log = logging.getLogger("spamguard.folders")


class Warned(NamedTuple):
    """What was said, and when, in seconds since 1970."""

    text: str
    since: float


class Once:
    """What was said already."""

    def __init__(self) -> None:
        self._told: dict[Hashable, Warned] = {}

    def warn(self, key: Hashable, text: str, *values: object) -> None:
        """Say it, unless it was said about this before and `over` has not been called since."""
        if key in self._told:
            return
        if len(self._told) >= _MOST:
            self._told.pop(next(iter(self._told)))
        self._told[key] = Warned(text % values, time.time())
        _log.warning(text, *values)

    def over(self, key: Hashable) -> None:
        """It is well again: should it come back, that is news."""
        self._told.pop(key, None)

    def standing(self) -> Mapping[Hashable, Warned]:
        """What is not over."""
        return self._told
