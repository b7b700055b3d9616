"""Lists of mail, newest first, page by page: where a page begins, how long it is looked for, and where the next one begins.

Must never tell when mail of others came, nor its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from spamguard.errors import UsageError
from spamguard.ids import LAST, RANDOM_BYTES, is_id, new_id, time_of
from spamguard.web.service.values import MOST

AFTER_ALL = "~"
"""After every id."""
SECONDS = 2.0
"""For a page; what was found until then is one too."""
_STEP = 60  # seconds


class Listed(Protocol):
    """What a list is of."""

    @property
    def id(self) -> str:
        """Tells when it came, too."""


Thing = TypeVar("Thing", bound=Listed)


def beginning(before: str) -> str:
    """Where a page begins that is to have what is older than that id only, "" for all. UsageError: it is no id."""
    if before and not is_id(before):
        raise UsageError("before: that is no id of a message")
    return before or AFTER_ALL


def page(look: Callable[[str, int], tuple[Sequence[Thing], str]], start: str, limit: int) -> tuple[list[Thing], str]:
    """A page, and where the next one begins, "" when this is the last; not a full one when looking for more would take too long.

    look: of what is older than an id, at most so many that fit, and the id down to which everything was looked at; "" for all.
    """
    limit, deadline = max(1, min(limit, MOST)), time.monotonic() + SECONDS
    found: list[Thing] = []
    seen = start
    while True:
        some, seen = look(seen, limit - len(found))
        found += some
        following = onward(seen, found[-1].id if found else "")
        if len(found) >= limit or not following or (time.monotonic() >= deadline and following < start):
            return found, following


def onward(seen: str, last: str) -> str:
    """An id: older messages have not been looked at, nor has any from that id on been found and not shown.

    seen: the id down to which everything was looked at, whoever's it is; "" for all. last: the oldest that was found, "" for none. The
    end of the minute of `seen`, where that is not beyond `last`; "" where nothing follows.
    """
    if not seen:
        return ""
    minute = min((int(time_of(seen)) // _STEP + 1) * _STEP, LAST)
    return min(filter(None, (new_id(minute, bytes(RANDOM_BYTES)), last)))
