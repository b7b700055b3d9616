"""Geometry of the charts: numbers in, coordinates out. Templates draw them as SVG.

A chart must never be the only way to read a number: each has a table beside it.

It is written by hand because libraries for charts put scripts and styles into a page, which its
policy forbids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10, sqrt

from spamguard.web.models import Bin, Growth, Hour
from spamguard.web.pages import filters

WIDTH, HEIGHT = 420, 180
"""Of every chart, in its own units, about a pixel each."""
LEFT, RIGHT, TOP, BOTTOM = 44, 398, 10, 154
"""The area of the numbers; labels of the axes stand around it."""
TONES = ("wanted", "unsure", "unwanted", "none")
"""The parts of a bar, from bottom to top."""
_MAX_LABELS = 5  # on an axis of time
_MIN_COLUMNS = 6  # of a chart by the hour: fewer would be broad blocks
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle with a tone."""

    x: float
    y: float
    width: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis with its text. On an axis of time, the text may come from `seconds`."""

    at: float
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """The ticks of both axes, and what is drawn.

    line: points of a polyline as in SVG. dots: coordinates and radius.
    """

    across: Sequence[Tick]
    up: Sequence[Tick]
    marks: Sequence[Mark] = ()
    line: str = ""
    dots: Sequence[tuple[float, float, float]] = ()


def hours_with_data(hours: Sequence[Hour]) -> Sequence[Hour]:
    """Leave out the hours before the first message or lesson, so that a new page is no blank area.

    At least the last `_MIN_COLUMNS` stay, and three days where there is more than one, so that no
    label stands there twice; or all hours if none has anything.
    """
    first = next(
        (at for at, hour in enumerate(hours) if hour.lessons or any(hour.mail.values())), 0
    )
    number = max(len(hours) - first, _MIN_COLUMNS)
    return hours[-72:] if 24 < number < 72 else hours[-number:]


def mail_chart(hours: Sequence[Hour], tones: Mapping[str, str]) -> Chart:
    """Draw messages by hour. tones: of each label."""
    columns = []
    for hour in hours:
        column = dict.fromkeys(TONES, 0)
        for label, count in hour.mail.items():
            column[tones.get(label, "none")] += count
        columns.append(column)
    return _bar_chart([hour.start for hour in hours], columns)


def lessons_chart(hours: Sequence[Hour]) -> Chart:
    """Draw lessons by hour."""
    columns = [
        {"wanted": max(0, hour.lessons - hour.corrections), "unwanted": hour.corrections}
        for hour in hours
    ]
    return _bar_chart([hour.start for hour in hours], columns)


def growth_chart(points: Sequence[Growth]) -> Chart:
    """Draw the total of lessons by day. points: oldest first; fewer than two make no line."""
    if len(points) < 2:
        return Chart((), ())
    first, last = points[0].day, points[-1].day
    top = axis_top(max(point.lessons for point in points))
    line = " ".join(
        f"{_x_position((point.day - first) / ((last - first) or 1)):.1f},"
        f"{_y_position(point.lessons / top):.1f}"
        for point in points
    )
    days = round((last - first) / _DAY_SECONDS)
    span = max(last - first, 3 * _DAY_SECONDS)  # always shows days, not hours
    across = [
        Tick(_x_position(day / (days or 1)), filters.clock(first + day * _DAY_SECONDS, span))
        for day in _spread_labels(days + 1)
    ]
    return Chart(across, _count_ticks(top), line=line)


def calibration_chart(bins: Sequence[Bin]) -> Chart:
    """Draw the true share of unwanted mail over the predicted one: best on the diagonal.

    The area of a dot is in proportion to its messages.
    """
    most = max((bin_.messages for bin_ in bins), default=0)
    dots = [
        (
            _x_position(bin_.predicted),
            _y_position(bin_.unwanted),
            max(2.0, 7.0 * sqrt(bin_.messages / most)),
        )
        for bin_ in bins
        if bin_.messages
    ]
    quarters = [step / 4 for step in range(5)]
    across = [Tick(_x_position(share), f"{share:.0%}") for share in quarters]
    up = [Tick(_y_position(share), f"{share:.0%}") for share in quarters]
    return Chart(across, up, dots=dots)


def part_bar(part: float, longest: float) -> Mark:
    """Draw a part of a sum to the left or right of the middle of a strip, 100 wide and 10 high."""
    length = 50 * min(1.0, abs(part) / longest) if longest else 0.0
    x, tone = (50.0, "unwanted") if part >= 0 else (50 - length, "wanted")
    return Mark(x, 1, max(length, 0.5), 8, tone)


def axis_top(maximum: float) -> int:
    """Return the lowest round and even number that is not below the maximum.

    >>> axis_top(7), axis_top(130)
    (8, 200)
    """
    if maximum <= 2:
        return 2
    power = int(10 ** floor(log10(maximum)))
    multiples = (step * power for step in (1, 2, 4, 6, 8, 10, 20))
    return next(top for top in multiples if top >= maximum and top % 2 == 0)


def _bar_chart(starts: Sequence[float], columns: Sequence[Mapping[str, int]]) -> Chart:
    """Draw a stacked bar for each hour."""
    top = axis_top(max((sum(column.values()) for column in columns), default=0))
    step = (RIGHT - LEFT) / max(1, len(starts))
    marks = []
    for number, column in enumerate(columns):
        x, low = LEFT + number * step, 0
        for tone in TONES:
            if count := column.get(tone, 0):
                y = _y_position((low + count) / top)
                height = _y_position(low / top) - y
                marks.append(Mark(x + step * 0.1, y, step * 0.8, height, tone))
                low += count
    unit = 24 if len(starts) > 48 else 1  # beyond two days, labels are days, so one for each day
    labels = _spread_labels(len(starts), unit)
    across = [Tick(LEFT + (at + 0.5) * step, seconds=starts[at]) for at in labels]
    return Chart(across, _count_ticks(top), marks)


def _count_ticks(top: int) -> list[Tick]:
    numbers = (0, top // 2, top)
    return [Tick(_y_position(number / top), filters.brief(number)) for number in numbers]


def _spread_labels(count: int, unit: int = 1) -> list[int]:
    """Choose up to `_MAX_LABELS` places, whole units apart, so that labels do not touch."""
    every = -(-count // (_MAX_LABELS * unit)) * unit or unit
    return list(range(every // 2, count, every))


def _x_position(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _y_position(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)
