"""Measures of a filter's answers: those of the TREC spam track, and calibration.

Pure: arrays in, numbers and words out. Nothing here reads a file, judges a message or looks at its
content. Rates are in per cent, as in the literature (Cormack & Lynam, TREC 2005 Spam Track
Overview). What scikit-learn and SciPy have is theirs; the measures of the TREC spam track (lam, sm
at hm) and the calibration error stand here, as neither has them. Both libraries take a second to
load, so only `evaluate` imports this module. Throughout, for n messages in order of arrival:

- gold: bool, (n,), True where the message is truly unwanted (of a class such as "spam").
- score: float, (n,), higher means more likely unwanted; any monotone scale.
- probability: float, (n,), of being unwanted, in [0, 1].
- label: str, (n,), the filter's answer: the name of a class, or "unsure".
- unwanted: names of the classes that count as spam; all others count as ham.

A measure that needs both kinds of message, or probabilities, is NaN where they are missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from scipy.stats import binned_statistic, bootstrap

from spamguard.bayes.formulas import Integers
from spamguard.engine.policy import UNSURE

RESAMPLES = 1000
BINS = 15


class Interval(NamedTuple):
    """An estimate with the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


class Measures(NamedTuple):
    """One run's measures."""

    messages: int
    ham: int
    spam: int
    ham_as_spam: int
    spam_missed: int
    unsure_ham: int
    unsure_spam: int
    hm: float  # % of ham called spam
    sm: float  # % of spam not called spam, unsure included
    lam: float  # their logistic average, %
    roca: float  # 1-ROCA %, the area above the ROC curve
    roca_low: float  # its 95 % interval
    roca_high: float
    sm_at_hm_01: float  # smallest sm % of any threshold that loses at most 0.1 % of the ham
    sm_at_hm_05: float  # 0.5 %
    calibration_error: float  # expected, in [0, 1]
    log_loss: float  # mean, in nats


def measures(
    gold: ArrayLike,
    score: ArrayLike,
    label: ArrayLike,
    *,
    probability: ArrayLike | None = None,
    unwanted: Collection[str] = ("spam",),
) -> Measures:
    """All measures of one run."""
    truth, labels = np.asarray(gold, dtype=np.bool_), np.asarray(label, dtype=np.str_)
    answers = np.where(np.isin(labels, [*unwanted]), 2, labels == UNSURE)
    counts = np.bincount(3 * truth + answers, minlength=6).reshape(2, 3).tolist()
    (_, unsure_ham, lost), (_, unsure_spam, caught) = counts
    ham, spam = map(sum, counts)
    missed = spam - caught
    area = roca_interval(truth, score)
    has_chances = probability is not None and len(truth) > 0
    return Measures(
        messages=len(truth),
        ham=ham,
        spam=spam,
        ham_as_spam=lost,
        spam_missed=missed,
        unsure_ham=unsure_ham,
        unsure_spam=unsure_spam,
        hm=100 * lost / ham if ham else math.nan,
        sm=100 * missed / spam if spam else math.nan,
        lam=logistic_average(lost, ham, missed, spam),
        roca=area.value,
        roca_low=area.low,
        roca_high=area.high,
        sm_at_hm_01=sm_at(truth, score, 0.001),
        sm_at_hm_05=sm_at(truth, score, 0.005),
        calibration_error=calibration_error(truth, probability) if has_chances else math.nan,
        log_loss=log_loss(truth, probability) if has_chances else math.nan,
    )


def logistic_average(lost: int, ham: int, missed: int, spam: int) -> float:
    """lam %: the mean of both error rates in log-odds, from counts.

    Rates are smoothed to (errors + 1/2) / (messages + 1), so that no errors at all stay finite.

    >>> round(logistic_average(lost=0, ham=999, missed=9, spam=999), 4)
    0.2186
    """
    if not ham or not spam:
        return math.nan
    rates = ((lost + 0.5) / (ham + 1), (missed + 0.5) / (spam + 1))
    return 100 * float(expit(logit(rates).mean()))


# ---- the ROC curve, and the area above it


def _rank_kinds(gold: ArrayLike, score: ArrayLike) -> tuple[Integers, Integers]:
    """The ranks of all spam and of all ham; equal scores have equal ranks, and may be infinite."""
    truth, ranks = np.asarray(gold, dtype=np.bool_), np.unique(score, return_inverse=True)[1]
    return ranks[truth], ranks[~truth]


def _area(spam: Integers, ham: Integers) -> float:  # `roc_auc_score` takes forty times as long
    at = np.bincount(ham, minlength=int(spam.max()) + 1)
    above_or_half = len(ham) - np.cumsum(at) + 0.5 * at
    return 100 * float(above_or_half[spam].mean()) / len(ham)


def roca(gold: ArrayLike, score: ArrayLike) -> float:
    """1-ROCA %: the chance that a random ham scores above a random spam, ties counting half.

    Source: Mann & Whitney 1947.

    >>> roca([False, False, True, True], [0.1, 0.6, 0.4, 0.9])
    25.0
    """
    kinds = _rank_kinds(gold, score)
    return _area(*kinds) if all(map(len, kinds)) else math.nan


