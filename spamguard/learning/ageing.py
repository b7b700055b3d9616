"""Ageing: forgetting the oldest lessons, so that ledger, tables and settling stay bounded.

The option `keep` says how many votes stay in force, or for how long. What is older is taken back by
tombstones, as everything that is taken back, but with an origin of their own: they are no user's
word. So `undo` neither undoes them nor brings back what is behind them, and a message that is
taught again is simply taught. Settling `compact`s the ledger; 30 days after a vote has aged,
nothing of it is left there. If it comes back later, from an export or another machine, it is as old
as before, and ages again.

A vote's own time counts, not that of its arrival. A number is exceeded by up to a twentieth before
anything ages, because forgetting makes settling due. Then the votes of the site go first, and those
of users that do not count for them alone (`engine.fold`); what counts for one user goes last. A
time is a time for every vote.

Of machines that share a ledger one may do this at a time. Must never take back a vote that was cast
after it had looked, or a word about a sender, a word list or a class.
"""

from __future__ import annotations

from spamguard.config.values import KeptLessons
from spamguard.engine.filter import Filter
from spamguard.engine.fold import MAX_VOTES
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NewVote
from spamguard.records import AGEING_ORIGIN
from spamguard.storage import batches

_DAY_SECONDS = 86_400
_SLACK = 20  # a number may be exceeded by this part of it


def age_votes(spam_filter: Filter, kept: KeptLessons, now: float) -> int:
    """Take back the votes that are too old, in batches; how many. Does not settle.

    now: seconds since 1970; a clock that has jumped ahead is not believed (`trusted_time`).
    LedgerError, TableError: some batches may be cast; the next call goes on.
    """
    ledger = spam_filter.ledger
    trusted, upto = ledger.trusted_time(now), ledger.last_seq()
    aged = 0
    for seqs in batches(find_old_votes(ledger, kept, trusted, upto)):
        tombstones = [
            NewVote(digest, user, None, b"", b"", AGEING_ORIGIN, trusted, extractor)
            for digest, user, extractor in ledger.ages.keys_of(seqs)
        ]
        aged += sum(spam_filter.cast_votes(tombstones, unless_voted_since=upto))
    return aged


def find_old_votes(ledger: SqliteLedger, kept: KeptLessons, now: int, upto_seq: int) -> list[int]:
    """Events that are the votes to take back, a function of the events up to `upto_seq` and the
    arguments alone.
    """
    if kept.days:
        return ledger.ages.oldest_votes(upto_seq, before=now - kept.days * _DAY_SECONDS)
    by_user = ledger.users.count_lessons().values()
    excess = sum(sum(labels.values()) for labels in by_user) - kept.number
    if excess * _SLACK < kept.number:
        return []
    return ledger.ages.oldest_votes(upto_seq, number=excess, personal=MAX_VOTES)
