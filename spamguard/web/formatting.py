"""How values look on a page: texts and numbers, bars and charts, explanations as tables.

Templates call all functions of this module, and escape everything by themselves, so nothing is
escaped here. Charts are geometry: numbers in, coordinates out; templates draw them as SVG. They are
written by hand because libraries for charts put scripts and styles into a page, which its policy
forbids.

A letter that acts on its surroundings must never get through: one that turns the direction of a
line, hides text, or breaks out of a field. A chart must never be the only way to read a number:
each has a table beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from math import floor, inf, log10
from typing import NamedTuple

from markupsafe import Markup

from spamguard.engine import explain_text
from spamguard.engine.policy import UNSURE
from spamguard.ledger.senders import label_class
from spamguard.records import Explanation
from spamguard.times import utc_datetime
from spamguard.web.models import ConfusionCell, Hour, JudgementDetails

# ---- texts and numbers

# Not printable for Unicode, but harmless: line ends, tabs, and the joiners that Persian, Hindi and
# emoji need.
_HARMLESS = frozenset("\n\t\u200c\u200d")
_ACTIONS = {
    "tag": "tagged",
    "quarantine": "held back",
    "redirect": "redirected",
    "defer": "deferred",
    "reject": "refused",
}
_TONES = {"unsure": "unsure", "not-scanned": "none"}
UNDECIDED = list(_TONES)
"""Labels that are not classes."""


def make_visible(value: object) -> object:
    """Make harmful letters of a text visible; return any other value as it is.

    Templates apply it to everything they put out.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        letter
        if letter.isprintable() or letter in _HARMLESS
        else " "
        if unicodedata.category(letter) == "Zs"
        else f"⟨U+{ord(letter):04X}⟩"
        for letter in value
    )


def label_text(label: str) -> str:
    """Name a verdict or class."""
    if side := label_class(label):
        return f"sender: {side}"
    return "not scanned" if label == "not-scanned" else label


def action_text(action: str) -> str:
    """Say what was done with a message (`config.options.Action`)."""
    return _ACTIONS.get(action, action)


def tone(label: str, unwanted: Mapping[str, bool]) -> str:
    """Return one of `TONES` for a label; each has a colour and a sign. unwanted: of each class."""
    return _TONES.get(label) or ("unwanted" if unwanted.get(label, label == "spam") else "wanted")


def number(value: int) -> str:
    """Format a number."""
    return f"{value:,}"


def plural(value: int, noun: str) -> str:
    """Return the noun in singular or plural."""
    return noun if value == 1 else f"{noun}s"


def count_noun(value: int, noun: str) -> str:
    """Format a number with its noun."""
    return f"{value:,} {plural(value, noun)}"