def sm_at(gold: ArrayLike, score: ArrayLike, hm: float) -> float:
    """sm % of the best threshold that loses at most the share `hm` (0 to 1) of the ham.

    100 when so much ham ties at the top that no threshold does.
    """
    spam, ham = _rank_kinds(gold, score)
    if not len(spam) or not len(ham):
        return math.nan
    most = int(hm * len(ham) + 1e-9)  # 0.005 of 1000 must allow 5
    threshold = np.sort(ham)[-1 - most] if most < len(ham) else -1
    return 100 * float(np.mean(spam <= threshold))


# ---- intervals


def roca_interval(gold: ArrayLike, score: ArrayLike) -> Interval:
    """1-ROCA % with its 95 % percentile interval.

    The bootstrap resamples spam and ham separately (Efron 1979).
    """
    kinds, value = _rank_kinds(gold, score), roca(gold, score)
    if min(map(len, kinds)) < 2:
        return Interval(value, math.nan, math.nan)
    bounds = bootstrap(
        kinds,
        _area,
        n_resamples=RESAMPLES,
        batch=1,  # a resample at a time: all at once would take 16 bytes a score each
        vectorized=False,
        method="percentile",
        rng=1,
    ).confidence_interval
    return Interval(value, float(bounds.low), float(bounds.high))


# ---- calibration


def calibration_error(gold: ArrayLike, probability: ArrayLike | None) -> float:
    """Expected calibration error: mean of |predicted - observed| over bins, by messages.

    Sources: DeGroot & Fienberg 1983; Naeini et al. 2015.
    """
    means = binned_statistic(probability, [probability, gold], "mean", BINS, (0, 1))
    gaps = np.abs(np.subtract(*means.statistic))
    messages = np.bincount(means.binnumber - 1, minlength=BINS)
    return float(np.nansum(gaps * messages) / messages.sum())


def log_loss(gold: ArrayLike, probability: ArrayLike | None) -> float:
    """Mean of -ln(probability of the truth), in nats; probabilities are at least 2.2e-16."""
    return float(sklearn.metrics.log_loss(gold, probability, labels=[False, True]))


# ---- classes, and the course of learning


class Confusion(NamedTuple):
    """Answers by true class."""

    predicted: tuple[str, ...]  # the last one is "unsure"
    actual: tuple[str, ...]
    counts: Integers  # (predicted, actual)


def confusion(actual: Sequence[str], predicted: Sequence[str]) -> Confusion:
    """The confusion matrix; classes in alphabetical order, with those never predicted or true."""
    classes = sorted({*actual, *predicted} - {UNSURE})
    answers = [*classes, UNSURE]
    counts = sklearn.metrics.confusion_matrix(actual, predicted, labels=answers)
    return Confusion(tuple(answers), tuple(classes), counts.T[:, :-1])


# ---- reports


def report_document(runs: Mapping[str, Measures], matrix: Confusion) -> dict[str, object]:
    """Everything as one JSON-ready dictionary; undefined values are None."""
    runs_by_name = {
        name: {head: None if math.isnan(value) else value for head, value in run._asdict().items()}
        for name, run in runs.items()
    }
    confusion = matrix._asdict() | {"counts": matrix.counts.tolist()}
    return {"runs": runs_by_name, "confusion": confusion}


def measures_table(name: str, run: Measures) -> str:
    """A run as text, a line per measure."""
    lines = [
        ("messages (ham, spam)", f"{run.messages} ({run.ham}, {run.spam})"),
        ("ham called spam (hm)", f"{run.hm:.2f} % ({run.ham_as_spam} of {run.ham})"),
        ("spam not called spam (sm)", f"{run.sm:.2f} % ({run.spam_missed} of {run.spam})"),
        ("  unsure (ham, spam)", f"{run.unsure_ham}, {run.unsure_spam}"),
        ("logistic average (lam)", f"{run.lam:.2f} %"),
        ("1-ROCA", f"{run.roca:.4f} %"),
        ("  95 % interval", f"{run.roca_low:.4f} to {run.roca_high:.4f} %"),
        ("sm where hm <= 0.1 %", f"{run.sm_at_hm_01:.2f} %"),
        ("sm where hm <= 0.5 %", f"{run.sm_at_hm_05:.2f} %"),
        ("calibration error", f"{run.calibration_error:.4f}"),
        ("log-loss", f"{run.log_loss:.4f}"),
    ]
    cells = [(head, "–" if "nan" in cell else cell) for head, cell in lines]
    return _format_table([("", name), *cells])


def confusion_table(matrix: Confusion) -> str:
    """The confusion matrix as text: a line per answer, a column per true class."""
    answers = zip(matrix.predicted, matrix.counts.tolist(), strict=True)
    lines = [[name, *map(str, counts)] for name, counts in answers]
    return _format_table([["called \\ truly", *matrix.actual], *lines])


def _format_table(lines: Sequence[Sequence[str]]) -> str:
    first, *widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for head, *cells in lines:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        text.append("  ".join([head.ljust(first), *padded]).rstrip())
    return "\n".join(text) + "\n"
