"""Small pictures for RESULTS.md, as SVG: readable on light and dark pages, a few kB, the same bytes
for the same numbers.

Values in, text out: it never reads a score and never writes a file. (`spamguard.engine.evaluate`
draws a run in detail, as PNG.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 14, 44  # the margin on the right is for the names of lines
COLOURS = ("#c0392b", "#2980b9", "#b9770e", "#16a085", "#8e44ad", "#7f8c8d", "#27ae60", "#d35400")
_STYLE = """<style>text{font:12px sans-serif;fill:#333}.g{stroke:#8886;stroke-width:.7}
.d{stroke:#888;stroke-dasharray:3 3}
@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axes:
    """Names of x and y, and whether they are logarithmic; then values at or below `least` are drawn
    at `least`.
    """

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    least: float = 0.001


@dataclass(frozen=True, slots=True)
class _Scale:
    """One axis in pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        place = [
            math.log(each) if self.log else each
            for each in (max(value, self.low), self.low, self.high)
        ]
        return round(
            self.start + (self.end - self.start) * (place[0] - place[1]) / (place[2] - place[1]), 1
        )

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            return [
                n * 10.0**power
                for power in decades
                for n in (1, 2, 5)
                if self.low <= n * 10.0**power <= self.high * 1.001
            ]
        step = 10.0 ** math.floor(math.log10(self.high - self.low))
        step = next(
            step * part
            for part in (0.1, 0.2, 0.25, 0.5, 1)
            if (self.high - self.low) / (step * part) <= 7
        )
        first = math.ceil(self.low / step)
        return [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def lines(
    axes: Axes, named: Mapping[str, Points], *, marks: Mapping[float, str] | None = None
) -> str:
    """A line for each name; the first is drawn thicker. marks: words at places of x."""
    scales = _scales(axes, [point for points in named.values() for point in points])
    drawn = [_grid(axes, *scales)]
    drawn += [_mark(scales, x, text) for x, text in (marks or {}).items()]
    ends = _apart([scales[1].at(points[-1][1]) for points in named.values()])
    for place, (name, points) in reversed(list(enumerate(named.items()))):
        drawn.append(
            _line(scales, points, COLOURS[place % len(COLOURS)], 2.6 if place == 0 else 1.4)
        )
        drawn.append(
            _text(
                WIDTH - RIGHT + 8,
                ends[place] + 4,
                name,
                "start",
                f' style="fill:{COLOURS[place % len(COLOURS)]}"',
            )
        )
    return _whole(drawn)


@dataclass(frozen=True, slots=True)
class Bin:
    """Messages of about the same predicted chance. observed: the share that was spam, with the
    bounds of its interval.
    """

    predicted: float
    observed: float
    low: float
    high: float
    messages: int


def reliability(named: Mapping[str, Sequence[Bin]]) -> str:
    """The share of spam at each predicted p, with intervals and numbers of messages, beside the
    diagonal.
    """
    axes = Axes("probability of spam, as judged", "share that was spam")
    scales = _scales(axes, [(0.0, 0.0), (1.0, 1.0)])
    x, y = scales
    drawn = [_grid(axes, x, y), f'<path class="d" d="M{x.at(0)} {y.at(0)}L{x.at(1)} {y.at(1)}"/>']
    for place, (name, bins) in enumerate(named.items()):
        colour = COLOURS[place]
        for bucket in bins:
            drawn.append(
                f'<path stroke="{colour}" d="M{x.at(bucket.predicted)} '
                f'{y.at(bucket.low)}V{y.at(bucket.high)}"/>'
            )
            drawn.append(
                f'<circle cx="{x.at(bucket.predicted)}" cy="{y.at(bucket.observed)}" r="3.5" '
                f'fill="{colour}"/>'
            )
            drawn.append(
                _text(
                    x.at(bucket.predicted) + 5,
                    y.at(bucket.observed) + (13 if place else -5),
                    str(bucket.messages),
                    "start",
                )
            )
        drawn.append(
            _line(scales, [(bucket.predicted, bucket.observed) for bucket in bins], colour, 1.4)
        )
        drawn.append(
            _text(
                WIDTH - RIGHT + 8, TOP + 16 + 18 * place, name, "start", f' style="fill:{colour}"'
            )
        )
    return _whole(drawn)


def _scales(axes: Axes, points: Points) -> tuple[_Scale, _Scale]:
    spans = []
    for place, log in ((0, axes.log_x), (1, axes.log_y)):
        values = [max(point[place], axes.least) if log else point[place] for point in points]
        low, high = (
            (min(values), max(values)) if log or place == 0 else (min(0.0, *values), max(values))
        )
        spans.append((low, high if high > low else low + 1))
    return (
        _Scale(*spans[0], LEFT, WIDTH - RIGHT, axes.log_x),
        _Scale(*spans[1], HEIGHT - BOTTOM, TOP, axes.log_y),
    )


def _grid(axes: Axes, x: _Scale, y: _Scale) -> str:
    parts = []
    for value in x.ticks():
        parts.append(
            f'<path class="g" d="M{x.at(value)} {y.start}V{y.end}"/>'
            + _text(x.at(value), HEIGHT - BOTTOM + 16, f"{value:g}", "middle")
        )
    for value in y.ticks():
        parts.append(
            f'<path class="g" d="M{x.start} {y.at(value)}H{x.end}"/>'
            + _text(LEFT - 6, y.at(value) + 4, f"{value:g}", "end")
        )
    parts.append(_text((x.start + x.end) / 2, HEIGHT - 8, axes.x, "middle"))
    parts.append(
        _text(
            0,
            0,
            axes.y,
            "middle",
            f' transform="translate(13 {(y.start + y.end) / 2}) rotate(-90)"',
        )
    )
    return "".join(parts)


def _mark(scales: tuple[_Scale, _Scale], x: float, text: str) -> str:
    place = scales[0].at(x)
    return f'<path class="d" d="M{place} {scales[1].start}V{scales[1].end}"/>' + _text(
        place + 4, TOP + 10, text, "start"
    )


def _line(scales: tuple[_Scale, _Scale], points: Points, colour: str, width: float) -> str:
    path = "L".join(f"{scales[0].at(x)} {scales[1].at(y)}" for x, y in points)
    return f'<path fill="none" stroke="{colour}" stroke-width="{width}" d="M{path}"/>'


def _apart(places: Sequence[float], room: float = 14) -> list[float]:
    """The same heights, moved so that no two names touch, in their order."""
    found = list(places)
    order = sorted(range(len(found)), key=found.__getitem__)
    for above, below in pairwise(order):
        found[below] = max(found[below], found[above] + room)
    return found


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _whole(drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">{_STYLE}\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
