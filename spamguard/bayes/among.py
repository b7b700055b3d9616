"""Which class of its side a message belongs to, where a side has more than one: the experts' log-odds against the side's first class,
fused by weights of their own.

Whether it is unwanted is none of its business: that has been said before (`sides`), with other weights, since what tells two kinds of
good mail apart is less than what tells good mail from bad.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion
from spamguard.bayes.experts import Floats, Integers
from spamguard.bayes.sides import Sides
from spamguard.bayes.tables import Tables


def log_shares(tables: Tables, sides: Sides, scores: Integers) -> Floats:
    """log P(class | its side), (m, K), from scores of each class against the first, (m, K-1, E).

    A class with few lessons is held back: what is said of it against the most taught one of its side counts in part.
    """
    trust = experts.trust(tables.messages)
    found = np.zeros((len(scores), len(tables.classes)))
    for side in sides:
        if len(side) > 1:
            odds = np.zeros((len(scores), len(side)))
            weights, biases = fusion.among_classes(tables.fusion_weights), tables.fusion_biases[_rows(side)]
            odds[:, 1:] = fusion.in_nats(fusion.log_odds(_against_first(scores, side), weights, biases))
            most = tables.messages[side].argmax()
            odds = odds[:, [most]] + trust[side] * (odds - odds[:, [most]])
            found[:, side] = odds - np.logaddexp.reduce(odds, axis=1, keepdims=True)
    return found


def learn(scores: Integers, targets: NDArray[np.intp], tables: Tables, sides: Sides) -> None:
    """One step of fusion within each side, from messages of that side: scores (m, K-1, E), targets (m,)."""
    for side in sides:
        places = np.isin(targets, side).nonzero()[0]
        if len(side) > 1 and len(places):
            rows = _rows(side)
            biases = tables.fusion_biases[rows]
            numbers = np.array([side.index(target) for target in targets[places].tolist()])
            fusion.learn(_against_first(scores[places], side), numbers, fusion.among_classes(tables.fusion_weights), biases)
            tables.fusion_biases[rows] = biases


def _rows(side: list[int]) -> list[int]:
    """Where scores and biases of all but the first class of a side are."""
    return [number - 1 for number in side[1:]]


def _against_first(scores: Integers, side: list[int]) -> Integers:
    """Scores of all but the first class of a side against that one."""
    own = scores[:, _rows(side)]
    return own - scores[:, [side[0] - 1]] if side[0] else own
