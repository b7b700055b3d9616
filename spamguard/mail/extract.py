"""Bytes of one message to `Features`: the only thing the layers above call to read mail. Pure; never raises on bad input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamguard.mail import content as reading
from spamguard.mail.content import Content
from spamguard.mail.fields import Section
from spamguard.mail.limits import DEFAULT_LIMITS, Limits
from spamguard.mail.split import Split
from spamguard.mail.tokens import BETWEEN, CLUES, GRAMS, PAIRS, WORDS, Compiled, Run, TokenHasher, narrow
from spamguard.mail.traits import NUMBERS, TRAITS, numbers, traits
from spamguard.records import Features, Word

# Sections whose order of tokens says little: no pairs (RESULTS.md, "Pairs of which sections")
_UNPAIRED = frozenset(
    (b"end", b"tags", b"names", b"address", b"url", b"host", b"clue", b"id-shape", b"id-host", b"date-shape", b"references", b"in-reply-to")
)
_BODY = frozenset((b"",))
_LETTERED = frozenset((b"", b"subject"))  # what people write: grams of its characters
_SKIPPED = 50  # so many tokens beside the body's, from the first on, make pairs with a gap (RESULTS.md, "Grams of characters")
_KINDS = np.array((WORDS, CLUES, PAIRS, GRAMS))

Whole = TypeVar("Whole", np.uint32, np.uint64)


class Extractor:
    """Reads messages with the installation's key."""

    def __init__(self, key: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        self._hasher = TokenHasher(key)
        self._limits = limits

    def features(self, raw: bytes) -> Features:
        """All features of a message: every token set, traits and numbers."""
        return self.read([raw])[0].features

    def repeating(self, raw: bytes) -> Reading:
        """The same, but tokens may repeat: whoever wants buckets finds some that repeat anyway, and need not look twice."""
        content = reading.read(raw, self._limits)
        compiled = self._compiled(content)
        if compiled is not None:
            return self._reading(raw, content, compiled.distinct())
        tokens = self._tokens([content])[0] if content.spaceless else self._tokens_of_one(content.sections)
        tokens.sort()
        return self._reading(raw, content, tokens)

    def read(self, messages: Sequence[bytes]) -> list[Reading]:
        """The features of several messages: each is taken apart by itself, all are hashed in one pass, which costs less."""
        contents = [reading.read(raw, self._limits) for raw in messages]
        tokens = self._tokens(contents)
        return [self._reading(raw, content, mine) for raw, content, mine in zip(messages, contents, tokens, strict=True)]

    def _reading(self, raw: bytes, content: Content, tokens: NDArray[np.uint32]) -> Reading:
        size = _body_size(content, raw, self._limits)
        return Reading(content.message, Features(tokens, traits(content), numbers(content, size)))

    def read_named(self, raw: bytes) -> tuple[Reading, Named]:
        """The features of one message, and a way to its words."""
        content = reading.read(raw, self._limits)
        compiled = self._compiled(content)
        if compiled is not None:
            return self._reading(raw, content, compiled.distinct()), compiled
        if content.spaceless:
            groups = self._groups([content])
            tokens = np.concatenate([group.tokens for group in groups])
            return self._reading(raw, content, unique(tokens.copy())), _Listed(tokens, groups)
        tokens, kept, run = self._hashed(content.sections)
        grams = list(self._grams(0, content.sections))
        letters = [group.tokens for group in grams]
        counted = np.where(kept, tokens, tokens[:1])  # what does not count is never the first of its kind
        named = _Listed(np.concatenate((counted, *letters)), [*_in_order(tokens, run), *grams])
        return self._reading(raw, content, unique(np.concatenate((tokens[kept], *letters)))), named

    def words(self, raw: bytes) -> Features:
        """Only the words of the body; traits and numbers are zero. For profiles that look at nothing else."""
        return self.read_words([raw])[0]

    def read_words(self, messages: Sequence[bytes]) -> list[Features]:
        """The same for several messages in one pass."""
        contents = [reading.read(raw, self._limits, body_only=True) for raw in messages]
        return [Features(mine, np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16)) for mine in self._words(contents)]

    def _words(self, contents: list[Content]) -> list[NDArray[np.uint32]]:
        if len(contents) == 1 and not contents[0].spaceless:
            compiled = self._hasher.compiled(contents[0].sections, _BODY)
            if compiled is not None:
                return [compiled.distinct()]
        run = self._hasher.run([content.sections[0] for content in contents])
        owner = np.arange(len(contents)).repeat(run.counts)
        groups = [Group(narrow(run.hashes) | WORDS, owner, run, np.arange(len(owner))), *self._spaceless(contents, pairs=False)]
        return _counted(groups, len(contents))

    def texts(self, raw: bytes) -> dict[int, str]:
        """Readable text of every token of a message, by its hash: for explanations only (one Python object per token)."""
        found: dict[int, str] = {}
        for group in self._groups([reading.read(raw, self._limits)]):
            found.update(zip(group.tokens.tolist(), group.names(), strict=True))
        return found

    def _tokens(self, contents: list[Content]) -> list[NDArray[np.uint32]]:
        """The distinct tokens of each message, sorted."""
        found = [self._compiled(content) for content in contents]
        others = [content for content, compiled in zip(contents, found, strict=True) if compiled is None]
        rest = iter(self._by_numpy(others) if others else ())
        return [next(rest) if compiled is None else compiled.distinct() for compiled in found]

    def _compiled(self, content: Content) -> Compiled | None:
        """Those of one message by the kernel, if it can: it knows nothing of scripts without spaces."""
        return None if content.spaceless else self._hasher.compiled(content.sections, _UNPAIRED, _SKIPPED, _LETTERED)

    def _by_numpy(self, contents: list[Content]) -> list[NDArray[np.uint32]]:
        if len(contents) == 1 and not contents[0].spaceless:
            return [unique(self._tokens_of_one(contents[0].sections))]
        return _counted(self._groups(contents), len(contents))

    def _tokens_of_one(self, sections: list[Section]) -> NDArray[np.uint32]:
        """The same as by `_groups`, in half the time: what is in order of its own accord need not be looked up. In no order yet."""
        tokens, kept, _ = self._hashed(sections)
        return np.concatenate((tokens[kept], *[group.tokens for group in self._grams(0, sections)]))

    def _hashed(self, sections: list[Section]) -> tuple[NDArray[np.uint32], NDArray[np.bool_], Run]:
        """All single tokens of one message, neighbours and skips; which of them count; where they stand."""
        run = self._hasher.run(sections, _UNPAIRED)
        words, singles = int(run.counts[0]), len(run.hashes)
        pairs, skips = max(singles - 1, 0), max(min(singles - words, _SKIPPED) - 2, 0)
        tokens = narrow(self._hasher.with_neighbours(run.hashes, words, skips))
        tokens |= _KINDS.repeat((words, singles - words, pairs, skips))
        gapped = run.joined[words : words + skips] & run.joined[words + 1 : words + skips + 1]
        return tokens, np.concatenate((np.ones(singles, np.bool_), run.joined[:pairs], gapped)), run

    def _groups(self, contents: list[Content]) -> list[Group]:
        """All tokens of some messages."""
        sections = [section for content in contents for section in content.sections]
        run = self._hasher.run(sections, _UNPAIRED)
        owner = np.arange(len(contents)).repeat([len(content.sections) for content in contents]).repeat(run.counts)
        kinds = np.where([name != b"" for name, _ in sections], CLUES, WORDS).repeat(run.counts)
        groups = [Group(narrow(run.hashes) | kinds, owner, run, np.arange(len(owner)))]
        grams = [group for number, content in enumerate(contents) for group in self._grams(number, content.sections)]
        return [*groups, self._pairs(run, owner), self._skips(run, owner, kinds), *grams, *self._spaceless(contents, pairs=True)]

    def _spaceless(self, contents: list[Content], *, pairs: bool) -> Iterator[Group]:
        """Bigrams of scripts without spaces, and pairs of them."""
        for number, content in enumerate(contents):
            for section, text in content.spaceless:
                run = self._hasher.bigrams(section, text)
                owner = np.full(len(run.hashes), number)
                yield Group(narrow(run.hashes) | (CLUES if section else WORDS), owner, run, np.arange(len(owner)))
                if pairs:
                    yield self._pairs(run, owner)

    def _pairs(self, run: Run, owner: NDArray[np.intp]) -> Group:
        """Neighbouring tokens, never across the border of a section."""
        left = run.joined.nonzero()[0]
        hashes = self._hasher.pairs(run.hashes.take(left), run.hashes.take(left + 1), 0)
        return Group(narrow(hashes) | PAIRS, owner.take(left), run, left, 1)

    def _skips(self, run: Run, owner: NDArray[np.intp], kinds: NDArray[np.uint32]) -> Group:
        """The first tokens beside the body's with one other between."""
        beside = kinds == CLUES
        before = beside.cumsum() - beside
        early = beside & (before - before.take(owner.searchsorted(owner)) < _SKIPPED)
        left = (run.joined[:-2] & run.joined[1:-1] & early[:-2] & early[2:]).nonzero()[0]
        hashes = self._hasher.pairs(run.hashes.take(left), run.hashes.take(left + 2), 1)
        return Group(narrow(hashes) | GRAMS, owner.take(left), run, left, 2)

    def _grams(self, number: int, sections: list[Section]) -> Iterator[Group]:
        """Characters of message `number`, several at a time."""
        for name, text in sections:
            if name in _LETTERED:
                run = self._hasher.grams(text)
                places = np.arange(len(run.hashes))
                yield Group(narrow(run.hashes) | GRAMS, np.full(len(places), number), run, places)


