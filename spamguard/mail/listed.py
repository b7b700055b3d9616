"""Single words of other filters' lists as tokens of ours. Pure.

A word of a list has a counterpart here if our reading of a message would make exactly one token of it, in its section.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spamguard.mail.decode import fold
from spamguard.mail.scripts import has_spaceless
from spamguard.mail.tokens import CLUES, WORDS, TokenHasher, narrow

_LONGEST = 64  # characters; filters cut words off much earlier


class ListedWords:
    """Hashes of listed words. key: of the extractor, as `mail.extract.Extractor` takes it."""

    def __init__(self, key: bytes) -> None:
        self._hasher = TokenHasher(key)

    def tokens(self, words: Sequence[tuple[bytes, str]]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Tokens of words, each with its section (b"" is the body), and which have one at all: uint32 and bool, (len(words),)."""
        run = self._hasher.run([(section, _folded(word)) for section, word in words])
        found = run.counts == 1
        kinds = np.where([section != b"" for section, _ in words], CLUES, WORDS)
        tokens = np.zeros(len(words), np.uint32)
        tokens[found] = narrow(run.hashes[found.repeat(run.counts)]) | kinds[found]
        return tokens, found


def _folded(word: str) -> bytes:
    """As the text of a message is. Runs of scripts without spaces become bigrams there, never words."""
    text = word[: _LONGEST + 1]
    return b"" if len(text) > _LONGEST or has_spaceless(text) else fold(text.lower()).encode("utf-8", "replace")
