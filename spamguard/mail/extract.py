"""Bytes of one message to `Features`: the only thing the layers above call to read mail. Pure; never raises on bad input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spamguard.mail import content as reading
from spamguard.mail.content import Content
from spamguard.mail.fields import Section
from spamguard.mail.limits import DEFAULT_LIMITS, Limits
from spamguard.mail.tokens import CLUES, PAIRS, SKIPS, WORDS, Hashes, Run, TokenHasher, narrow
from spamguard.mail.traits import NUMBERS, TRAITS, numbers, traits
from spamguard.records import Features

# Sections whose order of tokens says little: no pairs (RESULTS.md, "Pairs of which sections")
_UNPAIRED = frozenset(
    (b"tags", b"names", b"address", b"url", b"host", b"clue", b"id-shape", b"id-host", b"date-shape", b"references", b"in-reply-to")
)
# Pairs with a gap are made of so many tokens from the start on, the body's first (RESULTS.md, "How much text")
_SKIPPED = 100


class Extractor:
    """Reads messages with the installation's key. trusted: authserv-ids whose Authentication-Results count."""

    def __init__(self, key: bytes, limits: Limits = DEFAULT_LIMITS, trusted: frozenset[bytes] = frozenset()) -> None:
        self._hasher = TokenHasher(key)
        self._limits = limits
        self._trusted = frozenset(host.lower() for host in trusted)

    def features(self, raw: bytes) -> Features:
        """All features of a message: every token set, traits and numbers."""
        content = reading.read(raw, self._limits)
        tokens = _counted(self._groups(content))
        return Features(tokens, traits(content, self._trusted), numbers(content, _body_size(content, raw, self._limits)))

    def words(self, raw: bytes) -> Features:
        """Only the words of the body; traits and numbers are zero. For profiles that look at nothing else."""
        content = reading.read(raw, self._limits, body_only=True)
        runs = [self._hasher.run(content.sections), *self._bigrams(content)]
        tokens = _counted([Group(WORDS, run.hashes, run) for run in runs])
        return Features(tokens, np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16))

    def texts(self, raw: bytes) -> dict[int, str]:
        """Readable text of every token of a message, by its hash: for explanations only (one Python object per token)."""
        found: dict[int, str] = {}
        for group in self._groups(reading.read(raw, self._limits)):
            found.update(zip((narrow(group.hashes) | group.kind).tolist(), group.names(), strict=True))
        return found

    def _bigrams(self, content: Content) -> list[Run]:
        return [self._hasher.bigrams(section, runs) for section, runs in content.spaceless]

    def _groups(self, content: Content) -> list[Group]:
        # stable: what may be paired comes first, so that a slice holds it
        content.sections.sort(key=_is_unpaired)
        run = self._hasher.run(content.sections)
        body = int(run.counts[0])
        paired = int(run.counts[: sum([name not in _UNPAIRED for name, _ in content.sections])].sum())
        groups = [Group(WORDS, run.hashes[:body], run), Group(CLUES, run.hashes[body:], run, body)]
        groups += [self._pairs(run, paired, 0, PAIRS), self._pairs(run, min(paired, _SKIPPED), 1, SKIPS)]
        for bigrams in self._bigrams(content):
            groups.append(Group(CLUES if bigrams.sections[0] else WORDS, bigrams.hashes, bigrams))
            groups.append(self._pairs(bigrams, len(bigrams.hashes), 0, PAIRS))
        return groups

    def _pairs(self, run: Run, length: int, gap: int, kind: np.uint32) -> Group:
        """Of the first `length` tokens those with `gap` others between them, never across the border of a section."""
        step = gap + 1
        inside = run.bound[step:length] == run.bound[: max(length - step, 0)]
        return Group(kind, self._hasher.pairs(run.hashes[:length], gap)[inside], run, 0, step, inside)


def _is_unpaired(section: Section) -> bool:
    return section[0] in _UNPAIRED


@dataclass(frozen=True, slots=True)
class Group:
    """Hashes of one kind, and where they come from: the tokens of a run from number `first` on; or, if there is a step,
    the tokens `chosen` (a mask) of the run, each with the one `step` later."""

    kind: np.uint32
    hashes: Hashes
    run: Run
    first: int = 0
    step: int = 0
    chosen: NDArray[np.bool_] | None = None

    def names(self) -> list[str]:
        """Readable text of each hash."""
        names = self.run.names()
        if self.chosen is None:
            return names[self.first : self.first + len(self.hashes)]
        between = " " if self.step == 1 else " … "
        return [names[at] + between + names[at + self.step].rpartition(":")[2] for at in np.flatnonzero(self.chosen).tolist()]


def _counted(groups: list[Group]) -> NDArray[np.uint32]:
    """The distinct tokens of all groups, sorted: two bits of token set, thirty bits of hash."""
    tokens = narrow(np.concatenate([group.hashes for group in groups]))
    position = 0
    for group in groups:
        tokens[position : position + len(group.hashes)] |= group.kind
        position += len(group.hashes)
    return unique(tokens)


def _body_size(content: Content, raw: bytes, limits: Limits) -> int:
    """Bytes behind the header block: the header grows on the way, by fields that are no evidence."""
    return len(content.message.body) + max(len(raw) - limits.message_bytes, 0)


def unique(tokens: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Sorted, without repeats; `tokens` is sorted in place."""
    tokens.sort()
    if len(tokens) < 2:
        return tokens
    keep = np.empty(len(tokens), np.bool_)
    keep[0] = True
    np.not_equal(tokens[1:], tokens[:-1], out=keep[1:])
    return tokens[keep]
