"""Votes from elsewhere, looked at before they are kept: one that cannot be read would stop every reader for good.

Pure. Must never refuse what a ledger of this version could hold by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from spamguard.errors import LedgerError
from spamguard.ledger import codec, wordlists
from spamguard.records import Vote
from spamguard.times import LATEST

_HIGHEST_CLOCK = 2**62  # leaves the ledger room to count on in SQLite's 64 bits


def refuse_unusable(vote: Vote) -> None:
    """LedgerError if readers would stumble over it."""
    if not vote.digest or (vote.label is None and vote.packed):
        raise LedgerError("a vote to be merged is about no message, or has features though it is taken back: export it anew")
    if not 0 < vote.clock < _HIGHEST_CLOCK:
        raise LedgerError(f"a vote to be merged has clock {vote.clock}: it must be between 1 and 2**62")
    if not 0 <= vote.time < LATEST:
        raise LedgerError(f"a vote to be merged has time {vote.time}: it must be in seconds since 1970, before the year 10000")
    if wordlists.is_list(vote.extractor):
        wordlists.check(vote)
    elif vote.label == wordlists.LABEL:
        raise LedgerError("a vote to be merged is called a word list and is none: export it anew")
    elif vote.label is not None:
        codec.check(vote.packed)


def usable(votes: Iterable[Vote]) -> Iterator[Vote]:
    """The same votes; LedgerError at the first that a ledger would refuse."""
    for vote in votes:
        refuse_unusable(vote)
        yield vote


def by_its_own_name(vote: Vote) -> Vote:
    """A vote whose version another one has too, as if a node of its own had cast it, which is named after what it says.

    Copies of a node's files, or files that a power cut or an old copy set back, give a version again. Wherever both votes come
    together, in whatever order, the same one wins.
    """
    return vote._replace(node=f"{vote.node}+{blake2b(repr(vote).encode(), digest_size=8).hexdigest()}")
