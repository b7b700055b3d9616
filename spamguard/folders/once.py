"""Saying what is wrong with people's files once, and not at every look at them."""

from __future__ import annotations

import logging
from collections.abc import Hashable

_MOST = 10_000  # things remembered; beyond that some are told again

_log = logging.getLogger("spamguard.folders")


class Once:
    """What was said already."""

    def __init__(self) -> None:
        self._told: dict[Hashable, None] = {}

    def warn(self, key: Hashable, text: str, *values: object) -> None:
        """Say it, unless it was said about this before and `over` has not been called since."""
        if key in self._told:
            return
        if len(self._told) >= _MOST:
            self._told.pop(next(iter(self._told)))
        self._told[key] = None
        _log.warning(text, *values)

    def over(self, key: Hashable) -> None:
        """It is well again: should it come back, that is news."""
        self._told.pop(key, None)