class Reading(NamedTuple):
    """A message taken apart, and its features."""

    message: Split
    features: Features


class Group(NamedTuple):
    """Tokens, each with the number of its message, and where they come from: token number `left` of a run, paired with
    the one `step` later."""

    tokens: NDArray[np.uint32]
    owner: NDArray[np.intp]
    run: Run
    left: NDArray[np.intp]
    step: int = 0

    def names(self) -> list[str]:
        """Readable text of each token."""
        return list(map(self.name, range(len(self.left))))

    def name(self, number: int) -> str:
        """Readable text of one token."""
        left = int(self.left[number])
        if not self.step:
            return self.run.name(left)
        return self.run.name(left) + BETWEEN[self.step] + self.run.name(left + self.step).rpartition(":")[2]


class Named(Protocol):
    """A way to the words of one message."""

    def words(self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int) -> tuple[Word, ...]:
        """The tokens in these buckets (each `token >> shift`), of several in one the first, with what each bucket adds."""


class _Listed(NamedTuple):
    """All tokens of one message, repeats among them, and the groups they come from, to look up the text of a few."""

    tokens: NDArray[np.uint32]
    groups: list[Group]

    def words(self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int) -> tuple[Word, ...]:
        if not len(buckets):
            return ()
        places = (buckets.astype(np.uint32)[:, np.newaxis] == self.tokens >> np.uint32(shift)).argmax(axis=1)
        found = zip(self.tokens.take(places).tolist(), map(self._text, places.tolist()), parts.tolist(), strict=True)
        return tuple([Word(*one) for one in found])

    def _text(self, place: int) -> str:
        for group in self.groups:
            if place < len(group.tokens):
                return group.name(place)
            place -= len(group.tokens)
        raise IndexError(place)


