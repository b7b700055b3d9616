"""Times and durations, as people and programs write them at every door."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spamguard.times import format_duration, parse_duration, parse_time, rfc3339

NOW = datetime(2026, 11, 19, 10, 30)  # a Thursday, local time


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90m", datetime(2026, 11, 19, 9)),
        ("2d", datetime(2026, 11, 17, 10, 30)),
        ("1w", datetime(2026, 11, 12, 10, 30)),
        ("today", datetime(2026, 11, 19)),
        ("yesterday", datetime(2026, 11, 18)),
        ("Tuesday", datetime(2026, 11, 17)),
        ("thursday", datetime(2026, 11, 19)),
        ("friday", datetime(2026, 11, 13)),
        ("2026-11-17", datetime(2026, 11, 17)),
        ("2026-11-17 08:00", datetime(2026, 11, 17, 8)),
        ("2026-11-17T08:00:30", datetime(2026, 11, 17, 8, 0, 30)),
    ],
)
@pytest.mark.parametrize("zone", [None, UTC])
def test_times(text, meant, zone):
    meant = meant.replace(tzinfo=zone)
    assert parse_time(text, NOW.replace(tzinfo=zone)) == meant.timestamp()


def test_a_time_with_a_zone_is_the_same_everywhere():
    for now in (NOW, NOW.replace(tzinfo=UTC)):
        assert rfc3339(parse_time("2026-11-17T08:00:00Z", now)) == "2026-11-17T08:00:00+00:00"


def test_the_end_of_a_day_is_the_beginning_of_the_next():
    now = NOW.replace(tzinfo=UTC)
    assert parse_time("tuesday", now, is_end=True) == parse_time("2026-11-18", now)
    assert parse_time("2026-11-17 08:00", now, is_end=True) == parse_time("2026-11-17 08:00", now)


@pytest.mark.parametrize("text", ["99999w", "0001-01-01"])
def test_what_is_too_long_ago_is_a_time_before_all_mail(text):
    """0 would mean none: `--until` long ago must not mean everything."""
    assert parse_time(text, NOW.replace(tzinfo=UTC)) == 1


@pytest.mark.parametrize(
    "text", ["", "soon", "2x", "d", "2026-13-01", "2026-11-17 25:00", "١d", "1e3s"]
)
def test_texts_that_are_no_times(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_time(text, NOW)


@given(st.floats(1e-3, 366 * 86400.0))
@example(86400.0)
def test_durations_there_and_back(value):
    assert parse_duration(format_duration(value)) == pytest.approx(value, rel=1e-5)
