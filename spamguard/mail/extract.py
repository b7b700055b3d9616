"""Bytes of one message to `Features`.

A message is taken apart (`mime`), read into sections of text (`content`), and hashed: by the
compiled functions where they exist, else by numpy, with the same result bit for bit. Traits and
numbers come beside the tokens.

This is the only module through which the layers above read mail. Pure; must never raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spamguard.mail.content import (
    NUMBERS,
    TRAITS,
    MessageContent,
    compute_numbers,
    compute_traits,
    read_content,
)
from spamguard.mail.headers import Section
from spamguard.mail.mime import DEFAULT_LIMITS, MimeMessage, ParseLimits, parse_message
from spamguard.mail.tokens import (
    CLUES,
    GRAMS,
    PAIR_SEPARATORS,
    PAIRS,
    WORDS,
    NativeTokens,
    TokenHasher,
    TokenRun,
    narrow_hashes,
)
from spamguard.records import Features, Word

# Sections whose order of tokens says little: no pairs (RESULTS.md, "Pairs of which sections").
_UNPAIRED_SECTIONS = frozenset(
    b"end tags names address url host clue id-shape id-host date-shape references"
    b" in-reply-to".split()
)
_BODY_SECTIONS = frozenset((b"",))
_GRAM_SECTIONS = frozenset((b"", b"subject"))  # what people write
# How many tokens behind the body's make pairs with a gap (RESULTS.md, "Grams of characters").
_MAX_SKIPS = 50
_TOKEN_SETS = np.array((WORDS, CLUES, PAIRS, GRAMS))

UnsignedInteger = TypeVar("UnsignedInteger", np.uint32, np.uint64)


class ExtractedMessage(NamedTuple):
    """A message taken apart, and its features."""

    message: MimeMessage
    features: Features


class FeatureExtractor:
    """Reads messages with the installation's key."""

    def __init__(self, key: bytes, limits: ParseLimits = DEFAULT_LIMITS) -> None:
        self._hasher = TokenHasher(key)
        self._limits = limits

    def split(self, raw: bytes) -> MimeMessage:
        """The message taken apart, for `message_digest` and `features`."""
        return parse_message(raw, self._limits)

    def features(self, raw: bytes, message: MimeMessage | None = None) -> Features:
        """All features of a message: every token set, traits and numbers.

        message: from `split`, if the message was taken apart.
        """
        content = read_content(raw, self._limits, message=message)
        (tokens,) = self._distinct_tokens([content])
        return self._make_result(raw, content, tokens).features

    def read_with_repeats(self, raw: bytes) -> ExtractedMessage:
        """The features of a message; tokens are sorted and may repeat.

        For judging: buckets of tokens repeat anyway, so repeats are dropped there, once.
        """
        content = read_content(raw, self._limits)
        native = self._native_tokens(content)
        if native is not None:
            return self._make_result(raw, content, native.distinct_tokens())
        if content.spaceless:
            tokens = _distinct_by_message(self._token_groups([content]), 1)[0]
        else:
            tokens = self._tokens_of_one(content.sections)
            tokens.sort()
        return self._make_result(raw, content, tokens)

    def read_batch(self, messages: Sequence[bytes]) -> list[ExtractedMessage]:
        """The features of several messages, hashed in one pass, which costs less for each."""
        contents = [read_content(raw, self._limits) for raw in messages]
        return [
            self._make_result(raw, content, tokens)
            for raw, content, tokens in zip(
                messages, contents, self._distinct_tokens(contents), strict=True
            )
        ]

    def read_with_words(self, raw: bytes) -> tuple[ExtractedMessage, WordFinder]:
        """The features of one message, and a way to its words."""
        content = read_content(raw, self._limits)
        native = self._native_tokens(content)
        if native is not None:
            return self._make_result(raw, content, native.distinct_tokens()), native
        if content.spaceless:
            groups = self._token_groups([content])
            candidates = np.concatenate([group.tokens for group in groups])
            tokens = candidates.copy()
        else:
            hashed, counts, run = self._hash_sections(content.sections)
            gram_groups = list(self._gram_groups(0, content.sections))
            grams = [group.tokens for group in gram_groups]
            groups = [*_group_neighbours(hashed, run), *gram_groups]
            # A pair that does not count must not be found: it repeats the first token instead.
            candidates = np.concatenate((np.where(counts, hashed, hashed[:1]), *grams))
            tokens = np.concatenate((hashed[counts], *grams))
        return self._make_result(raw, content, sort_unique(tokens)), _TokenList(candidates, groups)

    def _make_result(
        self, raw: bytes, content: MessageContent, tokens: NDArray[np.uint32]
    ) -> ExtractedMessage:
        # The header grows on the way by fields that are no evidence, so only the body counts.
        size = len(content.message.body) + max(len(raw) - self._limits.message_bytes, 0)
        features = Features(tokens, compute_traits(content), compute_numbers(content, size))
        return ExtractedMessage(content.message, features)

    def word_features(self, raw: bytes) -> Features:
        """The words of the body only, for profiles that look at nothing else.

        Traits and numbers are zero.
        """
        return self.word_features_batch([raw])[0]

    def word_features_batch(self, messages: Sequence[bytes]) -> list[Features]:
        """`word_features` of several messages in one pass."""
        contents = [read_content(raw, self._limits, body_only=True) for raw in messages]
        native = None
        if len(contents) == 1 and not contents[0].spaceless:
            native = self._hasher.native_tokens(contents[0].sections, _BODY_SECTIONS)
        if native is not None:
            by_message = [native.distinct_tokens()]
        else:
            run = self._hasher.hash_tokens([content.sections[0] for content in contents])
            owners = np.arange(len(contents)).repeat(run.counts)
            tokens = narrow_hashes(run.hashes) | WORDS
            groups = [
                TokenGroup(tokens, owners, run, np.arange(len(owners))),
                *self._spaceless_groups(contents, pairs=False),
            ]
            by_message = _distinct_by_message(groups, len(contents))
        return [
            Features(tokens, np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16))
            for tokens in by_message
        ]

    def token_texts(self, raw: bytes) -> dict[int, str]:
        """Readable text of every token of a message, by its hash.

        For explanations only: it makes one Python object for each token.
        """
        texts: dict[int, str] = {}
        for group in self._token_groups([read_content(raw, self._limits)]):
            texts.update(zip(group.tokens.tolist(), group.token_texts(), strict=True))
        return texts

    def _native_tokens(self, content: MessageContent) -> NativeTokens | None:
        """Tokens by the compiled functions, which cannot do scripts without spaces."""
        if content.spaceless:
            return None
        return self._hasher.native_tokens(
            content.sections, _UNPAIRED_SECTIONS, _MAX_SKIPS, _GRAM_SECTIONS
        )

    def _distinct_tokens(self, contents: list[MessageContent]) -> list[NDArray[np.uint32]]:
        """The distinct tokens of each message, sorted."""
        natives = [self._native_tokens(content) for content in contents]
        others = [
            content for content, native in zip(contents, natives, strict=True) if native is None
        ]
        if len(others) == 1 and not others[0].spaceless:
            by_numpy = iter([sort_unique(self._tokens_of_one(others[0].sections))])
        else:
            by_numpy = iter(
                _distinct_by_message(self._token_groups(others), len(others)) if others else ()
            )
        return [
            next(by_numpy) if native is None else native.distinct_tokens() for native in natives
        ]

    def _tokens_of_one(self, sections: list[Section]) -> NDArray[np.uint32]:
        """The tokens of one message, in no order, in half the time that `_token_groups` takes:
        nothing has to be looked up.
        """
        hashed, counts, _ = self._hash_sections(sections)
        return np.concatenate(
            (hashed[counts], *[group.tokens for group in self._gram_groups(0, sections)])
        )

    def _hash_sections(
        self, sections: list[Section]
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_], TokenRun]:
        """All single tokens of one message, all neighbours, and pairs with a gap.

        Returns
        -------
        tuple
            Tokens; which of them count; where they stand.
        """
        run = self._hasher.hash_tokens(sections, _UNPAIRED_SECTIONS)
        words, singles = int(run.counts[0]), len(run.hashes)
        pairs, skips = max(singles - 1, 0), max(min(singles - words, _MAX_SKIPS) - 2, 0)
        tokens = narrow_hashes(self._hasher.hash_neighbours(run.hashes, words, skips))
        tokens |= _TOKEN_SETS.repeat((words, singles - words, pairs, skips))
        joined, end = run.pairs_with_next, words + skips
        gapped = joined[words:end] & joined[words + 1 : end + 1]
        return tokens, np.concatenate((np.ones(singles, np.bool_), joined[:pairs], gapped)), run

    def _token_groups(self, contents: list[MessageContent]) -> list[TokenGroup]:
        """All tokens of some messages."""
        sections = [section for content in contents for section in content.sections]
        run = self._hasher.hash_tokens(sections, _UNPAIRED_SECTIONS)
        counts = [len(content.sections) for content in contents]
        owners = np.arange(len(contents)).repeat(counts).repeat(run.counts)
        sets = np.where([name != b"" for name, _ in sections], CLUES, WORDS).repeat(run.counts)
        # Pairs with a gap: the first tokens beside the body's, in each message.
        beside = sets == CLUES
        before = beside.cumsum() - beside
        early = beside & (before - before.take(owners.searchsorted(owners)) < _MAX_SKIPS)
        joined = run.pairs_with_next
        left = (joined[:-2] & joined[1:-1] & early[:-2] & early[2:]).nonzero()[0]
        hashes = self._hasher.hash_pairs(run.hashes.take(left), run.hashes.take(left + 2), 1)
        return [
            TokenGroup(narrow_hashes(run.hashes) | sets, owners, run, np.arange(len(owners))),
            self._pair_group(run, owners),
            TokenGroup(narrow_hashes(hashes) | GRAMS, owners.take(left), run, left, 2),
            *[
                group
                for number, content in enumerate(contents)
                for group in self._gram_groups(number, content.sections)
            ],
            *self._spaceless_groups(contents, pairs=True),
        ]

    def _spaceless_groups(
        self, contents: list[MessageContent], *, pairs: bool
    ) -> Iterator[TokenGroup]:
        """Bigrams of scripts without spaces, and pairs of them."""
        for number, content in enumerate(contents):
            for section, text in content.spaceless:
                run = self._hasher.hash_bigrams(section, text)
                owners = np.full(len(run.hashes), number)
                tokens = narrow_hashes(run.hashes) | (CLUES if section else WORDS)
                yield TokenGroup(tokens, owners, run, np.arange(len(owners)))
                if pairs:
                    yield self._pair_group(run, owners)

    def _pair_group(self, run: TokenRun, owners: NDArray[np.intp]) -> TokenGroup:
        """Neighbouring tokens, never across the border of a section."""
        left = run.pairs_with_next.nonzero()[0]
        hashes = self._hasher.hash_pairs(run.hashes.take(left), run.hashes.take(left + 1), 0)
        return TokenGroup(narrow_hashes(hashes) | PAIRS, owners.take(left), run, left, 1)

    def _gram_groups(self, number: int, sections: list[Section]) -> Iterator[TokenGroup]:
        """Grams of message `number`."""
        for name, text in sections:
            if name in _GRAM_SECTIONS:
                run = self._hasher.hash_grams(text)
                places = np.arange(len(run.hashes))
                owners = np.full(len(places), number)
                yield TokenGroup(narrow_hashes(run.hashes) | GRAMS, owners, run, places)


