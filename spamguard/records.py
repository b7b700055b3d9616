"""The values that travel between the layers. Data only: no behaviour, no I/O.

Everything here is immutable; arrays are handed over by reference and never written to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the master imports this module
    import numpy as np
    from numpy.typing import NDArray

# version of what `spamguard.mail` extracts, raised by each release that changes it; features of two
# are never mixed
EXTRACTOR = 3

TOKEN_SETS = ("words", "clues", "pairs", "grams")
"""The sets of tokens, by the two top bits of a token's hash: words of the text; all other single
tokens (header fields, hosts, structure, defects, bigrams of scripts without spaces); adjacent
pairs; grams of characters of body and subject, and pairs with a gap of the first tokens beside the
body.
"""


@dataclass(frozen=True, slots=True)
class Features:
    """What one message says, as numbers.

    tokens: uint32, shape (n,), sorted and unique: two bits of token set, thirty bits of keyed hash.
    traits: uint8, shape (len(mail.TRAITS),): value code of each categorical trait.
    numbers: int16, shape (len(mail.NUMBERS),): each numeric trait, log-scaled, quantised, bounded.
    """

    tokens: NDArray[np.uint32]
    traits: NDArray[np.uint8]
    numbers: NDArray[np.int16]


class Vote(NamedTuple):
    """One person's (or the site's, user "") vote on one message: a receipt, or its tombstone.

    Key is (digest, user); of two votes with the same key the higher version (clock, node) wins.
    label: name of the class, or None: the vote is taken back. packed: the counted features
    (`ledger.codec`), empty when label is None. scores: the experts' log-odds before the message was
    taught, quantised (`ledger.codec`), may be empty. origin: where it was said ("cli", a folder …);
    time: seconds since 1970, for people, never for arithmetic.
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
        """What decides between two votes of the same key: Lamport clock, then node (Lamport 1978)."""
        return (self.clock, self.node)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the filter thinks of one message.

    label: name of a class, or "unsure". probability: of being unwanted, in [0, 1]. log_odds:
    natural logarithm of the odds of being unwanted. probabilities: class name to probability, sum
    1.
    """

    label: str
    probability: float
    log_odds: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Clue:
    """One token: its text ("": not known any more), what it adds to the log-odds, and in how many
    lessons of each class it was.
    """

    text: str
    part: float
    counts: Mapping[str, int]


class Word(NamedTuple):
    """A token that weighed in a verdict: its hash (as in `Features.tokens`), its text, what it
    added to the log-odds.
    """

    token: int
    text: str
    part: float


@dataclass(frozen=True, slots=True)
class Scan:
    """A verdict and what is kept of a message once it is gone. packed: its features
    (`ledger.codec`).

    words: the strongest, strongest first. threshold: probability from which on the filter calls a
    message spam. settle: lessons wait for settling. personal: by user, the verdict for the mail of
    those who have said anything that counts.
    """

    verdict: Verdict
    digest: bytes
    packed: bytes
    words: tuple[Word, ...]
    threshold: float
    settle: bool = False
    personal: Mapping[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a verdict: the log-odds of being unwanted as a sum of parts, in nats. favoured, against:
    the likeliest class of each side.

    prior + the shares of all experts = log_odds; the same experts by feature: clues + traits +
    numbers + biases. Judged for a user who has said anything that counts, "personal" is one more
    expert: of what the user's own votes say (score), as far as it is believed. clues: strongest
    first. flip: how many of the strongest clues would have to go for another label, None: all
    together do not do it. few: no words would, for want of lessons. spam_from: the log-odds from
    which on this message is called spam where it needs more than usual, since little good mail is
    known; None: as usual.
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
    spam_from: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What the filter knows. classes: lessons of each, none of those that were only defined so far.
    vocabulary, used: by token set, buckets in use and their share of all, which is also the
    expected share of new tokens that fall on one in use. events: number of the last; unsettled:
    since the error-driven experts were settled. tables_bytes: of the snapshots on the disk, holes
    not counted.
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
