"""What each expert makes of one message: counting experts by naive Bayes, logistic experts by their weights.

Every expert answers, for each class but the first, its log-odds against the first (ham), as a sum over the message's
features. Sums over many dependent words are too sure of themselves, so each is damped by the number of its features, clipped
and rounded to 1/256 before fusion sees it; an explanation scales the parts by the same factor. With more than two classes they answer
for unwanted mail against wanted as well, each side taken as a whole. When a message is judged neither one expert nor two may decide
that it is wanted: what they say for that is bounded more tightly, and by what a third one confirms.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from operator import getitem, mul
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamguard import kernel
from spamguard.bayes import formulas, logistic
from spamguard.bayes.sides import Sides, merged, sides_of
from spamguard.bayes.tables import SETS, TRAIT_VALUES, Evidence, Rows, Tables
from spamguard.records import TOKEN_SETS

Number = TypeVar("Number", int, float)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

EXPERTS = (*(f"multinomial {name}" for name in TOKEN_SETS), *(f"logistic {name}" for name in TOKEN_SETS), "categorical", "gaussian")
_OF_TOKENS = 2 * SETS  # the first ones; those of traits and numbers come last
_WORDS, _CLUES = TOKEN_SETS.index("words"), TOKEN_SETS.index("clues")
STEPS = 256  # steps per nat in which scores are kept
CLIP = 12.0  # nats
# How far a single expert may speak for a wanted class when a message is judged, and how much further than the third one the two that
# speak most for it: whoever fills spam with words of good mail has experts of words on their side and no others, and must not win by
# them alone. Fusion learns from scores without either (corpora/RESULTS.md, "Evasion and poison", "The floor", "What a third confirms").
# Both are as far again as everything is held back when there are few lessons, in the geometric mean: while one class alone is known,
# nobody imitates it, and degrees of likeness to it are all there is to tell mail apart.
FLOOR = 5.0  # nats, with many lessons
AHEAD = FLOOR / 2
_THIRD = 2  # counted from 0, of those that can confirm: grams are letters of the very words that fill a message
_CONFIRMING = [number for number, name in enumerate(EXPERTS[:_OF_TOKENS]) if not name.endswith(" grams")]
# Tuned online on two corpora: corpora/RESULTS.md, "First fusion".
PSEUDO_COUNT = 0.05  # of the multinomial, shared out among the classes as their features are
_PSEUDO_COUNT = np.array(PSEUDO_COUNT)  # without dimensions, which is faster than a scalar
TRAIT_ALPHA = 0.5
NUMBER_VALUES = 256  # numbers are 0 to 255
NUMBER_FLOOR = 16.0  # least variance of a number: half a doubling
EXACT = 2.0**32  # what single traits and numbers say is rounded to 2^-32, so that sums of them are exact in any order
WARM_UP = 2  # lessons of the rarer class at which half of full confidence is reached (corpora/RESULTS.md, "Few lessons")


@dataclass(slots=True)
class Parts:
    """The undamped parts of every expert's sum, by feature, for unwanted mail against wanted.

    multinomial: (1, n), by bucket; logistic: of each class but the first, (K-1, n). categorical, gaussian: of each trait and number; so
    few of them are faster without arrays.
    """

    multinomial: Floats
    logistic: NDArray[np.int32]
    categorical: list[float]
    gaussian: list[float]


class Bounds(NamedTuple):
    """Within what a score of unwanted mail against wanted counts in judging, in 1/STEPS nats.

    lowest: of any expert. below: how far an expert of tokens may be below the third lowest of them, as far as that does not turn it round.
    """

    lowest: int
    below: int


class Sums(NamedTuple):
    """What has been counted of K classes, or of two sides: arrays as in `Tables`."""

    messages: Integers
    totals: Integers
    trait_counts: Integers
    number_sums: Integers
    number_products: Integers


class Estimates(NamedTuple):
    """What the counting experts make of `Sums`, before they see a message.

    scales (K, SETS): one over `multinomial_shares`. traits (K-1, T, TRAIT_VALUES), numbers (K-1, D, NUMBER_VALUES): the log-likelihood
    ratio against the first class of everything a trait or number can be.
    """

    scales: Floats
    traits: Floats
    numbers: Floats


@dataclass(frozen=True, slots=True)
class Parameters:
    """All that is known before a message is seen.

    confidence: factor of the fused log-odds of unwanted mail. of_classes: each class against the first; of_sides: unwanted mail
    against wanted, the same with two classes. traits, numbers: those of `of_sides`, as lists.
    """

    sides: Sides
    confidence: float
    bounds: Bounds
    of_classes: Estimates
    of_sides: Estimates
    traits: list[list[float]]
    numbers: list[list[float]]


def parameters(tables: Tables, unwanted: Set[str] = frozenset({"spam"})) -> Parameters:
    """Estimates from the sums as they are now; good until the tables change. unwanted: classes that are; others are wanted."""
    split = sides_of(tables.classes, unwanted)
    sums = Sums(tables.messages, tables.totals, tables.trait_counts, tables.number_sums, tables.number_products)
    of_classes = estimates(sums)
    of_sides = of_classes if len(tables.classes) == 2 else estimates(Sums(*(merged(values, split) for values in sums)))
    trusted = confidence(tables.messages, split)
    return Parameters(split, trusted, bounds(trusted), of_classes, of_sides, of_sides.traits[0].tolist(), of_sides.numbers[0].tolist())


def estimates(sums: Sums) -> Estimates:
    """Of the second class and all others against the first."""
    return Estimates(1.0 / multinomial_shares(sums.totals), trait_ratios(sums), number_ratios(sums))


def bounds(confidence: float) -> Bounds:
    """What counts of the scores: no expert speaks for wanted mail by more than the FLOOR, and by AHEAD more than the third."""
    floor, ahead = (round(nats / sqrt(confidence) * STEPS) for nats in (FLOOR, AHEAD))
    return Bounds(-floor, ahead)


def trust(messages: Integers) -> Floats:
    """How far classes with so many lessons can be trusted, in (0, 1): rises smoothly."""
    return np.asarray((messages + 1) / (messages + 1 + WARM_UP))


def confidence(messages: Integers, sides: Sides) -> float:
    """How far the odds of unwanted mail can be trusted, in (0, 1): as its rarer side can. messages (K,).

    So neither one side alone nor a further class is a reason to be sure, and a filter without ham learns all the same.
    """
    return float(trust(merged(messages, sides).min()))


def parts(known: Parameters, seen: Evidence, rows: Rows) -> Parts:
    """Every feature's part in every expert's log-odds."""
    return Parts(
        multinomial_parts(merged(rows.counts, known.sides), known.of_sides.scales, seen.sizes),
        rows.weights,
        list(map(getitem, known.traits, seen.traits.tolist())),
        list(map(getitem, known.numbers, seen.numbers.tolist())),
    )


def damping(sizes: NDArray[np.intp], traits: int, numbers: int) -> Floats:
    """Factor of every expert's sum, (..., EXPERTS), for messages with so many features in each set, (..., SETS)."""
    root = 1.0 / np.sqrt(np.maximum(sizes, 1))
    factors = np.empty((*sizes.shape[:-1], len(EXPERTS)))
    factors[..., :SETS] = root * np.sqrt(root)  # to the power of -3/4
    factors[..., SETS : 2 * SETS] = root
    factors[..., -2:] = traits**-0.5, numbers**-0.5
    return factors


