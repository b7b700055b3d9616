"""Votes that an older version's extractor has read, after an upgrade that reads mail otherwise.

Such a vote teaches nothing until its message is read again: features of two extractors are never
mixed. `reextract_votes` casts it once more, with today's features. Label, user, origin and time
stay, so for counts, lists and undo it is the same vote.

Must never cast a vote that is not in force, and never change whose vote it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example
from spamguard.ledger.codec import pack
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NewVote
from spamguard.ledger.wordlists import WORD_LIST_LABEL
from spamguard.records import EXTRACTOR, Vote

REEXTRACT_REMEDY = (
    "the daemon does that with what lies in watched folders, "
    "teach the rest again (teach-folders, learn)"
)


def count_outdated(ledger: SqliteLedger) -> int:
    """Lessons that teach nothing now, because an older extractor has read all votes for them."""
    lessons, current = ledger.lesson_counts(), ledger.lesson_counts(EXTRACTOR)
    lessons.pop(WORD_LIST_LABEL, None)
    return sum(lessons.values()) - sum(current.values())


def describe_outdated(number: int) -> str:
    """So many outdated lessons, for users; `REEXTRACT_REMEDY` says what to do about them."""
    lessons = "1 lesson" if number == 1 else f"{number:,} lessons"
    return (
        f"{lessons} from before an upgrade that reads mail otherwise: "
        "no use until the mail is read again"
    )


def reextract_votes(
    spam_filter: Filter, examples: Sequence[Example], user: str | None = None
) -> list[bytes]:
    """Cast the outdated votes on these messages once more; the digest of each.

    Parameters
    ----------
    user
        Whose votes; None: everybody's.

    Raises
    ------
    LedgerError
        No vote was cast.
    """
    spam_filter.require_receipts()
    outdated = [example for example in examples if _outdated_votes(spam_filter, example, user)]
    all_scores = spam_filter.first_scores(outdated)
    # Exclusive: no user may say anything else between looking and casting.
    with spam_filter.ledger.exclusive() as cast:
        votes = [
            NewVote(
                vote.digest,
                vote.user,
                vote.label,
                pack(example.features),
                scores,
                vote.origin,
                vote.time,
                EXTRACTOR,
            )
            for example, scores in zip(outdated, all_scores, strict=True)
            for vote in _outdated_votes(spam_filter, example, user)
        ]
        cast(votes)
    return [vote.digest for vote in votes]


def _outdated_votes(spam_filter: Filter, example: Example, user: str | None) -> list[Vote]:
    return [
        vote
        for vote in spam_filter.ledger.users.votes_on_message(example.digest)
        if vote.extractor < EXTRACTOR and user in (None, vote.user)
    ]
