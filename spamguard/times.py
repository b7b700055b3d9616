"""Times and durations: how people and programs write them, and how they are read.

Times are seconds since 1970. A time without a date is shown as the nearest that has one. What all
doors read alike is `parse_time`: the commands' --since, the page's search and the API differ in the
zone of a time that names none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

# ---- times

MAX_TIME = 253_402_214_400
"""The last day of the year 9999: no later time has a date that could be shown."""
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def utc_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(seconds, 0), MAX_TIME), UTC)


def rfc3339(seconds: float) -> str:
    """The time for programs.

    >>> rfc3339(1_790_000_000)
    '2026-09-21T14:13:20+00:00'
    """
    return utc_datetime(seconds).isoformat(timespec="seconds")


def local_time(seconds: float, *, exact: bool = False) -> str:
    """The time for people here, `2026-11-17 08:00`, or with seconds too."""
    time_format = "%Y-%m-%d %H:%M:%S" if exact else "%Y-%m-%d %H:%M"
    return utc_datetime(seconds).astimezone().strftime(time_format)


def parse_time(text: str, now: datetime, *, is_end: bool = False) -> float:
    """The time that a text names; never 0, which means none.

    `2h` is so long ago; a day is a date, a weekday (the last one, maybe today), today or yesterday;
    a time is ISO 8601. ValueError.

    Parameters
    ----------
    now
        Its zone is that of texts that name none; without one it is local.
    is_end
        A day means its end. Otherwise it means its beginning.

    >>> parse_time("2026-11-17T01:00+01:00", datetime.now())
    1794873600.0
    """
    word, today = text.strip().lower(), datetime(now.year, now.month, now.day, tzinfo=now.tzinfo)
    try:
        if _DURATION.fullmatch(word):
            return max(1.0, now.timestamp() - parse_duration(word))
        if word in _WEEKDAYS:
            moment = today - timedelta((now.weekday() - _WEEKDAYS.index(word)) % 7)
        elif word in ("today", "yesterday"):
            moment = today - timedelta(word == "yesterday")
        else:
            moment = datetime.fromisoformat(word.upper())
        is_day = len(word) <= len("2026-11-17")
        moment = moment.replace(tzinfo=moment.tzinfo or now.tzinfo) + timedelta(is_end and is_day)
        return max(1.0, moment.timestamp())
    except OverflowError as error:
        raise ValueError(f"{text!r} is no time") from error


# ---- durations

_DURATION = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,6})?) ?([smhdw])", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(text: str) -> float:
    """Seconds of a duration. ValueError.

    >>> parse_duration("1.5h")
    5400.0
    """
    if match := _DURATION.fullmatch(text):
        return float(match[1]) * _SECONDS[match[2].lower()]
    raise ValueError(f"{text!r} is no duration")


def format_duration(seconds: float) -> str:
    """A duration as `parse_duration` reads it, in the largest unit that gives a whole number.

    >>> format_duration(1800)
    '30m'
    """
    for unit in "dhm":
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def duration_text(seconds: float) -> str:
    """For people: `40 s`, `3 min`, `5 h 10 min`, `12 d 3 h`."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 1:
        return f"{max(0, int(seconds))} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