def multinomial_shares(totals: Integers) -> Floats:
    """Each class's share of all features counted, by token set, shape (K, SETS); never zero."""
    return np.asarray((totals + 0.5) / (totals + 0.5).sum(axis=0))


def multinomial_parts(counts: NDArray[np.integer], scales: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Log-likelihood ratios against the first class, (K-1, n), of features seen so often in each class, (K, n).

    scales (K, runs): one over the class's share of all features, for runs of so many features each.
    Dirichlet smoothing with the class's share of one pseudo-count a: p = (count + a·share) / (share · constant), so that
    p_k / p_0 = (count_k / share_k + a) / (count_0 / share_0 + a), and a feature that was never seen says nothing, however unequal
    the classes are.
    """
    rates = counts.astype(np.float64)  # beforehand: a product of two types takes twice as long
    rates *= scales.repeat(sizes, axis=1)
    rates += _PSEUDO_COUNT
    ratios = rates[1:]
    ratios /= rates[0]
    return np.log(ratios, out=ratios)


def trait_ratios(sums: Sums) -> Floats:
    """Log-likelihood ratio of every value of every trait against the first class, (K-1, T, TRAIT_VALUES)."""
    totals = sums.messages[:, np.newaxis, np.newaxis]
    logs = formulas.smoothed_log(sums.trait_counts, totals, TRAIT_ALPHA, TRAIT_VALUES)
    return _rounded(logs[1:] - logs[0])


def number_ratios(sums: Sums) -> Floats:
    """Log-density ratio of everything a number can be against the first class, (K-1, D, NUMBER_VALUES)."""
    squares = np.diagonal(sums.number_products, axis1=1, axis2=2)
    mean, variance = formulas.gaussian_moments(sums.messages, sums.number_sums, squares)
    values = np.arange(NUMBER_VALUES)[:, np.newaxis]
    logs = formulas.gaussian_log_density(values, mean, np.maximum(variance, NUMBER_FLOOR))  # (values, K, D)
    return np.ascontiguousarray(_rounded(logs[:, 1:] - logs[:, :1]).transpose(1, 2, 0))


def _rounded(ratios: Floats) -> Floats:
    return np.asarray(np.rint(ratios * EXACT) / EXACT)


def looked_up(ratios: Floats, values: NDArray[np.integer]) -> Floats:
    """Ratios (K-1, m, V) of these values, (..., m): (K-1, ..., m)."""
    others, features, each = ratios.shape
    return ratios.reshape(others, -1).take(values + _first_values(features, each), axis=1)


@lru_cache(maxsize=8)
def _first_values(features: int, each: int) -> NDArray[np.intp]:
    """Where each feature's values begin, when those of all stand side by side."""
    return np.arange(features) * each


@lru_cache(maxsize=4096)
def _factors(size: int) -> tuple[float, int]:
    """What the sums over a token set of so many features are multiplied by: damping of the multinomial, root of the logistic."""
    root = 1.0 / sqrt(max(size, 1))
    return root * sqrt(root), logistic.inverse_root(max(size, 1))


def scores(found: Parts, seen: Evidence, biases: Integers, limits: Bounds) -> list[list[int]]:
    """Every expert's log-odds of unwanted mail where there are two classes, (1, EXPERTS), in 1/STEPS nats, as they count in judging.

    What `blocks.scores` and `believed` make of many messages, bit for bit: so few numbers are faster without arrays.
    """
    damping, roots = zip(*map(_factors, seen.sizes.tolist()), strict=True)
    of_trait, of_number = len(seen.traits) ** -0.5, len(seen.numbers) ** -0.5
    counted, weighed = set_sums(found.multinomial, seen)[0].tolist(), _whole_sums(found.logistic[0], seen.sizes)
    learnt = [logistic.margin(*one) / logistic.ONE for one in zip(weighed, biases[0].tolist(), roots, strict=True)]
    raw = (*map(mul, counted, damping), *learnt, sum(found.categorical) * of_trait, sum(found.gaussian) * of_number)
    return [_believed([round(nats * STEPS) for nats in _inside(raw, -CLIP, CLIP)], *limits)]


def _whole_sums(weights: NDArray[np.int32], sizes: NDArray[np.intp]) -> list[int]:
    """Sums over runs of so many weights, (n,)."""
    compiled = kernel.functions()
    if compiled is not None:
        return compiled.sums(weights, sizes)
    sums: list[int] = run_sums(weights[np.newaxis], sizes.cumsum() - sizes, sizes)[0].tolist()
    return sums


def _inside(values: Iterable[Number], least: Number, most: Number) -> list[Number]:
    """Each brought inside least..most, in a third of the time that `min` and `max` take."""
    return [least if value < least else most if value > most else value for value in values]


def _believed(row: list[int], lowest: int, below: int) -> list[int]:
    """`believed` for one message."""
    inside = [lowest if score < lowest else score for score in row]
    of_tokens = inside[:_OF_TOKENS]
    least = min(sorted(map(inside.__getitem__, _CONFIRMING))[_THIRD] - below, 0)
    return [least if score < least else score for score in of_tokens] + inside[_OF_TOKENS:]


def familiarity(counts: NDArray[np.int32], scores: list[list[int]], seen: Evidence) -> tuple[float, float]:
    """What one message has in common with the lessons, for the caution of the first days.

    counts (K, n): lessons of each class with each feature; scores: as `scores` returns them. Returns
    the log-odds of unwanted mail by the words of the text, in nats, and the share of other single
    tokens (header fields, hosts, structure) that no lesson has.
    """
    row = scores[-1]
    start, size = int(seen.starts[_CLUES]), int(seen.sizes[_CLUES])
    familiar = np.count_nonzero(counts[:, start : start + size].any(axis=0))
    text = max(row[_WORDS], row[SETS + _WORDS] / 2) / STEPS  # a logistic score is about twice as large
    return text, 1.0 - familiar / size if size else 1.0


def quantised(raw: Floats) -> Integers:
    """Log-odds in 1/STEPS nats, clipped at CLIP: (K-1, ...), and behind them, with more than two classes, those of unwanted mail.

    Of more than two, what is further than CLIP behind the likeliest is raised to there, so that classes are told apart however far the
    first one is from all of them.
    """
    kept = np.minimum(np.maximum(raw, -CLIP), CLIP)
    if len(raw) > 1:
        least = np.maximum(raw[:-1].max(axis=0), 0.0) - CLIP
        kept[:-1] = np.maximum(raw[:-1], least) - np.maximum(least, 0.0)
    return np.asarray(np.rint(kept * STEPS).astype(np.int64))


def believed(scores: Integers, limits: Bounds) -> Integers:
    """Scores (..., R, EXPERTS) as they count in judging: bounded are those of unwanted mail, the last row."""
    inside = scores.copy()
    last = inside[..., -1, :]
    np.maximum(last, limits.lowest, out=last)
    of_tokens = last[..., :_OF_TOKENS]
    third = np.sort(last[..., _CONFIRMING], axis=-1)[..., _THIRD, np.newaxis]
    np.maximum(of_tokens, np.minimum(third - limits.below, 0), out=of_tokens)  # no expert is turned round
    return inside


def set_sums(terms: NDArray[Any], seen: Evidence) -> NDArray[Any]:
    """Sums of columns (K-1, n) over each token set, (K-1, SETS)."""
    return run_sums(terms, seen.starts, seen.sizes)


def run_sums(terms: NDArray[Any], starts: NDArray[np.intp], sizes: NDArray[np.intp]) -> NDArray[Any]:
    """Sums over runs of columns, (K-1, runs), zero for an empty run; whole numbers are summed in 64 bits."""
    wide = np.int64 if terms.dtype.kind == "i" else terms.dtype
    if np.count_nonzero(sizes) == sizes.size:
        return np.asarray(np.add.reduceat(terms, starts, axis=1, dtype=wide))
    filled = sizes.nonzero()[0]  # reduceat cannot say that a run is empty
    sums = np.zeros((len(terms), len(sizes)), wide)
    if len(filled):
        sums[:, filled] = np.add.reduceat(terms, starts.take(filled), axis=1, dtype=wide)
    return sums