class TokenGroup(NamedTuple):
    """Tokens with the numbers of their messages, and where in a run each comes from.

    positions: of the token itself, or of the first of a pair; the second is `step` tokens later.
    """

    tokens: NDArray[np.uint32]
    message_numbers: NDArray[np.intp]
    run: TokenRun
    positions: NDArray[np.intp]
    step: int = 0

    def token_texts(self) -> list[str]:
        """Readable text of each token."""
        return list(map(self.token_text, range(len(self.positions))))

    def token_text(self, number: int) -> str:
        """Readable text of one token."""
        left = int(self.positions[number])
        text = self.run.token_text(left)
        if not self.step:
            return text
        right = self.run.token_text(left + self.step).rpartition(":")[2]
        return text + PAIR_SEPARATORS[self.step] + right


class _TokenList(NamedTuple):
    """All tokens of one message by numpy, repeats among them, and the groups they come from."""

    tokens: NDArray[np.uint32]
    groups: list[TokenGroup]

    def words(
        self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int
    ) -> tuple[Word, ...]:
        """As `NativeTokens.words`."""
        if not len(buckets):
            return ()
        narrow = self.tokens >> np.uint32(shift)
        places = (buckets.astype(np.uint32)[:, np.newaxis] == narrow).argmax(axis=1)
        return tuple(
            [
                Word(token, self._token_text(place), part)
                for token, place, part in zip(
                    self.tokens.take(places).tolist(), places.tolist(), parts.tolist(), strict=True
                )
            ]
        )

    def _token_text(self, place: int) -> str:
        for group in self.groups:
            if place < len(group.tokens):
                return group.token_text(place)
            place -= len(group.tokens)
        raise IndexError(place)


