"""Small pictures for RESULTS.md, as SVG: readable on light and dark pages, a few kB, the same bytes
for the same numbers.

Values in, text out: it never reads a score and never writes a file. (`spamguard.engine.evaluate`
draws a run in detail, as PNG.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 14, 44  # the margin on the right is for the names of lines
COLOURS = ("#c0392b", "#2980b9", "#b9770e", "#16a085", "#8e44ad", "#7f8c8d", "#27ae60", "#d35400")
TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_STYLE = """<style>text{font:12px sans-serif;fill:#333}.g{stroke:#8886;stroke-width:.7}
.d{stroke:#888;stroke-dasharray:3 3}
@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>"""

Points = Sequence[tuple[float, float]]


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
    drawn = [
        _grid("probability of spam, as judged", "share that was spam"),
        f'<path class="d" d="M{_x(0.0)} {_y(0.0)}L{_x(1.0)} {_y(1.0)}"/>',
    ]
    for place, (name, bins) in enumerate(named.items()):
        colour = COLOURS[place]
        for bucket in bins:
            drawn.append(
                f'<path stroke="{colour}" d="M{_x(bucket.predicted)} '
                f'{_y(bucket.low)}V{_y(bucket.high)}"/>'
            )
            drawn.append(
                f'<circle cx="{_x(bucket.predicted)}" cy="{_y(bucket.observed)}" r="3.5" '
                f'fill="{colour}"/>'
            )
            drawn.append(
                _text(
                    _x(bucket.predicted) + 5,
                    _y(bucket.observed) + (13 if place else -5),
                    str(bucket.messages),
                    "start",
                )
            )
        drawn.append(_line([(bucket.predicted, bucket.observed) for bucket in bins], colour, 1.4))
        drawn.append(
            _text(
                WIDTH - RIGHT + 8, TOP + 16 + 18 * place, name, "start", f' style="fill:{colour}"'
            )
        )
    return _whole(drawn)


def _x(value: float) -> float:
    """Pixels of a probability, from left to right."""
    return round(LEFT + (WIDTH - RIGHT - LEFT) * value, 1)


def _y(value: float) -> float:
    """Pixels of a share, from below."""
    return round(HEIGHT - BOTTOM + (TOP - HEIGHT + BOTTOM) * value, 1)


def _grid(x_name: str, y_name: str) -> str:
    parts = []
    for value in TICKS:
        parts.append(
            f'<path class="g" d="M{_x(value)} {HEIGHT - BOTTOM}V{TOP}"/>'
            + _text(_x(value), HEIGHT - BOTTOM + 16, f"{value:g}", "middle")
        )
    for value in TICKS:
        parts.append(
            f'<path class="g" d="M{LEFT} {_y(value)}H{WIDTH - RIGHT}"/>'
            + _text(LEFT - 6, _y(value) + 4, f"{value:g}", "end")
        )
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_name, "middle"))
    turned = f' transform="translate(13 {(HEIGHT - BOTTOM + TOP) / 2}) rotate(-90)"'
    parts.append(_text(0, 0, y_name, "middle", turned))
    return "".join(parts)


def _line(points: Points, colour: str, width: float) -> str:
    path = "L".join(f"{_x(x)} {_y(y)}" for x, y in points)
    return f'<path fill="none" stroke="{colour}" stroke-width="{width}" d="M{path}"/>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _whole(drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">{_STYLE}\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
