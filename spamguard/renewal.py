"""After an upgrade that reads mail otherwise: votes by what an older extractor had read are cast anew by what this one reads.

Label, user, origin and time stay, so that it is the same vote for whoever counts, lists or undoes votes. Must never say anything that
is not in force, and never change whose word it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from spamguard.engine import Filter
from spamguard.ledger import NewVote
from spamguard.ledger.codec import pack
from spamguard.prepare import Teaching
from spamguard.records import EXTRACTOR


def renew(spam_filter: Filter, messages: Sequence[Teaching], user: str | None = None) -> list[bytes]:
    """Cast anew the votes on these messages that an older extractor has read; of each, its message. user: whose; None: everybody's.

    LedgerError: none of them was.
    """
    spam_filter.refuse_without_receipts()
    scored = list(zip(messages, spam_filter.first_scores(messages), strict=True))
    with spam_filter.ledger.alone() as cast:
        votes = [vote for one, scores in scored for vote in _anew(spam_filter, one, scores, user)]
        cast(votes)
    return [vote.digest for vote in votes]


def _anew(spam_filter: Filter, message: Teaching, scores: bytes, user: str | None) -> list[NewVote]:
    return [
        NewVote(vote.digest, vote.user, vote.label, pack(message.features), scores, vote.origin, vote.time, EXTRACTOR)
        for vote in spam_filter.ledger.users.of_message(message.digest)
        if vote.extractor < EXTRACTOR and user in (None, vote.user)
    ]
