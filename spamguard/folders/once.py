"""Saying what is wrong with people's files once, and not at every look at them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spamguard.folders.contract import Mailbox, Place

DOUBT = "doubt"
"""What a `Matter` is that may be as it should be, so that no examination fails for it."""

_MOST = 10_000  # things remembered; beyond that some are told again

_log = logging.getLogger("spamguard.folders")


class Warned(NamedTuple):
    """What was said, and when, in seconds since 1970."""

    text: str
    since: float


@dataclass(frozen=True, slots=True)
class Matter:
    """What may be wrong with a mailbox, or with a folder. what: which trouble; empty: that it cannot be looked at.

    passing: nobody will say when it is over, as with a single file, so it is told for a day.
    """

    about: Mailbox | Place
    what: Hashable = ""
    passing: bool = False

    @property
    def mailbox(self) -> Mailbox:
        """Whose it is."""
        return self.about.mailbox if isinstance(self.about, Place) else self.about


class Once:
    """What was said already."""

    def __init__(self) -> None:
        self._told: dict[Hashable, Warned] = {}
        self.changes = 0  # of what stands, so far

    def warn(self, key: Hashable, text: str, *values: object) -> None:
        """Say it, unless it was said about this before and `over` has not been called since."""
        if key in self._told:
            return
        self.note(key, text, *values)
        _log.warning(text, *values)

    def note(self, key: Hashable, text: str, *values: object) -> None:
        """Let it stand, unless it does: somebody else says it."""
        if key in self._told:
            return
        if len(self._told) >= _MOST:
            self._told.pop(next(iter(self._told)))
        self._told[key] = Warned(text % values, time.time())
        self.changes += 1

    def over(self, key: Hashable) -> None:
        """It is well again: should it come back, that is news."""
        self.changes += self._told.pop(key, None) is not None

    def over_where(self, is_over: Callable[[Matter], bool]) -> None:
        """All of these are well again, or nobody's concern any more."""
        for key in [key for key in self._told if isinstance(key, Matter) and is_over(key)]:
            self.over(key)

    def standing(self) -> Mapping[Hashable, Warned]:
        """What is not over."""
        return self._told
