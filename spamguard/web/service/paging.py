"""Where the next page of a list begins when this one ended before all was looked through. Pure.

Must never tell when mail of others came, nor its id.
"""

from __future__ import annotations

from spamguard.ids import LAST, RANDOM_BYTES, new_id, time_of

AFTER_ALL = "~"
"""After every id."""
_STEP = 60  # seconds


def onward(seen: str, last: str) -> str:
    """An id: older messages have not been looked at, nor has any from that id on been found and not shown.

    seen: the id down to which everything was looked at, whoever's it is; "" for all. last: the oldest that was found, "" for none. The
    end of the minute of `seen`, where that is not beyond `last`; "" where nothing follows.
    """
    if not seen:
        return ""
    minute = min((int(time_of(seen)) // _STEP + 1) * _STEP, LAST)
    return min(filter(None, (new_id(minute, bytes(RANDOM_BYTES)), last)))
