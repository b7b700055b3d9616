"""The values that travel between the rooms.

Data only. All values are immutable; arrays are passed by reference, and nobody may write to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta

from spamguard.users import Origin

if TYPE_CHECKING:  # the master imports this module
    import numpy as np
    from numpy.typing import NDArray

EXTRACTOR = 4
"""Version of what `spamguard.mail` extracts; features of two versions are never mixed. Each release
that changes the features raises it.
"""
EXTRACTOR_FINGERPRINT = "33c9207fee02"
"""Of the features of made-up mail by that version (`tests/contract/test_extractor.py`)."""

DIGEST_BYTES = 16
"""Of the digest of a message, of a sender, and of a sender's domain."""

MAX_LINE = 120
"""Characters of the line that is kept of a text."""

SENDER_PREFIX = b"snd"
"""With which the digests of senders and their domains begin."""

MAX_WORDS, MAX_WORD_LENGTH = 1000, 100
"""Words of a scan, and characters of each."""

# What a scorer answers is checked by these (`proxy.scorer`); every comparison with NaN fails.
Share = Annotated[float, Meta(ge=0, le=1)]
Nats = Annotated[float, Meta(ge=-1000, le=1000)]
Label = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,31}\Z")]

TOKEN_SETS = ("words", "clues", "pairs", "grams")
"""The sets of tokens, by the two top bits of a token's hash: words of the text; all other single
tokens (header fields, hosts, structure, defects, bigrams of scripts without spaces); adjacent
pairs; grams of characters of body and subject, and pairs with a gap of the first tokens beside the
body.
"""


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one message."""

    tokens: NDArray[np.uint32]  # sorted and unique: 2 bits of token set, 30 of keyed hash
    traits: NDArray[np.uint8]  # the value code of each of `mail.TRAITS`
    numbers: NDArray[np.int16]  # each of `mail.NUMBERS`: log-scaled, quantised, bounded


class Vote(NamedTuple):
    """A user's vote on one message, or its tombstone. User "" is the site.

    The key is (digest, user); of two votes of one key the higher version (clock, node) wins.
    """

    digest: bytes
    user: str
    clock: int
    node: str
    label: str | None  # name of the class; None: the vote was taken back
    packed: bytes  # the counted features (`ledger.codec`); empty without a label
    scores: bytes  # the experts' log-odds before it was taught (`ledger.codec`), or empty
    origin: str  # how the vote came: an `Origin`, and perhaps more
    time: int  # seconds since 1970, for people
    extractor: int

    @property
    def version(self) -> tuple[int, str]:
        """Decides between two votes of one key: Lamport clock, then node (Lamport 1978)."""
        return (self.clock, self.node)

    @property
    def has_aged(self) -> bool:
        """Whether this is the tombstone of a vote that has grown too old: no word of the user's."""
        return self.label is None and self.origin == Origin.AGEING

    @property
    def is_retraction(self) -> bool:
        return self.label is None and not self.has_aged


@dataclass(frozen=True, slots=True)
class Verdict:
    """The filter's verdict on one message."""

    label: Label  # name of a class, or "unsure"
    probability: Share  # of being unwanted
    log_odds: Nats  # of being unwanted, by natural logarithm
    probabilities: Mapping[Label, Share]  # of each class; their sum is 1


@dataclass(frozen=True, slots=True)
class Clue:
    """A token in an explanation."""

    text: str  # "" if it is no longer known
    part: float  # what it adds to the log-odds
    counts: Mapping[str, int]  # lessons of each class that have it
    token_set: str = TOKEN_SETS[0]  # one of them


class Word(NamedTuple):
    """A token that weighed in a verdict."""

    token: int  # its hash, as in `Features.tokens`
    text: Annotated[str, Meta(max_length=MAX_WORD_LENGTH)]
    part: Nats  # what it added to the log-odds


@dataclass(frozen=True, slots=True)
class Scan:
    """A verdict, and what is kept of the message once it is gone."""

    verdict: Verdict
    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    packed: bytes  # its features (`ledger.codec`)
    words: Annotated[tuple[Word, ...], Meta(max_length=MAX_WORDS)]  # strongest first
    threshold: Share  # from which probability on the filter calls a message spam
    settle: bool = False  # lessons wait for settling
    personal: Mapping[str, Verdict] = field(default_factory=dict)  # by user, where own votes count
    # digests of its address and domain, if authenticated (`ledger.senders`)
    sender: Annotated[bytes, Meta(max_length=2 * DIGEST_BYTES)] = b""
    line: Annotated[str, Meta(max_length=MAX_LINE)] = ""  # the beginning of its text


@dataclass(frozen=True, slots=True)
class Flip:
    """What would change a label: without its strongest words for one class it would be another."""

    words: int  # how many of them have to go
    speaking_for: str  # the class
    label: str  # that the message would have


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a verdict: the log-odds of being unwanted as a sum of parts, in nats.

    The log-odds are the prior and the shares of all experts; the experts' part of it is the sum of
    clues, traits, numbers, biases and sender. For a user whose own votes count, "personal" is one
    more expert; where a word about the sender counts, so is "sender".
    """

    verdict: Verdict
    favoured: str  # the likeliest class of one side
    against: str  # and of the other
    log_odds: float
    prior: float
    biases: float
    shares: Mapping[str, float]
    scores: Mapping[str, float]
    clues: Sequence[Clue]  # strongest first
    traits: Mapping[str, float]
    numbers: Mapping[str, float]
    few: bool = False  # too few lessons for any label
    cautious: bool = False  # it would be called spam if more good mail were known
    flip: Flip | None = None  # None: no words would do
    sender: float = 0.0
    of_domain: bool = False  # that word is about everybody at the sender's domain


@dataclass(frozen=True, slots=True)
class Status:
    """What the filter knows."""

    classes: Mapping[str, int]  # lessons of each class that has any
    unwanted: frozenset[str]
    buckets: int
    vocabulary: Mapping[str, int]  # buckets in use, by token set
    used: Mapping[str, float]  # their share of all buckets, by token set
    events: int  # number of the last one
    unsettled: int  # events since the error-driven experts were settled
    ledger_bytes: int
    tables_bytes: int  # of the snapshots on the disk, without holes
    extractor: int
    fingerprint: str
    stayed: int  # messages judged to be ham that nobody complained of
