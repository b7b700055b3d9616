"""Checks votes from elsewhere before a ledger takes them.

A vote that cannot be read would stop every reader for good. Must never refuse a vote that a ledger
of this version could hold by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from spamguard.errors import LedgerError
from spamguard.ledger import codec, wordlists
from spamguard.log import MAX_TIME
from spamguard.records import Vote

_MAX_CLOCK = 2**62  # leaves room to count on in SQLite's 64 bits


def check_votes(votes: Iterable[Vote]) -> Iterator[Vote]:
    """Yield the votes; LedgerError at the first over which readers would stumble."""
    for vote in votes:
        check_vote(vote)
        yield vote


def check_vote(vote: Vote) -> None:
    """Raise LedgerError if readers would stumble over this vote."""
    if not vote.digest or (vote.label is None and vote.packed):
        raise LedgerError(
            "a vote to be merged is about no message, or has features though it is taken back: "
            "export it again"
        )
    if not 0 < vote.clock < _MAX_CLOCK:
        raise LedgerError(
            f"a vote to be merged has clock {vote.clock}: it must be between 1 and 2**62"
        )
    if not 0 <= vote.time < MAX_TIME:
        raise LedgerError(
            f"a vote to be merged has time {vote.time}: it must be in seconds since 1970, before "
            "the year 10000"
        )
    if wordlists.is_word_list(vote.extractor):
        wordlists.check_list_vote(vote)
    elif vote.label == wordlists.WORD_LIST_LABEL:
        raise LedgerError("a vote to be merged is called a word list and is none: export it again")
    elif vote.label is not None:
        codec.check_receipt(vote.packed)


def with_unique_node(vote: Vote) -> Vote:
    """The vote as if a node of its own had cast it, which is named after what the vote says.

    For two votes that share a version: copies of a machine's files, or files that a power cut or an
    old copy set back, give a version again. Wherever both votes come together, in whatever order,
    the same one wins.
    """
    suffix = blake2b(repr(vote).encode(), digest_size=8).hexdigest()
    return vote._replace(node=f"{vote.node}+{suffix}")
