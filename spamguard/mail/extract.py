"""Bytes of one message to `Features`: the only thing the layers above call to read mail. Pure; never raises on bad input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamguard.mail import content as reading
from spamguard.mail.content import Content
from spamguard.mail.limits import DEFAULT_LIMITS, Limits
from spamguard.mail.tokens import CLUES, PAIRS, SKIPS, WORDS, Hashes, Run, TokenHasher, narrow
from spamguard.mail.traits import NUMBERS, TRAITS, numbers, traits
from spamguard.records import Features

# Sections whose order of tokens says little: no pairs (RESULTS.md, "Pairs of which sections")
_UNPAIRED = frozenset((b"tags", b"names", b"address", b"url", b"host", b"clue", b"id-shape", b"id-host", b"date-shape", b"references", b"in-reply-to"))


class Extractor:
    """Reads messages with the installation's key. trusted: authserv-ids whose Authentication-Results count."""

    def __init__(self, key: bytes, limits: Limits = DEFAULT_LIMITS, trusted: frozenset[bytes] = frozenset()) -> None:
        self._hasher = TokenHasher(key)
        self._limits = limits
        self._trusted = trusted

    def features(self, raw: bytes) -> Features:
        """All features of a message: every token set, traits and numbers."""
        content = reading.read(raw, self._limits)
        tokens = np.concatenate([narrow(group.hashes, group.kind) for group in self._groups(content)])
        return Features(unique(tokens), traits(content, self._trusted), numbers(content, len(raw)))

    def words(self, raw: bytes) -> Features:
        """Only the words of the body; traits and numbers are zero. For profiles that look at nothing else."""
        content = reading.read(raw, self._limits, body_only=True)
        run = self._hasher.run(content.sections)
        hashes = [run.hashes, *(bigrams.hashes for bigrams in self._bigrams(content))]
        return Features(unique(narrow(np.concatenate(hashes), WORDS)), np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16))

    def texts(self, raw: bytes) -> dict[int, str]:
        """Readable text of every token of a message, by its hash: for explanations only (one Python object per token)."""
        found: dict[int, str] = {}
        for group in self._groups(reading.read(raw, self._limits)):
            found.update(zip(narrow(group.hashes, group.kind).tolist(), group.names(), strict=True))
        return found

    def _bigrams(self, content: Content) -> list[Run]:
        return [self._hasher.bigrams(section, runs) for section, runs in content.spaceless]

    def _groups(self, content: Content) -> list[Group]:
        run = self._hasher.run(content.sections)
        body = int(run.owner.searchsorted(1))
        every = np.arange(len(run.hashes))
        groups = [Group(WORDS, run.hashes[:body], run, every[:body]), Group(CLUES, run.hashes[body:], run, every[body:])]
        paired = np.array([name not in _UNPAIRED for name, _ in content.sections], np.bool_).take(run.owner)
        groups += [self._pairs(run, paired, gap, kind) for gap, kind in ((0, PAIRS), (1, SKIPS))]
        for bigrams in self._bigrams(content):
            kind = CLUES if bigrams.sections[0] else WORDS
            groups.append(Group(kind, bigrams.hashes, bigrams, np.arange(len(bigrams.hashes))))
            groups.append(self._pairs(bigrams, np.ones(len(bigrams.hashes), np.bool_), 0, PAIRS))
        return groups

    def _pairs(self, run: Run, paired: NDArray[np.bool_], gap: int, kind: np.uint32) -> Group:
        """Tokens with `gap` others between them, never across the border of a section."""
        step = gap + 1
        left = np.flatnonzero((run.owner[step:] == run.owner[:-step]) & paired[step:])
        return Group(kind, self._hasher.pair(run.hashes.take(left), run.hashes.take(left + step), gap), run, left, step)


@dataclass(frozen=True, slots=True)
class Group:
    """Hashes of one kind, and where they come from: token number `left` of the run, paired with the one `step` later."""

    kind: np.uint32
    hashes: Hashes
    run: Run
    left: NDArray[np.intp]
    step: int = 0

    def names(self) -> list[str]:
        """Readable text of each hash."""
        names = self.run.names()
        if not self.step:
            return [names[at] for at in self.left.tolist()]
        between = " " if self.step == 1 else " … "
        return [names[at] + between + names[at + self.step].partition(":")[2] for at in self.left.tolist()]


def unique(tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sorted, without repeats; `tokens` is sorted in place."""
    tokens.sort()
    if len(tokens) < 2:
        return tokens
    keep = np.empty(len(tokens), np.bool_)
    keep[0] = True
    np.not_equal(tokens[1:], tokens[:-1], out=keep[1:])
    return tokens[keep]
