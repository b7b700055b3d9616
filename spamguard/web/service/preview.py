"""What a lesson would change among the last messages, before it is given."""

from __future__ import annotations

import time
from collections.abc import Sequence

from spamguard.engine import Filter
from spamguard.errors import LedgerError
from spamguard.model.fold import features_of
from spamguard.prepare import Teaching
from spamguard.records import Features
from spamguard.supposing import supposing
from spamguard.web.service.teaching import check_class
from spamguard.web.service.values import Flip, Judgement, Preview

LATEST = 200  # messages
_SECONDS = 2.0  # for all of them, before and after


def preview(
    spam_filter: Filter, lesson: Teaching, label: str, user: str, judged_for: str, latest: Sequence[tuple[Judgement, bytes]]
) -> Preview:
    """What teaching it would change at once. latest: messages with their features, newest first; judged as far as time allows."""
    check_class(spam_filter.ledger, label)
    spam_filter.refuse_without_receipts()
    known = [(judgement, features) for judgement, packed in latest for features in _features(packed)]
    messages = [lesson.features, *(features for _, features in known)]
    now = time.monotonic()
    with supposing(spam_filter) as apart:
        before = apart.judge(messages, judged_for, now + _SECONDS / 2)
        changed = apart.suppose(lesson, label, user)
        after = apart.judge(messages[: len(before)], judged_for, now + _SECONDS) if changed else before
    flips = [
        Flip(judgement, one, other)
        for (judgement, _), one, other in zip(known, before[1:], after[1:], strict=False)
        if one.label != other.label
    ]
    return Preview(lesson.digest.hex(), before[0], after[0], len(after) - 1, flips)


def _features(packed: bytes) -> Sequence[Features]:
    """None where they are damaged: the history is no receipt."""
    try:
        return features_of([packed])
    except LedgerError:
        return ()
