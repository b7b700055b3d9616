"""Points in time as people and programs are told them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spamguard.log import local_time, rfc3339, utc_datetime


@pytest.fixture
def east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC-14")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("east")
def test_people_are_told_their_own_time_and_programs_that_of_all() -> None:
    assert (local_time(1.9), local_time(1.9, exact=True)) == (
        "1970-01-01 14:00",
        "1970-01-01 14:00:01",
    )
    assert rfc3339(1.9) == "1970-01-01T00:00:01+00:00"


@pytest.mark.usefixtures("east")
@pytest.mark.parametrize("seconds", [-1e30, -1, 1e12, 10**30, float("inf")])
def test_what_has_no_date(seconds: float) -> None:
    year = 9999 if seconds > 0 else 1970
    assert utc_datetime(seconds).year == year
    assert local_time(seconds).startswith(str(year))