WordFinder = NativeTokens | _TokenList
"""A way to the words of one message: `words(buckets, parts, shift)`."""


def _group_neighbours(tokens: NDArray[np.uint32], run: TokenRun) -> list[TokenGroup]:
    """Groups of what `_hash_sections` returns: single tokens, neighbours, pairs with a gap."""
    singles, words = len(run.hashes), int(run.counts[0])
    pairs, places = max(singles - 1, 0), np.arange(singles)
    parts = np.split(tokens, (singles, singles + pairs))
    return [
        TokenGroup(part, places[: len(part)], run, places[first : first + len(part)], step)
        for step, (part, first) in enumerate(zip(parts, (0, 0, words), strict=True))
    ]


def _distinct_by_message(groups: list[TokenGroup], messages: int) -> list[NDArray[np.uint32]]:
    """The distinct tokens of each message, sorted."""
    tokens = np.concatenate([group.tokens for group in groups])
    if messages == 1:
        return [sort_unique(tokens)]
    owners = np.concatenate([group.message_numbers for group in groups])
    keyed = owners.astype(np.uint64) << np.uint64(32)
    keyed |= tokens
    distinct = sort_unique(keyed)
    borders = distinct.searchsorted(np.arange(1, messages, dtype=np.uint64) << np.uint64(32))
    return np.split(distinct.astype(np.uint32), borders)


def sort_unique(tokens: NDArray[UnsignedInteger]) -> NDArray[UnsignedInteger]:
    """The distinct tokens, sorted; `tokens` is sorted in place."""
    tokens.sort()
    return drop_repeats(tokens)


def drop_repeats(tokens: NDArray[UnsignedInteger]) -> NDArray[UnsignedInteger]:
    """The distinct ones of sorted tokens."""
    if len(tokens) < 2:
        return tokens
    keep = np.empty(len(tokens), np.bool_)
    keep[0] = True
    np.not_equal(tokens[1:], tokens[:-1], out=keep[1:])
    return tokens[keep]
