"""Run a filter through a stream of mail, and keep its scores in files.

Peers do not change, so an existing file of a peer is read instead of running it again; ours always
runs. It never compares.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

from spamguard.engine import measures
from spamguard.engine.evaluate import ScoredMessage, write_scores
from tests.bench.contest import Rival
from tests.bench.rivals import RIVALS, trial
from tests.bench.streams import Mail

OURS = "spamguard"
RESAMPLES = 1000


def roca_difference(
    rows: Sequence[ScoredMessage], other_rows: Sequence[ScoredMessage]
) -> measures.Interval:
    """1-ROCA % of a run minus that of another on the same mail, with its 95 % interval: spam and
    ham are drawn again, the same ones for both runs. Below zero, the first is better.
    """
    assert [(row.n, row.gold) for row in rows] == [(row.n, row.gold) for row in other_rows]
    gold = np.array([row.gold == "spam" for row in rows])
    first, second = (np.array([row.score for row in run]) for run in (rows, other_rows))

    def difference(spam: NDArray[np.int64], ham: NDArray[np.int64]) -> float:
        drawn = np.concatenate((spam, ham))
        return measures.roca(gold[drawn], first[drawn]) - measures.roca(gold[drawn], second[drawn])

    kinds = np.flatnonzero(gold), np.flatnonzero(~gold)
    bounds = bootstrap(
        kinds, difference, n_resamples=RESAMPLES, vectorized=False, method="percentile", rng=1
    ).confidence_interval
    return measures.Interval(difference(*kinds), float(bounds.low), float(bounds.high))


def online(
    rival: Rival, mail: Sequence[Mail], *, corrections: bool = False
) -> Iterator[ScoredMessage]:
    """Judge, then teach, every message; with corrections only mistakes and doubtful messages."""
    for number, (label, path) in enumerate(mail, 1):
        said = rival.judge(path)
        trained = not corrections or said.label != label or said.doubt
        if trained:
            rival.teach(path, label)
        yield ScoredMessage(number, label, said.label, said.score, trained)


def course(
    directory: Path, stream: str, name: str, mail: Sequence[Mail], *, corrections: bool = False
) -> list[ScoredMessage]:
    """The scores of a whole stream online: of a peer from its file if there is one, otherwise from
    a run, which writes the file.
    """
    path = directory / f"{stream}__{name}__{'corrections' if corrections else 'online'}.csv"
    if name == OURS or not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with trial(RIVALS[name]) as rival:
            write_scores(path, online(rival, mail, corrections=corrections))
    with path.open(encoding="utf-8", newline="") as file:
        return [
            ScoredMessage(int(n), gold, label, float(score), trained == "1")
            for n, gold, label, score, trained in list(csv.reader(file))[1:]
        ]
