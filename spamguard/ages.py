"""The time by which a database tells how old something is, before it removes it for that.

It is the system's clock, unless that has jumped forward by more than a day since the last look. Then it stays at the last time
that was believed, until the clock has gone on for a day from where it jumped to; a clock that is set right meanwhile has removed
nothing. The database keeps this, so that a restart changes nothing. After a pause of more than a day, things are removed a day later.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

_TABLE = "CREATE TABLE IF NOT EXISTS clock (believed REAL NOT NULL, doubted REAL NOT NULL)"
_DAY = 86_400.0
_NOTED_EVERY = 3600.0  # seconds: not each look is worth a page in the log


class _Clock(NamedTuple):
    """believed: the last time that was. doubted: the first time that was not, since then; 0: there is none."""

    believed: float
    doubted: float = 0.0


def believed(db: sqlite3.Connection, now: float) -> float:
    """The time to go by; call it within a transaction. now: of the system's clock, seconds since 1970."""
    db.execute(_TABLE)
    row = db.execute("SELECT believed, doubted FROM clock").fetchone()
    before = _Clock(*row) if row else _Clock(now)
    after = _next(before, now)
    if row is None:
        db.execute("INSERT INTO clock VALUES (?, ?)", after)
    elif after.doubted != before.doubted or abs(after.believed - before.believed) > _NOTED_EVERY:
        db.execute("UPDATE clock SET believed = ?, doubted = ?", after)
    return after.believed


def _next(clock: _Clock, now: float) -> _Clock:
    jumped = now > clock.believed + _DAY
    if not jumped or (clock.doubted and now >= clock.doubted + _DAY):
        return _Clock(now)
    return _Clock(clock.believed, min(clock.doubted or now, now))
