"""How spammy good mail looked before it was taught: what a bound on wrongly judged good mail is computed from.

Measured after settling, from the scores in the receipts and today's fusion of them; kept in the ledger, so that every process
has it. Never on the path of a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Set
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from spamguard.bayes import experts, fusion
from spamguard.bayes.tables import BASE_CLASSES, Tables
from spamguard.ledger import SqliteLedger
from spamguard.model import firstscores
from spamguard.policy import GoodMail
from spamguard.records import EXTRACTOR

_KEY = f"goodmail.{EXTRACTOR}"
_KEPT = 1000  # of the highest log-odds: for one wrong in 1,000 enough up to a million messages
# A score counts when so many messages of each side had been taught before it was taken: the first ones of a filter are guesses, and
# where all good mail is taught before any spam, nothing looks like spam.
FEWEST_OF_EACH = 100
_CHUNK = 4096  # lessons
_STEP = 1000  # log-odds are kept in thousandths, rounded up


def measure(ledger: SqliteLedger, tables: Tables, unwanted: Set[str]) -> None:
    """Keep what the receipts tell. tables: settled ones."""
    confirmed, highest = 0, np.empty(0)
    scores = _counting(ledger.scored_lessons(EXTRACTOR), unwanted)
    while chunk := list(islice(scores, _CHUNK)):
        found = log_odds(chunk, tables, unwanted)
        confirmed += len(found)
        highest = np.sort(np.concatenate((highest, found)))[-_KEPT:]
    steps = np.ceil(highest[::-1] * _STEP).astype(int).tolist()
    ledger.set_meta(_KEY, json.dumps({"confirmed": confirmed, "highest": steps}))


def known(ledger: SqliteLedger) -> GoodMail:
    """What was measured last."""
    line = ledger.get_meta(_KEY)
    if line is None:
        return GoodMail()
    values = json.loads(line)
    return GoodMail(values["confirmed"], tuple(step / _STEP for step in values["highest"]))


def _counting(lessons: Iterable[tuple[str, bytes]], unwanted: Set[str]) -> Iterator[bytes]:
    """Scores of the good messages that were taken when both sides were known."""
    taught = {True: 0, False: 0}
    for label, scores in lessons:
        bad = label in unwanted
        if not bad and min(taught.values()) >= FEWEST_OF_EACH:
            yield scores
        taught[bad] += 1


def log_odds(scores: list[bytes], tables: Tables, unwanted: Set[str]) -> NDArray[np.float64]:
    """Fused log-odds of being unwanted, (m,), from packed scores; those that are none of ours are left out.

    Where classes have come or gone since, spam against ham has to do.
    """
    whole, others = [], []
    for one in scores:
        rows, row = firstscores.rows_of(one, tables.classes), firstscores.of_spam(one)
        if rows:
            whole.append(rows)
        elif row:
            others.append(row)
    return np.concatenate((_fused(whole, tables, list(tables.classes), unwanted), _fused(others, tables, list(BASE_CLASSES), unwanted)))


def _fused(scores: list[bytes], tables: Tables, classes: list[str], unwanted: Set[str]) -> NDArray[np.float64]:
    rows = len(classes) - 1
    known = np.frombuffer(b"".join(scores), "<i2").astype(np.int64).reshape(len(scores), rows, len(experts.EXPERTS))
    trust = experts.confidence(tables.messages)[:rows]
    counting = experts.believed(known, experts.bounds(trust, classes[1:], unwanted))
    fused = fusion.in_nats(fusion.log_odds(counting, tables.fusion_weights, tables.fusion_biases[:rows]))
    joint = np.concatenate((np.zeros((len(scores), 1)), trust * fused), axis=1)
    bad = np.array([name in unwanted for name in classes])
    return np.asarray(np.logaddexp.reduce(joint[:, bad], axis=1) - np.logaddexp.reduce(joint[:, ~bad], axis=1))
