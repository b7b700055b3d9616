"""Lessons by those who ask here: each in their own name, and no more of them in a day than by other ways.

Must never teach in somebody else's name, nor a class that nobody has made known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from spamguard import log, undo
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.engine import Filter
from spamguard.errors import NotAllowedError, UsageError
from spamguard.ledger import SqliteLedger
from spamguard.log import word
from spamguard.model.fold import features_of
from spamguard.policy import unwanted_of
from spamguard.prepare import Teaching
from spamguard.records import EXTRACTOR, Verdict, Vote
from spamguard.teaching.lesson import BROUGHT
from spamguard.web.service.values import Receipt

_log = logging.getLogger("spamguard.web")


def classes(ledger: SqliteLedger) -> Mapping[str, bool]:
    """What mail may be taught as, and whether that is unwanted: the two that are always there first."""
    found = ledger.classes()
    unwanted = unwanted_of(found)
    return {name: name in unwanted for name in (*BASE_CLASSES, *sorted(found.keys() - set(BASE_CLASSES)))}


def check_class(ledger: SqliteLedger, label: str) -> None:
    """UsageError unless mail may be taught as that."""
    known = classes(ledger)
    if label not in known:
        raise UsageError(f"{label[:40]!r} is no class here: there are {', '.join(known)}; `spamguard learn` makes new ones")


def learn(spam_filter: Filter, lesson: Teaching, label: str, user: str, origin: str, most: int, judged_for: str) -> Receipt:
    """Teach one message. most: lessons of the user in a day, 0: no limit. judged_for: whose verdict `Receipt.now` is.

    NotAllowedError: the user has taught enough for today.
    """
    check_class(spam_filter.ledger, label)
    before = spam_filter.ledger.vote(lesson.digest, user)
    if user and most:
        users, now = spam_filter.ledger.users, int(time.time())
        if users.within(most, user, BROUGHT, now, [lesson], lambda one: (one.digest, label))[1]:
            raise NotAllowedError(f"that was {most:,} lessons within 24 hours, which is the limit (lessons_per_day): come again tomorrow")
    (changed,) = spam_filter.learn_ready([lesson], label, user=user, origin=origin)
    _note("learnt", user, origin, label, lesson.digest, changed=changed)
    now_called = spam_filter.judge_features(lesson.features, judged_for)
    return Receipt(lesson.digest.hex(), label, changed, _label(before), now_called)


def forget(spam_filter: Filter, digest: bytes, user: str, origin: str, judged_for: str) -> Receipt:
    """Take back what the user has said about a message; whatever that user had said before is not restored."""
    before = spam_filter.ledger.vote(digest, user)
    (changed,) = spam_filter.forget_ready([digest], user=user, origin=origin)
    _note("forgotten", user, origin, _label(before), digest, changed=changed)
    return Receipt(digest.hex(), "", changed, _label(before), _now(spam_filter, before, judged_for))


def _now(spam_filter: Filter, vote: Vote | None, judged_for: str) -> Verdict | None:
    """What the message would be called now, as far as the vote tells what it says."""
    if vote is None or not vote.packed or vote.extractor != EXTRACTOR:
        return None
    return spam_filter.judge_features(features_of([vote.packed])[0], judged_for)


def undo_some(spam_filter: Filter, digests: Sequence[bytes], chosen: undo.Chosen, *, dry: bool) -> list[Receipt]:
    """Take back what is chosen on these messages, at most some: other work waits meanwhile."""
    done = [one for batch in undo.undo(spam_filter, digests, chosen, dry=dry) for one in batch]
    if done and not dry:
        _log.info("undo user=%s messages=%d", word(chosen.user), len(done))
    return [Receipt(one.digest.hex(), one.back or "", True, one.taken or "") for one in done]


def digest_of(text: str) -> bytes:
    """A message's digest from what people are told of it. UsageError: it is none."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 16:
        raise UsageError("that is no digest of a message: it has 32 hexadecimal digits")
    return digest


def _label(vote: Vote | None) -> str:
    return vote.label or "" if vote is not None else ""


def _note(what: str, user: str, origin: str, label: str, digest: bytes, *, changed: bool) -> None:
    log.lesson(_log, user, {"by": origin}, label, digest, what if changed else "known")
