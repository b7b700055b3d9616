"""What the API tells otherwise than the service does, or by itself; the commands' --json has some of it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spamguard import explained
from spamguard.history import Row
from spamguard.records import Explanation, Verdict, Word
from spamguard.web.api.schema import told
from spamguard.web.service.values import Counted, Known, Moment, Outcome, Receipt, WordPart

WORDS = 30  # of an explanation, each way


@dataclass(frozen=True, slots=True)
class Share:
    """score: an expert's log-odds; share: what it adds to the sum."""

    score: float
    share: float


@dataclass(frozen=True, slots=True)
class Clue:
    """messages: taught ones that have the word, by class; of others than operators empty where they are few."""

    text: str
    part: float
    messages: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Explained(Verdict):
    """prior and shares of the experts sum to `sum`; so do words, other_words, traits, numbers, biases and prior. flip: how many of the
    strongest words would have to go for another label, null: all together do not do it, or too little has been taught for any."""

    favoured: str
    against: str
    sum: float
    prior: float
    experts: Mapping[str, Share]
    words: Sequence[Clue]
    other_words: float
    traits: Mapping[str, float]
    numbers: Mapping[str, float]
    biases: float
    to_threshold: float
    flip: int | None


@dataclass(frozen=True, slots=True)
class WhyTold:
    """then: what was said when the message passed, null for one that was handed over. now: what would be said now."""

    then: Known | None
    now: Explained


@dataclass(frozen=True, slots=True)
class Undone:
    """taken_back: votes. dry_run: they still stand."""

    user: str
    since: Moment
    dry_run: bool
    taken_back: int
    receipts: Sequence[Receipt]


@dataclass(frozen=True, slots=True)
class Deleted:
    """It is gone."""

    id: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class Words:
    """As all the tokens that the word may become."""

    words: Sequence[Counted]


@dataclass(frozen=True, slots=True)
class Classes:
    """What mail may be taught as, and whether that is unwanted."""

    classes: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Health:
    """wrong: a line for each thing, for operators."""

    alive: bool
    wrong: Sequence[str]


def explained_by(why: Explanation, words: int = WORDS) -> Explained:
    """Parts that sum to the score. words: so many each way."""
    shown, other = explained.strongest(why, words)
    return Explained(
        why.verdict.label,
        why.verdict.probability,
        why.verdict.log_odds,
        why.verdict.probabilities,
        favoured=why.favoured,
        against=why.against,
        sum=why.log_odds,
        prior=why.prior,
        experts={name: Share(why.scores[name], share) for name, share in why.shares.items()},
        words=[Clue(clue.text, clue.part, clue.counts) for clue in shown],
        other_words=other,
        traits=why.traits,
        numbers=why.numbers,
        biases=why.biases,
        to_threshold=why.to_threshold,
        flip=why.flip,
    )


# ---- for the commands


def explanation(why: Explanation, words: int) -> dict[str, Any]:
    """As `spamguard explain --json` tells it."""
    return dict(told(Explained, explained_by(why, words)))


def verdict(found: Verdict) -> dict[str, Any]:
    """Of a verdict."""
    return dict(told(Verdict, found))


def passed(row: Row) -> dict[str, Any]:
    """Of what became of a message."""
    return dict(told(Outcome, row))


def told_words(found: Sequence[Word]) -> list[dict[str, Any]]:
    """Of words that weighed in a verdict."""
    return [told(WordPart, word) for word in found]
