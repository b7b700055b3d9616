"""How spammy good mail looked before it was taught: what a bound on wrongly judged good mail is computed from.

Measured after settling, from the scores in the receipts and today's fusion of them; kept in the ledger, so that every process
has it. Never on the path of a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Set

import numpy as np
from numpy.typing import NDArray

from spamguard.batches import batches
from spamguard.bayes import experts, fusion
from spamguard.bayes.sides import sides_of
from spamguard.bayes.tables import Tables
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
    scores = _counting(ledger.scores.of_lessons(EXTRACTOR), unwanted)
    for chunk in batches(scores, _CHUNK):
        found = log_odds(chunk, tables, unwanted)
        confirmed += len(found)
        highest = np.sort(np.concatenate((highest, found)))[-_KEPT:]
    steps = np.ceil(highest[::-1] * _STEP).astype(int).tolist()
    ledger.set_meta(_KEY, json.dumps({"confirmed": confirmed, "highest": steps}))


def known(ledger: SqliteLedger) -> GoodMail:
    """What was measured last. What cannot be read counts as not measured yet, which the next settling mends."""
    try:
        values = json.loads(ledger.get_meta(_KEY) or "{}")
        return GoodMail(values["confirmed"], tuple(step / _STEP for step in values["highest"]))
    except (ValueError, TypeError, KeyError):
        return GoodMail()


def _counting(lessons: Iterable[tuple[str, bytes]], unwanted: Set[str]) -> Iterator[bytes]:
    """Scores of the good messages that were taken when both sides were known."""
    taught = {True: 0, False: 0}
    for label, scores in lessons:
        bad = label in unwanted
        if not bad and min(taught.values()) >= FEWEST_OF_EACH:
            yield scores
        taught[bad] += 1


def log_odds(scores: list[bytes], tables: Tables, unwanted: Set[str]) -> NDArray[np.float64]:
    """Fused log-odds of being unwanted, (m,), from packed scores; those that are none of ours are left out."""
    rows = [row for row in map(firstscores.of_unwanted, scores) if row]
    known = np.frombuffer(b"".join(rows), "<i2").astype(np.int64).reshape(len(rows), 1, len(experts.EXPERTS))
    trust = experts.confidence(tables.messages, sides_of(tables.classes, unwanted))
    counting = experts.believed(known, experts.bounds(trust))
    fused = fusion.log_odds(counting, fusion.of_sides(tables.fusion_weights), tables.fusion_biases[:1])
    return fusion.tempered(trust * fusion.in_nats(fused)[:, 0])