def _in_order(tokens: NDArray[np.uint32], run: Run) -> list[Group]:
    """Single tokens, neighbours and skips of one message as `Extractor._hashed` gives them, in groups."""
    singles, words = len(run.hashes), int(run.counts[0])
    pairs, places = max(singles - 1, 0), np.arange(singles)
    parts = np.split(tokens, (singles, singles + pairs))
    firsts = (0, 0, words)  # where each begins in the run
    return [
        Group(part, places[: len(part)], run, places[first : first + len(part)], step)
        for step, (part, first) in enumerate(zip(parts, firsts, strict=True))
    ]


def _counted(groups: list[Group], messages: int) -> list[NDArray[np.uint32]]:
    """The distinct tokens of each message, sorted."""
    tokens = np.concatenate([group.tokens for group in groups])
    if messages == 1:
        return [unique(tokens)]
    keyed = np.concatenate([group.owner for group in groups]).astype(np.uint64) << np.uint64(32)
    keyed |= tokens
    distinct = unique(keyed)
    borders = distinct.searchsorted(np.arange(1, messages, dtype=np.uint64) << np.uint64(32))
    return np.split(distinct.astype(np.uint32), borders)


def _body_size(content: Content, raw: bytes, limits: Limits) -> int:
    """Bytes behind the header block: the header grows on the way, by fields that are no evidence."""
    return len(content.message.body) + max(len(raw) - limits.message_bytes, 0)


def unique(tokens: NDArray[Whole]) -> NDArray[Whole]:
    """Sorted, without repeats; `tokens` is sorted in place."""
    tokens.sort()
    return without_repeats(tokens)


def without_repeats(tokens: NDArray[Whole]) -> NDArray[Whole]:
    """Those of sorted ones."""
    if len(tokens) < 2:
        return tokens
    keep = np.empty(len(tokens), np.bool_)
    keep[0] = True
    np.not_equal(tokens[1:], tokens[:-1], out=keep[1:])
    return tokens[keep]
