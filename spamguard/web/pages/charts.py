"""Where the marks of a chart stand. Pure: numbers in, places out; templates draw them, as SVG without any style of its own.

Never the only way to read a number: each chart has a table beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10, sqrt

from spamguard.web.pages import texts
from spamguard.web.service.values import Bin, Growth, Hour

WIDTH, HEIGHT = 420, 180
"""Of every chart, in its own units, which are about as wide as a pixel."""
LEFT, RIGHT, TOP, BOTTOM = 44, 398, 10, 154
"""Where the numbers are drawn; around it stands what explains the axes."""
TONES = ("wanted", "unsure", "unwanted", "none")
"""From the bottom of a bar to its top."""
_LABELS = 5  # on the axis of time, at most
_DAY = 86_400  # seconds


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle. tone: what it is of."""

    x: float
    y: float
    width: float
    height: float
    tone: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis and what stands there; on an axis of time its text is `seconds` since 1970."""

    at: float
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """marks: rectangles; line: points of a line, as SVG has them; dots: places, and how large. across, up: the axes."""

    across: Sequence[Tick]
    up: Sequence[Tick]
    marks: Sequence[Mark] = ()
    line: str = ""
    dots: Sequence[tuple[float, float, float]] = ()


def stacked(hours: Sequence[Hour], tones: Mapping[str, str]) -> Chart:
    """Mail per hour. tones: of each label."""
    columns = [_by_tone(hour.mail, tones) for hour in hours]
    return _bars([hour.start for hour in hours], columns)


def lessons(hours: Sequence[Hour]) -> Chart:
    """Lessons per hour, corrections at the bottom of each bar."""
    columns = [{"unwanted": hour.corrections, "wanted": max(0, hour.lessons - hour.corrections)} for hour in hours]
    return _bars([hour.start for hour in hours], columns)


def growth(points: Sequence[Growth]) -> Chart:
    """Lessons in all, by day. points: oldest first."""
    if len(points) < 2:
        return Chart((), ())
    first, last = points[0].day, points[-1].day
    most = top(max(one.lessons for one in points))
    places = [(_between((one.day - first) / ((last - first) or 1)), _height(one.lessons / most)) for one in points]
    return Chart(_days(first, last), _upwards(most), line=" ".join(f"{x:.1f},{y:.1f}" for x, y in places))


def calibration(bins: Sequence[Bin]) -> Chart:
    """What was predicted against what came true; the nearer to the diagonal, the better. Of few messages a dot is small: it says little."""
    most = max((one.messages for one in bins), default=0)
    dots = [(_between(one.predicted), _height(one.unwanted), _dot(one.messages / most)) for one in bins if one.messages]
    quarters = [step / 4 for step in range(5)]
    across = [Tick(_between(share), f"{share:.0%}") for share in quarters]
    up = [Tick(_height(share), f"{share:.0%}") for share in quarters]
    return Chart(across, up, dots=dots)


def bar(part: float, longest: float) -> Mark:
    """A part of a sum, to the left or right of the middle of a strip that is 100 wide and 10 high."""
    length = 50 * min(1.0, abs(part) / longest) if longest else 0.0
    return Mark(50.0 if part >= 0 else 50 - length, 1, max(length, 0.5), 8, "unwanted" if part >= 0 else "wanted")


def top(most: float) -> int:
    """A round number that nothing is above, divisible by two: where the axis ends."""
    if most <= 2:
        return 2
    power = int(10 ** floor(log10(most)))
    return next(step * power for step in (1, 2, 4, 6, 8, 10, 20) if step * power >= most and step * power % 2 == 0)


# ---- parts


def _by_tone(mail: Mapping[str, int], tones: Mapping[str, str]) -> dict[str, int]:
    found = dict.fromkeys(TONES, 0)
    for label, count in mail.items():
        found[tones.get(label, "none")] += count
    return found


def _bars(starts: Sequence[float], columns: Sequence[Mapping[str, int]]) -> Chart:
    most = top(max((sum(column.values()) for column in columns), default=0))
    step = (RIGHT - LEFT) / max(1, len(starts))
    marks = [mark for number, column in enumerate(columns) for mark in _column(LEFT + number * step, step, column, most)]
    chosen = _spread(len(starts), 24 if len(starts) > 48 else 1)  # what spans more than two days is told by the day, each once
    across = [Tick(LEFT + (at + 0.5) * step, seconds=starts[at]) for at in chosen]
    return Chart(across, _upwards(most), marks)


def _column(x: float, step: float, column: Mapping[str, int], most: int) -> list[Mark]:
    """One bar: its parts, each upon the last."""
    found, low = [], 0
    for tone, count in sorted(column.items(), key=lambda item: TONES.index(item[0])):
        if count:
            high = _height((low + count) / most)
            found.append(Mark(x + step * 0.1, high, step * 0.8, _height(low / most) - high, tone))
            low += count
    return found


def _days(first: float, last: float) -> list[Tick]:
    """On an axis of days, as far apart as they are in time."""
    days = round((last - first) / _DAY)
    span = max(last - first, 3 * _DAY)  # of one day there is nothing to tell by the hour
    return [Tick(_between(day / (days or 1)), texts.clock(first + day * _DAY, span)) for day in _spread(days + 1)]


def _upwards(most: int) -> list[Tick]:
    return [Tick(_height(number / most), texts.brief(number)) for number in (0, most // 2, most)]


def _spread(count: int, unit: int = 1) -> list[int]:
    """At most `_LABELS` of so many, evenly, whole units apart, so that their texts do not touch."""
    every = -(-count // (_LABELS * unit)) * unit or unit
    return list(range(every // 2, count, every))


def _between(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _dot(share: float) -> float:
    """The radius of one whose area is that share of the largest one's, or as small as can be seen."""
    return max(2.0, 7.0 * sqrt(share))


def _height(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)
