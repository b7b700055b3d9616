"""Measures of a filter's answers: those of the TREC spam track, and calibration.

Pure: arrays in, numbers out. Nothing here reads a file, judges a message or looks at its content.
Rates are in per cent, as in the literature (Cormack & Lynam, TREC 2005 Spam Track Overview).
scikit-learn's measures do not serve: scores may be infinite, ties count half, and the intervals
resample spam and ham separately. Throughout, for n messages in order of arrival:

- gold: bool, (n,), True where the message is truly unwanted (of a class such as "spam").
- score: float, (n,), higher means more likely unwanted; any monotone scale.
- probability: float, (n,), of being unwanted, in [0, 1].
- label: str, (n,), the filter's answer: the name of a class, or "unsure".
- unwanted: names of the classes that count as spam; all others count as ham.

A measure that needs both kinds of message, or probabilities, is NaN where they are missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spamguard.errors import UsageError

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPAM = "spam"
UNSURE = "unsure"
RESAMPLES = 1000
BINS = 15


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


_NO_INTERVAL = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Measures:
    """One run's measures.

    hm: % of ham called spam. sm: % of spam not called spam (unsure included). lam: their logistic
    average, %. roca: 1-ROCA %, the area above the ROC curve, with its 95 % interval roca_low,
    roca_high. sm_at_hm_01, sm_at_hm_05: smallest sm % of any threshold that loses at most 0.1 % and
    0.5 % of the ham. calibration_error: expected calibration error, in [0, 1]. log_loss: mean, in
    nats.
    """

    messages: int
    ham: int
    spam: int
    ham_as_spam: int
    spam_missed: int
    unsure_ham: int
    unsure_spam: int
    hm: float
    sm: float
    lam: float
    roca: float
    roca_low: float
    roca_high: float
    sm_at_hm_01: float
    sm_at_hm_05: float
    calibration_error: float
    log_loss: float

    def as_dict(self) -> dict[str, int | float | None]:
        """Field names to numbers, for JSON; undefined measures are None (JSON has no NaN)."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


def measures(
    gold: ArrayLike,
    score: ArrayLike,
    label: ArrayLike,
    *,
    probability: ArrayLike | None = None,
    unwanted: Collection[str] = (SPAM,),
    resamples: int = RESAMPLES,
) -> Measures:
    """All measures of one run. UsageError: a score is NaN."""
    truth, scores = _check_pair(gold, score)
    labels = np.asarray(label, dtype=np.str_)
    called_spam, unsure = np.isin(labels, [*unwanted]), labels == UNSURE
    ham, spam = int(np.sum(~truth)), int(np.sum(truth))
    lost, missed = int(np.sum(called_spam & ~truth)), int(np.sum(~called_spam & truth))
    area = roca_interval(truth, scores, resamples=resamples)
    has_chances = probability is not None
    return Measures(
        messages=len(truth),
        ham=ham,
        spam=spam,
        ham_as_spam=lost,
        spam_missed=missed,
        unsure_ham=int(np.sum(unsure & ~truth)),
        unsure_spam=int(np.sum(unsure & truth)),
        hm=100 * lost / ham if ham else math.nan,
        sm=100 * missed / spam if spam else math.nan,
        lam=logistic_average(lost, ham, missed, spam),
        roca=area.value,
        roca_low=area.low,
        roca_high=area.high,
        sm_at_hm_01=sm_at(truth, scores, 0.001),
        sm_at_hm_05=sm_at(truth, scores, 0.005),
        calibration_error=calibration_error(truth, probability) if has_chances else math.nan,
        log_loss=log_loss(truth, probability) if has_chances else math.nan,
    )


