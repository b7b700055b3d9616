"""Two runs on the same mail, held against each other.

Pure: rows in, an interval out. It must never compare runs that judged different mail.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spamguard.errors import UsageError
from spamguard.evaluation.metrics import SPAM, Interval, paired_bootstrap
from spamguard.evaluation.report import Scored


def difference(ours: Sequence[Scored], theirs: Sequence[Scored], unwanted: Collection[str] = (SPAM,)) -> Interval:
    """1-ROCA % of ours minus that of theirs, with its 95 % interval; below zero, ours is better.

    unwanted: names of classes. Raises UsageError unless both judged the same messages, known by their number and true class.
    """
    if [(row.n, row.gold) for row in ours] != [(row.n, row.gold) for row in theirs]:
        raise UsageError(
            f"{len(theirs)} scores belong to other mail than these {len(ours)}: compare runs of one protocol on one corpus in one order"
        )
    gold = [row.gold in unwanted for row in ours]
    return paired_bootstrap(gold, [row.score for row in ours], [row.score for row in theirs])
