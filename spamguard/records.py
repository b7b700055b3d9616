"""The values that travel between the rooms.

Data only. All values are immutable; arrays are passed by reference, and nobody may write to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta

if TYPE_CHECKING:  # the master imports this module
    import numpy as np
    from numpy.typing import NDArray

EXTRACTOR = 3
"""Version of what `spamguard.mail` extracts; features of two versions are never mixed. Each release
that changes the features raises it.
"""
EXTRACTOR_FINGERPRINT = "d455937c3928"
"""Of the features of made-up mail by that version (`tests/contract/test_extractor.py`)."""

DIGEST_BYTES = 16
"""Of the digest of a message, and of a sender."""

MAX_LINE = 120
"""Characters of the line that is kept of a text."""

SENDER_PREFIX = b"snd"
"""With which the digests of senders begin."""

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
    """The features of one message.

    tokens: uint32, shape (n,), sorted and unique: two bits of token set, thirty bits of keyed hash.
    traits: uint8, shape (len(mail.TRAITS),): value code of each categorical trait.
    numbers: int16, shape (len(mail.NUMBERS),): each numeric trait, log-scaled, quantised, bounded.
    """

    tokens: NDArray[np.uint32]
    traits: NDArray[np.uint8]
    numbers: NDArray[np.int16]


AGEING_ORIGIN = "ageing"
"""Origin of the tombstones of votes that have grown too old (`learning.undo`)."""


class Vote(NamedTuple):
    """A user's vote on one message, or its tombstone. User "" is the site.

    The key is (digest, user); of two votes of one key the higher version (clock, node) wins. label:
    name of the class; None: the vote was taken back. packed: the counted features
    (`ledger.codec`), empty without a label. scores: the experts' log-odds before anybody taught the
    message, quantised (`ledger.codec`); may be empty. origin: how the vote came ("cli", a folder
    …). time: seconds since 1970, for people.
    """

    digest: bytes
    user: str
    clock: int
    node: str
    label: str | None
    packed: bytes
    scores: bytes
    origin: str
    time: int
    extractor: int

    @property
    def version(self) -> tuple[int, str]:
        """Decides between two votes of one key: Lamport clock, then node (Lamport 1978)."""
        return (self.clock, self.node)

    @property
    def has_aged(self) -> bool:
        """Whether this is the tombstone of a vote that has grown too old: no word of the user's."""
        return self.label is None and self.origin == AGEING_ORIGIN

    @property
    def is_retraction(self) -> bool:
        """Whether the user has taken the vote back."""
        return self.label is None and not self.has_aged


@dataclass(frozen=True, slots=True)
class Verdict:
    """The filter's verdict on one message.

    label: name of a class, or "unsure". probability: of being unwanted, in [0, 1]. log_odds:
    natural logarithm of the odds of being unwanted. probabilities: class name to probability, sum
    1.
    """

    label: Label
    probability: Share
    log_odds: Nats
    probabilities: Mapping[Label, Share]


@dataclass(frozen=True, slots=True)
class Clue:
    """A token in an explanation.

    text: "" if it is no longer known. part: what it adds to the log-odds. counts: lessons of each
    class that have it. token_set: one of `TOKEN_SETS`.
    """

    text: str
    part: float
    counts: Mapping[str, int]
    token_set: str = TOKEN_SETS[0]


class Word(NamedTuple):
    """A token that weighed in a verdict.

    token: its hash, as in `Features.tokens`. part: what it added to the log-odds.
    """

    token: int
    text: Annotated[str, Meta(max_length=MAX_WORD_LENGTH)]
    part: Nats


@dataclass(frozen=True, slots=True)
class Scan:
    """A verdict, and what is kept of the message once it is gone.

    packed: its features (`ledger.codec`). words: the strongest, strongest first. threshold:
    probability from which on the filter calls a message spam. settle: whether lessons wait for
    settling. personal: the verdict for each user whose own votes count. sender: the digest of words
    about its sender, where that is authenticated (`ledger.senders`). line: the beginning of its
    text, where there are words.
    """

    verdict: Verdict
    digest: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    packed: bytes
    words: Annotated[tuple[Word, ...], Meta(max_length=MAX_WORDS)]
    threshold: Share
    settle: bool = False
    personal: Mapping[str, Verdict] = field(default_factory=dict)
    sender: Annotated[bytes, Meta(max_length=DIGEST_BYTES)] = b""
    line: Annotated[str, Meta(max_length=MAX_LINE)] = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a verdict: the log-odds of being unwanted as a sum of parts, in nats.

    The log-odds are the prior and the shares of all experts; the experts' part of it is the sum of
    clues, traits, numbers, biases and sender. For a user whose own votes count, "personal" is one
    more expert; where a word about the sender counts, so is "sender". favoured, against: the
    likeliest class of each side. clues: strongest first. flip: how many of the strongest clues
    would have to go for another label; None: even all would not do. few: no words would, for want
    of lessons. cautious: it would be called spam if more good mail were known.
    """

    verdict: Verdict
    favoured: str
    against: str
    log_odds: float
    prior: float
    biases: float
    shares: Mapping[str, float]
    scores: Mapping[str, float]
    clues: Sequence[Clue]
    traits: Mapping[str, float]
    numbers: Mapping[str, float]
    to_threshold: float
    flip: int | None
    few: bool = False
    cautious: bool = False
    sender: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """What the filter knows.

    classes: lessons of each class that has any. vocabulary: buckets in use, by token set. used:
    their share of all, which is also the expected share of new tokens that fall on one in use.
    events: number of the last event. unsettled: events since the error-driven experts were
    settled. tables_bytes: of the snapshots on the disk, without holes.
    """

    classes: Mapping[str, int]
    unwanted: frozenset[str]
    buckets: int
    vocabulary: Mapping[str, int]
    used: Mapping[str, float]
    events: int
    unsettled: int
    ledger_bytes: int
    tables_bytes: int
    extractor: int
    fingerprint: str
