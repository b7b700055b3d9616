"""Times as people say them: `2d`, `tuesday`, `2026-11-17`, `2026-11-17 08:00`. In local time; the
clock is handed in.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from spamguard.errors import UsageError

_AGO = re.compile(r"([0-9]{1,5})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?")
_FORMS = "say it as 90m, 12h, 2d, 1w, today, yesterday, tuesday, 2026-11-17 or '2026-11-17 08:00'"


def parse_since(text: str, now: datetime) -> int:
    """The time a text means, seconds since 1970: of a day its beginning, of a weekday that of the
    last one, which may be today.

    now: local time, without a zone. UsageError: it means nothing, or a time to come.
    """
    found = _parse_time(text.strip().lower(), now)
    if found is None:
        raise UsageError(f"{text!r} is no time: {_FORMS}")
    if found > now:
        raise UsageError(f"{text!r} is still to come: {_FORMS}")
    return int(found.timestamp())


def _parse_time(text: str, now: datetime) -> datetime | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if ago := _AGO.fullmatch(text):
        return max(now - timedelta(**{_UNITS[ago[2]]: int(ago[1])}), datetime(1971, 1, 1))
    if text in _WEEKDAYS:
        return midnight - timedelta(days=(now.weekday() - _WEEKDAYS.index(text)) % 7)
    if text in ("today", "yesterday"):
        return midnight - timedelta(days=int(text == "yesterday"))
    return _parse_date(text) if _DATE.fullmatch(text.upper()) else None


def _parse_date(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return found if found.year > 1970 else None