def _check_pair(gold: ArrayLike, score: ArrayLike | None) -> tuple[Bools, Floats]:
    """Both as arrays of the same length without NaN."""
    truth, scores = np.asarray(gold, dtype=np.bool_), np.asarray(score, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != scores.shape:
        raise UsageError(
            f"{truth.size} gold labels for {scores.size} scores; give one score per message"
        )
    if np.isnan(scores).any():
        first = int(np.flatnonzero(np.isnan(scores))[0])
        raise UsageError(f"score {first} is not a number; score every message")
    return truth, scores


def _has_one_kind(truth: Bools) -> bool:
    return bool(truth.all() or not truth.any())


def logistic_average(lost: int, ham: int, missed: int, spam: int) -> float:
    """lam %: the mean of both error rates in log-odds, from counts.

    Rates are smoothed to (errors + 1/2) / (messages + 1), so that no errors at all stay finite.

    >>> round(logistic_average(lost=0, ham=999, missed=9, spam=999), 4)
    0.2186
    """
    if not ham or not spam:
        return math.nan
    rates = ((lost + 0.5) / (ham + 1), (missed + 0.5) / (spam + 1))
    return 100 / (1 + math.exp(-sum(math.log(rate / (1 - rate)) for rate in rates) / 2))


# ---- area above the ROC curve


class _RankedScores(NamedTuple):
    """Scores of spam and of ham as ranks, equal scores having equal ranks: all the area needs."""

    spam: Ints
    ham: Ints
    ranks: int

    @classmethod
    def rank(cls, truth: Bools, scores: Floats) -> _RankedScores:
        distinct, ranks = np.unique(scores, return_inverse=True)
        return cls(ranks[truth], ranks[~truth], len(distinct))

    def area(self) -> float:
        """P(a ham scores above a spam) + P(equal)/2, in %."""
        at = np.bincount(self.ham, minlength=self.ranks)
        above_or_half = len(self.ham) - np.cumsum(at) + 0.5 * at
        return 100 * float(above_or_half[self.spam].mean()) / len(self.ham)


def roca(gold: ArrayLike, score: ArrayLike) -> float:
    """1-ROCA %: the chance that a random ham scores above a random spam, ties counting half.

    Source: Mann & Whitney 1947.

    >>> roca([False, False, True, True], [0.1, 0.6, 0.4, 0.9])
    25.0
    """
    truth, scores = _check_pair(gold, score)
    return math.nan if _has_one_kind(truth) else _RankedScores.rank(truth, scores).area()


def roca_interval(gold: ArrayLike, score: ArrayLike, *, resamples: int = RESAMPLES) -> Interval:
    """1-ROCA % with its 95 % percentile interval.

    The bootstrap resamples spam and ham separately (Efron 1979).
    """
    truth, scores = _check_pair(gold, score)
    if _has_one_kind(truth):
        return _NO_INTERVAL
    ranked = _RankedScores.rank(truth, scores)
    return _interval(ranked.area(), _resample([ranked], resamples)[:, 0])


def paired_bootstrap(
    gold: ArrayLike, score_a: ArrayLike, score_b: ArrayLike, *, resamples: int = RESAMPLES
) -> Interval:
    """1-ROCA % of a minus that of b on the same messages, with its 95 % interval.

    Below zero, a is better. Both runs are measured on the same resamples, so mail that is hard for
    both cancels out: the interval is much narrower than the two single ones. Only one that leaves
    out zero is evidence of a difference.
    """
    truth, first = _check_pair(gold, score_a)
    second = _check_pair(gold, score_b)[1]
    if _has_one_kind(truth):
        return _NO_INTERVAL
    runs = [_RankedScores.rank(truth, first), _RankedScores.rank(truth, second)]
    areas = _resample(runs, resamples)
    return _interval(runs[0].area() - runs[1].area(), areas[:, 0] - areas[:, 1])


def _resample(runs: Sequence[_RankedScores], resamples: int) -> Floats:
    """Areas of resamples, (resamples, runs); a resample is the same messages in every run."""
    rng = np.random.default_rng(1)
    spams, hams = len(runs[0].spam), len(runs[0].ham)
    areas = np.empty((resamples, len(runs)))
    for row in areas:
        spam, ham = rng.integers(0, spams, spams), rng.integers(0, hams, hams)
        row[:] = [run._replace(spam=run.spam[spam], ham=run.ham[ham]).area() for run in runs]
    return areas


def _interval(value: float, resampled: Floats) -> Interval:
    if not len(resampled):
        return Interval(value, math.nan, math.nan)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Interval(value, float(low), float(high))


# ---- thresholds


def threshold_at(gold: ArrayLike, score: ArrayLike, hm: float) -> float:
    """The lowest threshold that loses at most the share `hm` (0 to 1) of the ham.

    Mail that scores above the threshold is called spam.
    """
    truth, scores = _check_pair(gold, score)
    hams = np.sort(scores[~truth])[::-1]
    allowed = math.floor(hm * len(hams) + 1e-9)  # 0.005 * 1000 must allow 5
    return float(hams[allowed]) if allowed < len(hams) else -math.inf


def sm_at(gold: ArrayLike, score: ArrayLike, hm: float) -> float:
    """sm % of the best threshold that loses at most the share `hm` (0 to 1) of the ham.

    100 when so much ham ties at the top that no threshold does.
    """
    truth, scores = _check_pair(gold, score)
    if _has_one_kind(truth):
        return math.nan
    return 100 * float(np.mean(scores[truth] <= threshold_at(truth, scores, hm)))


def roc(gold: ArrayLike, score: ArrayLike) -> tuple[Floats, Floats]:
    """hm % and sm % of every threshold, both (distinct scores + 1,).

    From the strictest threshold (nothing is spam) to the laxest.
    """
    truth, scores = _check_pair(gold, score)
    if _has_one_kind(truth):
        raise UsageError("a ROC curve needs both spam and ham; evaluate on mail of both kinds")
    ranked = _RankedScores.rank(truth, scores)
    lost, caught = (
        np.cumsum(np.bincount(ranks, minlength=ranked.ranks)[::-1])
        for ranks in (ranked.ham, ranked.spam)
    )
    hm, sm = 100 * lost / len(ranked.ham), 100 - 100 * caught / len(ranked.spam)
    return np.concatenate([[0.0], hm]), np.concatenate([[100.0], sm])


# ---- calibration


@dataclass(frozen=True, slots=True)
class Reliability:
    """Messages by predicted probability, in bins of equal width; all (bins,), NaN in empty bins.

    predicted: mean probability. observed: share that is truly unwanted. messages: how many.
    """

    predicted: Floats
    observed: Floats
    messages: Ints


def reliability(gold: ArrayLike, probability: ArrayLike | None, bins: int = BINS) -> Reliability:
    """How often it was spam when the filter said p (DeGroot & Fienberg 1983)."""
    truth, chance = _check_pair(gold, probability)
    bin_numbers = np.minimum((chance * bins).astype(np.int64), bins - 1)
    messages = np.bincount(bin_numbers, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0/0 is the NaN of an empty bin
        predicted = np.bincount(bin_numbers, chance, bins) / messages
        observed = np.bincount(bin_numbers, truth, bins) / messages
    return Reliability(predicted, observed, messages)


def share_interval(part: int, whole: int) -> Interval:
    """A share in [0, 1] with its 95 % interval (Wilson 1927).

    The interval stays between 0 and 1 however few messages there are, and always has a width.
    """
    if not whole:
        return _NO_INTERVAL
    z = 1.959964
    value = part / whole
    middle = (value + z * z / (2 * whole)) / (1 + z * z / whole)
    spread = math.sqrt(value * (1 - value) / whole + z * z / (4 * whole * whole))
    half = z / (1 + z * z / whole) * spread
    return Interval(value, max(0.0, middle - half), min(1.0, middle + half))


def calibration_error(gold: ArrayLike, probability: ArrayLike | None, bins: int = BINS) -> float:
    """Expected calibration error: mean of |predicted - observed| over the bins, by messages.

    Source: Naeini et al. 2015.
    """
    by_bin = reliability(gold, probability, bins)
    total = by_bin.messages.sum()
    if not total:
        return math.nan
    gaps = np.abs(by_bin.predicted - by_bin.observed)
    return float(np.nansum(gaps * by_bin.messages) / total)


def log_loss(gold: ArrayLike, probability: ArrayLike | None) -> float:
    """Mean of -ln(probability of the truth), in nats; probabilities are at least 1e-15."""
    truth, chance = _check_pair(gold, probability)
    of_truth = np.clip(np.where(truth, chance, 1 - chance), 1e-15, 1)
    return float(-np.log(of_truth).mean()) if len(of_truth) else math.nan


# ---- classes, and the course of learning


@dataclass(frozen=True, slots=True)
class Confusion:
    """Answers by true class. counts: int, (predicted, actual); the last answer is "unsure"."""

    predicted: tuple[str, ...]
    actual: tuple[str, ...]
    counts: Ints


def confusion(actual: Sequence[str], predicted: Sequence[str]) -> Confusion:
    """The confusion matrix; classes in alphabetical order, with those never predicted or true."""
    classes = sorted({*actual, *predicted} - {UNSURE})
    rows = {name: row for row, name in enumerate([*classes, UNSURE])}
    counts = np.zeros((len(rows), len(classes)), dtype=np.int64)
    np.add.at(counts, ([rows[name] for name in predicted], [rows[name] for name in actual]), 1)
    return Confusion(tuple(rows), tuple(classes), counts)


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Errors in consecutive windows of messages; all (windows,).

    last: number (from 1) of the window's last message. roca: 1-ROCA % within the window, NaN if it
    holds one kind only. error: % of its messages that were lost ham or missed spam.
    """

    last: Ints
    roca: Floats
    error: Floats


def learning_curve(
    gold: ArrayLike,
    score: ArrayLike,
    label: ArrayLike,
    *,
    unwanted: Collection[str] = (SPAM,),
    window: int = 500,
) -> LearningCurve:
    """How errors fall as teaching goes on; the last window may be shorter."""
    truth, scores = _check_pair(gold, score)
    wrong = np.isin(np.asarray(label, dtype=np.str_), [*unwanted]) != truth
    windows = [slice(start, start + window) for start in range(0, len(truth), window)]
    return LearningCurve(
        np.array([min(each.stop, len(truth)) for each in windows], dtype=np.int64),
        np.array([roca(truth[each], scores[each]) for each in windows], dtype=np.float64),
        np.array([100 * float(wrong[each].mean()) for each in windows], dtype=np.float64),
    )
