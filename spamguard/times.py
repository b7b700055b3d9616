"""Points in time, seconds since 1970, as people and programs are told them. What has no date is told as the nearest that has one."""

from __future__ import annotations

from datetime import UTC, datetime

LATEST = 253_402_214_400
"""The last day of the year 9999: no later time has a date that could be shown."""


def utc(seconds: float) -> datetime:
    """In UTC."""
    return datetime.fromtimestamp(min(max(seconds, 0), LATEST), UTC)


def rfc3339(seconds: float) -> str:
    """For programs, `2026-11-17T07:00:00+00:00`."""
    return utc(seconds).isoformat(timespec="seconds")


def moment(seconds: float, *, exact: bool = False) -> str:
    """As people say it here, `2026-11-17 08:00`. exact: and the seconds."""
    return utc(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S" if exact else "%Y-%m-%d %H:%M")
