"""Votes that arrive from elsewhere: which of them a ledger may take, and under which version.

A vote that cannot be read would stop every reader for good, so `check_votes` refuses it before a
ledger takes it. Must never refuse a vote that a ledger of this version could hold by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from spamguard.errors import LedgerError
from spamguard.ledger import codec
from spamguard.ledger.votes import (
    CLASS_LABELS,
    CLASS_PREFIX,
    CLASS_VERSION,
    SENDER_LABEL,
    SENDER_VERSION,
    SETTLING_DIGEST,
    SETTLING_LABEL,
    SETTLING_VERSION,
    is_class_label,
)
from spamguard.records import Vote
from spamguard.times import MAX_TIME
from spamguard.users import is_class_name

_MAX_CLOCK = 2**62  # leaves room to count on in SQLite's 64 bits
_WITHOUT_FEATURES = (SENDER_VERSION, CLASS_VERSION, SETTLING_VERSION)
MAX_CLOCK_STEP = 2**32
"""A clock counts votes. One that is further above all others than this was made up, and would leave
no number to those that come after it.
"""


def check_votes(votes: Iterable[Vote]) -> Iterator[Vote]:
    """Yield the votes; LedgerError at the first over which readers would stumble."""
    for vote in votes:
        if not _is_possible(vote):
            raise LedgerError(
                f"a vote to be merged (label {vote.label}, clock {vote.clock}, time {vote.time}) "
                "is none: export it again"
            )
        if vote.label is not None and vote.extractor not in _WITHOUT_FEATURES:
            codec.check_receipt(vote.packed)
        yield vote


def _is_possible(vote: Vote) -> bool:
    if not vote.digest or not 0 < vote.clock < _MAX_CLOCK or not 0 <= vote.time < MAX_TIME:
        return False
    if vote.extractor not in _WITHOUT_FEATURES:
        return is_class_label(vote.label) and not (vote.label is None and vote.packed)
    if vote.packed or vote.scores:
        return False
    if vote.extractor == SENDER_VERSION:
        return not vote.label or SENDER_LABEL.fullmatch(vote.label) is not None
    if vote.extractor == SETTLING_VERSION:
        return (vote.digest, vote.user, vote.label) == (SETTLING_DIGEST, "", SETTLING_LABEL)
    return not vote.user and _defines_class(vote)


def _defines_class(vote: Vote) -> bool:
    name = vote.digest.removeprefix(CLASS_PREFIX).decode("utf-8", "replace")
    opposite = {"ham": "(class unwanted)", "spam": "(class wanted)"}.get(name, "")
    return (
        vote.digest.startswith(CLASS_PREFIX)
        and is_class_name(name)
        and vote.label in {None, *CLASS_LABELS} - {opposite}
    )


def with_unique_node(vote: Vote) -> Vote:
    """The vote as if a node of its own had cast it, which is named after what the vote says.

    For two votes that share a version: copies of a machine's files, or files that a power cut or an
    old copy set back, give a version again. Wherever both votes come together, in whatever order,
    the same one wins.
    """
    suffix = blake2b(repr(vote).encode(), digest_size=8).hexdigest()
    return vote._replace(node=f"{vote.node}+{suffix}")
