"""An explanation as rows of tables, with bars each way; what is shown adds up to the score. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spamguard.explained import OTHERS, STEPS, asked, flip, rounded, strongest
from spamguard.records import Explanation
from spamguard.web.pages import charts, texts
from spamguard.web.service.values import Known


@dataclass(frozen=True, slots=True)
class Row:
    """One part of the sum. part: in nats, rounded so that all add up. bar: None for what has none. then: what the word added when the
    message passed, None: it was not among the strongest."""

    name: str
    part: float
    bar: charts.Mark | None
    counts: Mapping[str, int]
    then: float | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """An explanation. words: strongest first; others: whether there are more that add anything. rest: everything else a message says.
    experts: the same sum by expert. asked: of what it is."""

    why: Explanation
    asked: str
    words: Sequence[Row]
    others: bool
    rest: Sequence[Row]
    experts: Sequence[Row]
    total: float
    flip: str


def told(why: Explanation, then: Known | None, words: int) -> Told:
    """words: how many each way."""
    shown, other = strongest(why, words)
    before = {word.text: word.part for word in then.words} if then else {}
    heads = [
        *((clue.text, clue.part, clue.counts, "") for clue in shown),
        (OTHERS, other, {}, f"{len(why.clues) - len(shown):,} of them"),
        *((name, part, {}, "trait") for name, part in _sorted(why.traits)),
        *((name, part, {}, "number") for name, part in _sorted(why.numbers)),
        ("biases of the experts", why.biases, {}, ""),
        ("prior", why.prior, {}, "before anything was read"),
    ]
    rows = _rows(heads, why.log_odds, before)
    experts = _rows([("prior", why.prior, {}, ""), *((name, part, {}, "") for name, part in _sorted(why.shares))], why.log_odds, {})
    of_words = [row for row in rows[: len(shown)] if row.part]
    others = [row for row in rows[len(shown) :] if row.part]
    return Told(
        why,
        asked(why, texts.named),
        of_words,
        bool(other),
        others,
        [row for row in experts if row.part],
        round(why.log_odds, 3),
        _sentence(why),
    )


def _rows(heads: Sequence[tuple[str, float, Mapping[str, int], str]], whole: float, before: Mapping[str, float]) -> list[Row]:
    steps = [step / STEPS for step in rounded([part for _, part, _, _ in heads], whole)]
    longest = max((abs(step) for step, head in zip(steps, heads, strict=True) if head[0] != OTHERS), default=0.0)
    return [
        Row(name, step, None if name == OTHERS else charts.bar(step, longest), counts, before.get(name), remark)
        for step, (name, _, counts, remark) in zip(steps, heads, strict=True)
    ]


def _sorted(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda item: -abs(item[1]))


def _sentence(why: Explanation) -> str:
    said = flip(why)
    return f"{said[0].upper()}{said[1:]}."