def percent(share: float) -> str:
    """Format a share; 0 % and 100 % only if it is exactly that."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share:.0%}".replace("%", " %") if share in (0, 1) else f"{share * 100:.1f} %"


def time_bound(seconds: float) -> str:
    """Format an upper bound of a short time."""
    if seconds < 1:
        return f"up to {seconds * 1000:g} ms"
    return f"up to {seconds:g} s" if seconds < inf else "longer than ten minutes"


def signed(part: float) -> str:
    """Format a part of a sum with its sign, a true minus sign."""
    return f"{part:+.3f}".replace("-", "\u2212")


def moment(seconds: float, *, exact: bool = False) -> Markup:
    """Format a time in UTC, which the script changes to the reader's time zone."""
    when = utc_datetime(seconds)
    text = when.strftime("%Y-%m-%d %H:%M:%S UTC" if exact else "%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}">{}</time>').format(when.strftime("%Y-%m-%dT%H:%M:%SZ"), text)


def day(seconds: float) -> str:
    """Format the day of a time, in UTC."""
    return utc_datetime(seconds).strftime("%Y-%m-%d")


def clock(seconds: float, span: float) -> str:
    """Format a label of an axis of time, in UTC: hour or day, depending on the span."""
    return utc_datetime(seconds).strftime("%H:%M" if span < 2 * 86400 else "%d %b")


# ---- charts

WIDTH, HEIGHT = 420, 180
"""Of every chart, in its own units, about a pixel each."""
LEFT, RIGHT, TOP, BOTTOM = 52, 398, 10, 154
"""The area of the numbers; labels of the axes stand around it."""
TONES = ("wanted", "unsure", "unwanted", "none")
"""The parts of a bar, from bottom to top."""
_MAX_LABELS = 5  # on an axis of time
_MIN_COLUMNS = 6  # of a chart by the hour: fewer would be broad blocks


class Bar(NamedTuple):
    """A rectangle with a tone."""

    x: float
    y: float
    width: float
    height: float
    tone: str


class Tick(NamedTuple):
    """A place on an axis with its text. On an axis of time, the text may come from `seconds`."""

    at: float
    text: str = ""
    seconds: float = 0.0


class Chart(NamedTuple):
    """The ticks of both axes, and the bars."""

    across: Sequence[Tick]
    up: Sequence[Tick]
    marks: Sequence[Bar]


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


def part_bar(part: float, longest: float) -> Bar:
    """Draw a part of a sum to the left or right of the middle of a strip, 100 wide and 10 high."""
    length = 50 * min(1.0, abs(part) / longest) if longest else 0.0
    x, tone = (50.0, "unwanted") if part >= 0 else (50 - length, "wanted")
    return Bar(x, 1, max(length, 0.5), 8, tone)


def axis_top(maximum: float) -> int:
    """Return the lowest round and even number that is not below the maximum."""
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
                marks.append(Bar(x + step * 0.1, y, step * 0.8, height, tone))
                low += count
    unit = 24 if len(starts) > 48 else 1  # beyond two days, labels are days, so one for each day
    every = -(-len(starts) // (_MAX_LABELS * unit)) * unit or unit  # so that labels do not touch
    places = range(every // 2, len(starts), every)
    across = [Tick(LEFT + (at + 0.5) * step, seconds=starts[at]) for at in places]
    up = [Tick(_y_position(count / top), f"{count:,}") for count in (0, top // 2, top)]
    return Chart(across, up, marks)


def _y_position(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


# ---- mistakes


class Mistakes(NamedTuple):
    """How the verdicts compare with what people said. rows: wrong verdicts first."""

    spoken: int
    wrong: int
    unsure: int
    rows: list[ConfusionCell]


def count_mistakes(cells: Sequence[ConfusionCell]) -> Mistakes:
    """Count wrong and unsure verdicts among the messages that people have spoken about."""
    rows = sorted(
        cells, key=lambda row: (row.said == row.taught, row.said in UNDECIDED, -row.messages)
    )
    return Mistakes(
        spoken=sum(row.messages for row in rows),
        wrong=sum(row.messages for row in rows if row.said not in (*UNDECIDED, row.taught)),
        unsure=sum(row.messages for row in rows if row.said == UNSURE),
        rows=rows,
    )


# ---- explanations

_PAGE_FEATURES = 100  # on every page of features but the first
_WORD_MARK = "\x00"  # on both sides of a stranger's word in a sentence, which is printable


class ExplanationRow(NamedTuple):
    """One part of the log-odds, rounded so that all parts add up.

    kind: a key of `explain_text.KINDS`, or "". counts: as of `ExplainedFeature`. then: what the
    word added when the message passed; None if it was not among the strongest words. is_sum: it
    stands for several features, so that its bar would dwarf all others and is None.
    """

    name: str
    part: float
    kind: str = ""
    remark: str = ""
    counts: Mapping[str, int] | None = None
    then: float | None = None
    is_sum: bool = False
    bar: Bar | None = None


class ExplanationView(NamedTuple):
    """An explanation as a sentence and tables, each of which sums to the log-odds.

    sentence: every second part is a word of the message. question: of what it gives the log-odds.
    features: one page of them, strongest first, and a row for those on other pages.
    """

    why: Explanation
    sentence: Sequence[str]
    question: str
    groups: Sequence[ExplanationRow]
    features: Sequence[ExplanationRow]
    page: int
    pages: int


def build_explanation(
    why: Explanation, then: JudgementDetails | None, page: int = 1
) -> ExplanationView:
    """Arrange an explanation in tables.

    then: the verdict when the message passed. page: of the features. What the first page leaves out
    holds a third of the log-odds at most.
    """
    features = explain_text.list_features(why)
    groups = explain_text.sum_groups(features)
    # What rounds to nothing is on no page.
    listed = [feature for feature in features if round(feature.part * explain_text.STEPS_PER_NAT)]
    first = explain_text.count_first([feature.part for feature in features], why.log_odds)
    first = min(first, len(listed))
    pages = 1 + -(-(len(listed) - first) // _PAGE_FEATURES)
    page = min(max(page, 1), pages)
    start = first + (page - 2) * _PAGE_FEATURES
    on_page = listed[start : start + _PAGE_FEATURES] if page > 1 else listed[:first]
    before = {word.text: word.part for word in then.words} if then else {}
    rows = [
        ExplanationRow(
            feature.name,
            feature.part,
            feature.kind,
            count_noun(feature.tokens, "feature") if feature.tokens > 1 else "",
            feature.counts,
            before.get(feature.text) if feature.text else None,
            is_sum=feature.tokens > 1,
        )
        for feature in on_page
    ]
    rest = ExplanationRow(
        "all other features",
        why.log_odds - sum(feature.part for feature in on_page),
        remark=count_noun(len(features) - len(on_page), "feature"),
        is_sum=True,
    )
    return ExplanationView(
        why,
        sentence=explain_text.describe_verdict(
            why, features, label_text, f"{_WORD_MARK}{{}}{_WORD_MARK}".format
        ).split(_WORD_MARK),
        question=explain_text.describe_odds(why, label_text),
        groups=_make_rows(
            [
                ExplanationRow(group.title, group.part, remark=f"{group.features:,}")
                for group in groups
            ],
            why.log_odds,
        ),
        features=_make_rows([*rows, rest], why.log_odds),
        page=page,
        pages=pages,
    )


def _make_rows(rows: Sequence[ExplanationRow], total: float) -> list[ExplanationRow]:
    """Round the parts so that they add up, and draw bars; rows that round to nothing go."""
    steps = explain_text.round_parts([row.part for row in rows], total)
    rounded = [
        row._replace(part=step / explain_text.STEPS_PER_NAT)
        for row, step in zip(rows, steps, strict=True)
    ]
    longest = max((abs(row.part) for row in rounded if not row.is_sum), default=0.0)
    return [
        row._replace(bar=None if row.is_sum else part_bar(row.part, longest))
        for row in rounded
        if row.part
    ]
