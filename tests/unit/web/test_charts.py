"""The positions of the marks of formatting."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.web import formatting
from spamguard.web.models import Bin, Growth, Hour

TONES = {"ham": "wanted", "spam": "unwanted", "unsure": "unsure"}


@given(st.floats(0, 1e12))
def test_an_axis_ends_above_everything(most: float) -> None:
    end = formatting.axis_top(most)
    assert end >= most
    assert end % 2 == 0
    assert end <= max(2, 2.5 * most)


@given(
    st.lists(
        st.dictionaries(st.sampled_from([*TONES, "other"]), st.integers(0, 10**6)), max_size=200
    )
)
def test_bars_stay_within_and_are_as_high_as_their_number(mail: list[dict[str, int]]) -> None:
    hours = [Hour(1e9 + 3600 * number, one, 0, 0) for number, one in enumerate(mail)]
    drawn = formatting.mail_chart(hours, TONES)
    end = formatting.axis_top(max((sum(hour.values()) for hour in mail), default=0))
    area = sum(mark.height for mark in drawn.marks)
    assert area == pytest.approx(
        (formatting.BOTTOM - formatting.TOP) * sum(sum(hour.values()) for hour in mail) / end
    )
    for mark in drawn.marks:
        assert formatting.LEFT <= mark.x <= mark.x + mark.width <= formatting.RIGHT + 1e-6
        assert formatting.TOP - 1e-6 <= mark.y <= mark.y + mark.height <= formatting.BOTTOM + 1e-6
    assert len(drawn.across) <= 7


@pytest.mark.parametrize(
    ("hours", "days"), [(72, ["01 Jan", "02 Jan", "03 Jan"]), (168, ["02 Jan", "04 Jan", "06 Jan"])]
)
def test_no_day_stands_there_twice(hours: int, days: list[str]) -> None:
    across = formatting.mail_chart(
        [Hour(3600 * number, {"ham": 1}, 0, 0) for number in range(hours)], TONES
    ).across
    assert [
        formatting.clock(tick.seconds, across[-1].seconds - across[0].seconds) for tick in across
    ] == days


@pytest.mark.parametrize(
    ("hours", "first", "number"),
    [(24, 10, 14), (24, 0, 24), (24, 23, 6), (24, None, 24), (168, 100, 72), (168, 150, 18)],
)
def test_charts_begin_where_data_does(hours: int, first: int | None, number: int) -> None:
    for mail, lessons in (({"ham": 1}, 0), ({"ham": 0}, 1)):
        all_hours = [
            Hour(3600 * at, *((mail, lessons) if at == first else ({"ham": 0}, 0)), 0)
            for at in range(hours)
        ]
        assert list(formatting.hours_with_data(all_hours)) == all_hours[hours - number :]
    assert list(formatting.hours_with_data([])) == []


@given(st.integers(1, 168))
def test_no_label_stands_there_twice(number: int) -> None:
    """Whatever hour the data begin in."""
    hours = [Hour(3600 * at, {"ham": int(at >= 168 - number)}, 0, 0) for at in range(168)]
    across = formatting.mail_chart(formatting.hours_with_data(hours), TONES).across
    span = across[-1].seconds - across[0].seconds
    labels = [formatting.clock(tick.seconds, span) for tick in across]
    assert len(set(labels)) == len(labels) >= 2


def test_corrections_are_part_of_lessons() -> None:
    drawn = formatting.lessons_chart([Hour(0, {}, 4, 1)])
    assert [(mark.tone, round(mark.height)) for mark in drawn.marks] == [
        ("wanted", 108),
        ("unwanted", 36),
    ]


def test_growth_takes_two_days() -> None:
    assert not formatting.growth_chart([]).line
    assert not formatting.growth_chart([Growth(0, 1)]).line
    assert (
        formatting.growth_chart([Growth(0, 0), Growth(86400, 10)]).line
        == f"{formatting.LEFT}.0,{formatting.BOTTOM}.0 {formatting.RIGHT}.0,{formatting.TOP}.0"
    )
    assert formatting.growth_chart([Growth(5, 1), Growth(5, 2)]).line  # no width, no fault


def test_days_are_spaced_by_their_dates() -> None:
    """Also where all mail of some years was taught at once, and then some of it daily."""
    day = 86_400.0
    drawn = formatting.growth_chart(
        [Growth(0.0, 900), *(Growth(day * (700 + number), 900 + number) for number in range(30))]
    )
    places = [tick.at for tick in drawn.across]
    assert len(places) >= 4
    assert min(after - before for before, after in pairwise(places)) > 50
    assert drawn.across[0].text == "1970-03"
    assert [
        tick.text for tick in formatting.growth_chart([Growth(0.0, 1), Growth(day, 2)]).across
    ] == [
        "01 Jan",
        "02 Jan",
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (5000, "5,000"), (10_000, "10k"), (300_000, "300k"), (4 * 10**6, "4M")],
)
def test_labels_of_an_axis_are_short(number: int, text: str) -> None:
    """There is room for 33 units; longer labels are cut off at the left."""
    assert formatting.brief(number) == text


def test_calibration_leaves_out_messages_without_votes() -> None:
    drawn = formatting.calibration_chart([Bin(0, 0.5, 0, 0, 0), Bin(0.5, 1, 4, 0.75, 0.5)])
    assert [(x, y) for x, y, _ in drawn.dots] == [
        (
            formatting.LEFT + 0.75 * (formatting.RIGHT - formatting.LEFT),
            (formatting.TOP + formatting.BOTTOM) / 2,
        )
    ]
    assert formatting.calibration_chart([]).dots == []


def test_a_bucket_of_few_messages_is_a_small_dot() -> None:
    """No line leads from dot to dot, because values between them are unknown."""
    drawn = formatting.calibration_chart(
        [Bin(0, 0.1, 400, 0.01, 0), Bin(0.4, 0.5, 100, 0.45, 0.5), Bin(0.9, 1, 1, 0.95, 0)]
    )
    large, middle, small = (radius for _, _, radius in drawn.dots)
    assert (middle / large) ** 2 == 100 / 400
    assert small >= 2
    assert drawn.line == ""


def test_bars_go_each_way() -> None:
    assert formatting.part_bar(2, 4) == formatting.Mark(50, 1, 25, 8, "unwanted")
    assert formatting.part_bar(-4, 4) == formatting.Mark(0, 1, 50, 8, "wanted")
    assert formatting.part_bar(0, 0).width == 0.5
