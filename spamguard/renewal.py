"""After an upgrade that reads mail otherwise: votes by what an older extractor had read are cast anew by what this one reads, and how
many lessons still wait for that.

Label, user, origin and time stay, so that it is the same vote for whoever counts, lists or undoes votes. Must never say anything that
is not in force, and never change whose word it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from spamguard.engine import Filter
from spamguard.ledger import NewVote, SqliteLedger
from spamguard.ledger.codec import pack
from spamguard.ledger.wordlists import LABEL
from spamguard.prepare import Teaching
from spamguard.records import EXTRACTOR, Vote

REMEDY = "the daemon does that with what lies in watched folders, teach the rest again (teach-folders, learn)"


def left_behind(ledger: SqliteLedger) -> int:
    """Lessons that teach nothing now, as all votes for them were read by an older extractor."""
    whole, current = ledger.lesson_counts(), ledger.lesson_counts(EXTRACTOR)
    return sum(number for name, number in whole.items() if name != LABEL) - sum(current.values())


def told(number: int) -> str:
    """So many of them, in words; what to do about it is `REMEDY`."""
    some = "1 lesson" if number == 1 else f"{number:,} lessons"
    return f"{some} from before an upgrade that reads mail otherwise: no use until the mail is read anew"


def renew(spam_filter: Filter, messages: Sequence[Teaching], user: str | None = None) -> list[bytes]:
    """Cast anew the votes on these messages that an older extractor has read; of each, its message. user: whose; None: everybody's.

    LedgerError: none of them was.
    """
    spam_filter.refuse_without_receipts()
    some = [one for one in messages if _older(spam_filter, one, user)]
    scores = spam_filter.first_scores(some)
    with spam_filter.ledger.alone() as cast:  # nobody says anything else between looking and casting
        votes = [
            NewVote(vote.digest, vote.user, vote.label, pack(one.features), then, vote.origin, vote.time, EXTRACTOR)
            for one, then in zip(some, scores, strict=True)
            for vote in _older(spam_filter, one, user)
        ]
        cast(votes)
    return [vote.digest for vote in votes]


def _older(spam_filter: Filter, message: Teaching, user: str | None) -> list[Vote]:
    of_message = spam_filter.ledger.users.of_message(message.digest)
    return [vote for vote in of_message if vote.extractor < EXTRACTOR and user in (None, vote.user)]
