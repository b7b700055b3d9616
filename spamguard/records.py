"""The values that travel between the layers. Data only: no behaviour, no I/O.

Everything here is immutable; arrays are handed over by reference and never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EXTRACTOR = 1  # version of what `spamguard.mail` extracts; features of different versions are never mixed

TOKEN_SETS = ("words", "clues", "pairs", "skips")
"""The sets of tokens, by the two top bits of a token's hash: words of the text; all other single tokens (header
fields, hosts, structure, defects, bigrams of scripts without spaces); adjacent pairs; pairs with a gap."""


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


@dataclass(frozen=True, slots=True)
class Vote:
    """One person's (or the site's, user "") vote on one message: a receipt, or its tombstone.

    Key is (digest, user); of two votes with the same key the higher version (clock, node) wins.
    label: name of the class, or None: the vote is taken back.
    packed: the counted features (`ledger.codec`), empty when label is None.
    scores: the experts' log-odds before the message was taught, quantised (`ledger.codec`), may be empty.
    origin: where it was said ("cli", a folder …); time: seconds since 1970, for people, never for arithmetic.
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

    label: name of a class, or "unsure". probability: of being unwanted, in [0, 1].
    log_odds: natural logarithm of the odds of being unwanted. probabilities: class name to probability, sum 1.
    """

    label: str
    probability: float
    log_odds: float
    probabilities: Mapping[str, float]
