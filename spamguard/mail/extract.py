"""Bytes of one message to `Features`: keyed hashes of its tokens, and its traits and numbers.

A message is taken apart (`mime`) and read into sections of text (`content`). All sections stand in
one buffer, and a table of byte classes gives the borders of the tokens, so that no token becomes a
Python object. A token's hash comes from three eight-byte loads (its first sixteen bytes and its
last eight), each mixed with a multiplier that only this installation knows, and from the seed of
its section. So tokens of up to 24 bytes are hashed whole, and longer ones by both ends and their
length: a spammer who wants a token that collides with a good word can simply write the good word.

The compiled functions and numpy do the same, bit for bit. Scripts without spaces are for numpy
alone. Pure; must never raise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import native
from spamguard.mail.content import (
    MessageContent,
    compute_numbers,
    compute_traits,
    first_line,
    read_content,
)
from spamguard.mail.headers import Section
from spamguard.mail.mime import DEFAULT_LIMITS, MimeMessage, ParseLimits, parse_message
from spamguard.records import Features, Word

Hashes = NDArray[np.uint64]

WORDS, CLUES, PAIRS, GRAMS = (np.uint32(value << 30) for value in range(4))
_NO_PAIRS, _WITH_GRAMS = 1, 2  # marks of a section for the compiled functions
_SECTION_MARKS = {
    # Their order of tokens says little (RESULTS.md, "Pairs of which sections").
    **dict.fromkeys(
        b"end tags names address url host clue id-shape id-host date-shape references"
        b" in-reply-to".split(),
        _NO_PAIRS,
    ),
    # What people write.
    **dict.fromkeys((b"", b"subject"), _WITH_GRAMS),
}
# How many tokens behind the body's make pairs with a gap (RESULTS.md, "Grams of characters").
_MAX_SKIPS = 50


class ExtractedMessage(NamedTuple):
    """A message taken apart, its features, and, where it is asked for, a line of its text."""

    message: MimeMessage
    features: Features
    line: str = ""


class FeatureExtractor:
    """Reads messages with the installation's key."""

    def __init__(self, key: bytes, limits: ParseLimits = DEFAULT_LIMITS) -> None:
        self._hasher = TokenHasher(key)
        self._limits = limits

    def split(self, raw: bytes) -> MimeMessage:
        """The message taken apart, for `message_digest` and `features`."""
        return parse_message(raw, self._limits)

    def features(self, raw: bytes, message: MimeMessage | None = None) -> Features:
        """All features of a message; `message` is what `split` made of it, if that was called."""
        content = read_content(raw, self._limits, message=message)
        return self._features(raw, content, self._hasher.find_tokens(content))

    def read_with_words(self, raw: bytes) -> tuple[ExtractedMessage, WordFinder]:
        """The features of a message and a line of its text, and a way to its words."""
        content = read_content(raw, self._limits)
        tokens = self._hasher.find_tokens(content)
        features = self._features(raw, content, tokens)
        return ExtractedMessage(content.message, features, first_line(content)), tokens

    def _features(self, raw: bytes, content: MessageContent, tokens: WordFinder) -> Features:
        # The header grows on the way by fields that are no evidence, so only the body counts.
        size = len(content.message.root.body) + max(len(raw) - self._limits.message_bytes, 0)
        numbers = compute_numbers(content, size)
        return Features(tokens.distinct_tokens(), compute_traits(content), numbers)

    def token_texts(self, raw: bytes) -> dict[int, str]:
        """Readable text of every token of a message, by its hash.

        For explanations only: it makes one Python object for each token.
        """
        content = read_content(raw, self._limits)
        return {
            token: group.token_text(number)
            for group in self._hasher.token_groups(content)
            for number, token in enumerate(group.tokens.tolist())
        }


# ---- hashing

_TOKEN_CHARACTERS = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'$_-!%"
) | frozenset(range(128, 256))
_TOKEN_BYTE_TABLE = bytes(value in _TOKEN_CHARACTERS for value in range(256))
_LOW_BYTES = np.array([(1 << (8 * size)) - 1 for size in range(9)], np.uint64)
# Constants are arrays without dimensions: with a scalar every operation would take a third longer.
_SHIFT = np.array(32, np.uint64)
_EIGHT = np.array(8, np.intp)
_NARROW_SHIFT = np.array(2, np.uint32)
_SECTION_GAP = b"\n"
_PADDING = bytes(24)  # keeps the loads of the last token inside the buffer
_MAX_SEEDS = 4096

# Grams are characters of what people write (corpora/RESULTS.md, "Grams of characters"). The
# compiled functions have the same numbers.
_GRAM_SECTION = b"letters"
_MAX_GRAM_TEXT_BYTES = 2000  # bytes of a section of which grams are made, blanks put together
_GRAM_CHARACTERS = 5
_MAX_GRAM_BYTES = 8  # a gram has fewer characters when they take more bytes
_GRAM_MASK = np.uint64(3)  # a gram is kept when these bits of its hash are zero


class TokenHasher:
    """Keyed hashes of tokens and token pairs."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._seed = lru_cache(_MAX_SEEDS)(self._make_seed)  # senders invent names of fields
        digest = blake2b(b"multipliers", key=key, digest_size=64).digest()
        multipliers = np.frombuffer(digest, "<u8") | np.uint64(1)
        self._multipliers = multipliers.tobytes()
        self._first, self._second, self._last, self._length, *of_pairs = map(np.array, multipliers)
        self._left, self._right, self._skip, self._final = of_pairs

    def _make_seed(self, section: bytes) -> bytes:
        return blake2b(b"section:" + section, key=self._key, digest_size=8).digest()

    def find_tokens(self, content: MessageContent) -> WordFinder:
        """The tokens of one message."""
        functions = native.functions
        if functions is None or content.spaceless:
            return _NumpyTokens(list(self.token_groups(content)))
        names, texts = zip(*content.sections, strict=True)
        seeds = b"".join(map(self._seed, (*names, _GRAM_SECTION)))
        marks = bytes(map(_SECTION_MARKS.get, names, repeat(0)))
        arguments = (texts, seeds, marks, self._multipliers, _TOKEN_BYTE_TABLE)
        return _NativeTokens(functions, names, arguments)

    def token_groups(self, content: MessageContent) -> Iterator[_TokenGroup]:
        """The tokens of one message by numpy."""
        run = self.hash_tokens(content.sections)
        tokens, words = narrow_hashes(run.hashes) | WORDS, int(run.borders[0])
        tokens[words:] |= CLUES
        yield _TokenGroup(tokens, run, np.arange(len(tokens)))
        may_pair = np.array([_SECTION_MARKS.get(name) != _NO_PAIRS for name in run.sections])
        pairs_with_next = may_pair.repeat(np.diff(run.borders, prepend=0))
        if len(tokens):
            pairs_with_next[run.borders - 1] = False  # the last token of each section
        yield self._pair_group(run, pairs_with_next.nonzero()[0], 1)
        near = pairs_with_next[words : words + _MAX_SKIPS - 1]
        yield self._pair_group(run, words + (near[:-1] & near[1:]).nonzero()[0], 2)
        for name, text in content.sections:
            if _SECTION_MARKS.get(name) == _WITH_GRAMS:
                grams = self.hash_grams(text)
                tokens = narrow_hashes(grams.hashes) | GRAMS
                yield _TokenGroup(tokens, grams, np.arange(len(tokens)))
        for name, letters in content.spaceless:
            bigrams = self.hash_bigrams(name, letters)
            tokens = narrow_hashes(bigrams.hashes) | (CLUES if name else WORDS)
            yield _TokenGroup(tokens, bigrams, np.arange(len(tokens)))
            # pairs of bigrams stay inside one run of characters
            yield self._pair_group(bigrams, (np.diff(bigrams.starts) == 1).nonzero()[0], 1)

    def _pair_group(self, run: TokenRun, left: NDArray[np.intp], step: int) -> _TokenGroup:
        pairs = self.hash_pairs(run.hashes.take(left), run.hashes.take(left + step), step - 1)
        return _TokenGroup(narrow_hashes(pairs) | (PAIRS if step == 1 else GRAMS), run, left, step)

    def hash_tokens(self, sections: list[Section]) -> TokenRun:
        """Hashes of all tokens, in order."""
        names, texts = zip(*sections, strict=True)
        buffer = _SECTION_GAP + _SECTION_GAP.join(texts) + _PADDING
        mask = np.frombuffer(buffer.translate(_TOKEN_BYTE_TABLE), np.bool_)
        edges = (mask[1:] != mask[:-1]).nonzero()[0]
        edges += 1
        starts, ends = edges[::2], edges[1::2]
        lengths = np.array(list(map(len, texts)))
        lengths += len(_SECTION_GAP)
        borders = starts.searchsorted(lengths.cumsum(), "right")
        counts = borders.copy()
        counts[1:] -= borders[:-1]
        seeds = np.frombuffer(b"".join(map(self._seed, names)), "<u8")
        hashes = self._mix(buffer, starts, ends, seeds.repeat(counts))
        return TokenRun(names, borders, hashes, starts, ends, buffer)

    def hash_bigrams(self, section: bytes, text: str) -> TokenRun:
        """Hashes of all pairs of neighbouring characters; a NUL separates runs of them."""
        points = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4").astype(np.uint64)
        starts = np.flatnonzero((points[1:] != 0) & (points[:-1] != 0))
        seed = np.frombuffer(self._seed(b"bigram:" + section), "<u8")
        mixed = ((points.take(starts) << _SHIFT) | points.take(starts + 1)) ^ seed
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        mixed ^= mixed >> _SHIFT
        return TokenRun([section], np.array([len(starts)]), mixed, starts, starts + 2, text)

    def hash_grams(self, text: bytes) -> TokenRun:
        """Hashes of five characters at a time from the start of a section, in order.

        One gram in four is kept, as the key decides. Grams show what words do not: the beginnings
        and endings that words share, signs, and letters put between others.
        """
        # No more words are looked at than the size can hold.
        text = b" ".join(text.split(None, _MAX_GRAM_TEXT_BYTES))[:_MAX_GRAM_TEXT_BYTES]
        if text.isascii():
            starts = np.arange(max(len(text) - _GRAM_CHARACTERS + 1, 0))
            ends = starts + _GRAM_CHARACTERS
        else:  # begin and end where characters do in UTF-8
            heads = (np.frombuffer(text, np.uint8) & 0xC0 != 0x80).nonzero()[0]
            behind = np.append(heads, len(text))
            starts = heads[: max(len(heads) - _GRAM_CHARACTERS + 1, 0)]
            ends = np.minimum(behind[1 : len(starts) + 1], starts + _MAX_GRAM_BYTES)
            for more in range(2, _GRAM_CHARACTERS + 1):
                later = behind[more : more + len(starts)]
                ends = np.where(later - starts <= _MAX_GRAM_BYTES, later, ends)
        seed = np.frombuffer(self._seed(_GRAM_SECTION), "<u8")
        hashes = self._mix(text + _PADDING, starts, ends, seed)
        chosen = (hashes & _GRAM_MASK == 0).nonzero()[0]
        return TokenRun(
            [_GRAM_SECTION],
            np.array([len(chosen)]),
            hashes[chosen],
            starts[chosen],
            ends[chosen],
            text.replace(b" ", b"_"),  # as people read it
        )

    def _mix(
        self, buffer: bytes, starts: NDArray[np.intp], ends: NDArray[np.intp], seeds: Hashes
    ) -> Hashes:
        sizes = ends - starts
        windows = np.ndarray(shape=(len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
        mixed: Hashes = windows[starts]
        mixed &= _LOW_BYTES.take(sizes, mode="clip")
        mixed ^= seeds
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        long = (sizes > _EIGHT).nonzero()[0]
        if len(long):
            # The second eight bytes of long tokens, their last eight, and their length.
            size, more = sizes.take(long), mixed.take(long)
            more ^= windows[starts.take(long) + _EIGHT] & _LOW_BYTES.take(
                size - _EIGHT, mode="clip"
            )
            more *= self._second
            more ^= more >> _SHIFT
            more ^= windows[ends.take(long) - _EIGHT]
            more ^= size.astype(np.uint64) * self._length
            more *= self._last
            more ^= more >> _SHIFT
            mixed[long] = more
        mixed *= self._final
        mixed ^= mixed >> _SHIFT
        return mixed

    def hash_pairs(self, left: Hashes, right: Hashes, gap: int) -> Hashes:
        """Hashes of pairs with `gap` tokens between (sparse bigrams: Siefkes et al. 2004)."""
        mixed: Hashes = left * self._left
        mixed += right * self._right
        mixed += np.uint64(gap) * self._skip
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        return mixed


def narrow_hashes(hashes: Hashes) -> NDArray[np.uint32]:
    """The thirty highest bits of each hash, low: the token set goes into the two bits above."""
    high: NDArray[np.uint32] = hashes.view("<u4")[1::2]
    return high >> _NARROW_SHIFT


# ---- tokens and the words behind them

_PAIR_SEPARATORS = ("", " ", " … ")  # between the two tokens of a pair, by their distance
_MADE_OF_GRAM = 3  # the compiled functions' mark of a gram; smaller marks are such a distance
_GRAM_LABEL = "letters:"


class _NativeTokens(NamedTuple):
    """The tokens of one message by the compiled functions."""

    functions: Any
    sections: Sequence[bytes]  # their names
    arguments: tuple[tuple[bytes, ...], bytes, bytes, bytes, bytes]

    def distinct_tokens(self) -> NDArray[np.uint32]:
        """All tokens, each once, sorted."""
        return np.frombuffer(self.functions.tokens(*self.arguments, _MAX_SKIPS), np.uint32)

    def words(
        self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int
    ) -> tuple[Word, ...]:
        """The first token in each of these buckets (`token >> shift`), and what the bucket adds.

        Raises IndexError if a bucket has no token.
        """
        places = self.functions.places(
            *self.arguments, buckets.astype(np.uint32), _MAX_SKIPS, shift
        )
        words = []
        for (token, made, section, text, partner), part in zip(places, parts.tolist(), strict=True):
            name = text.decode("utf-8", "replace")
            if made == _MADE_OF_GRAM:
                name = _GRAM_LABEL + name.replace(" ", "_")
            else:
                name = _section_label(self.sections[section]) + name
            if partner:
                name += _PAIR_SEPARATORS[made] + partner.decode("utf-8", "replace")
            words.append(Word(token, name, part))
        return tuple(words)


class _NumpyTokens(NamedTuple):
    """The tokens of one message by numpy."""

    groups: list[_TokenGroup]

    def distinct_tokens(self) -> NDArray[np.uint32]:
        """All tokens, each once, sorted."""
        tokens = np.concatenate([group.tokens for group in self.groups])
        tokens.sort()
        keep = np.ones(len(tokens), np.bool_)
        np.not_equal(tokens[1:], tokens[:-1], out=keep[1:])
        return tokens[keep]

    def words(
        self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int
    ) -> tuple[Word, ...]:
        """The first token in each of these buckets, as the compiled functions find it."""
        tokens = np.concatenate([group.tokens for group in self.groups])
        in_bucket = tokens >> np.uint32(shift)
        order = in_bucket.argsort(kind="stable")
        first = in_bucket.take(order).searchsorted(buckets.astype(np.uint32))
        places = order.take(first).tolist()
        return tuple(
            [
                Word(int(tokens[place]), self._token_text(place), part)
                for place, part in zip(places, parts.tolist(), strict=True)
            ]
        )

    def _token_text(self, place: int) -> str:
        for group in self.groups:
            if place < len(group.tokens):
                return group.token_text(place)
            place -= len(group.tokens)
        raise IndexError(place)


WordFinder = _NativeTokens | _NumpyTokens
"""A way to the words of one message: `words(buckets, parts, shift)`."""


class TokenRun(NamedTuple):
    """Tokens in order of appearance, and where they stand in the buffer."""

    sections: Sequence[bytes]  # their names
    borders: NDArray[np.intp]  # the running sum of their numbers of tokens
    hashes: Hashes
    starts: NDArray[np.intp]
    ends: NDArray[np.intp]
    buffer: bytes | str

    def token_text(self, number: int) -> str:
        """Readable text of one token."""
        section = self.sections[bisect_right(self.borders, number)]
        token = self.buffer[self.starts[number] : self.ends[number]]
        text = token.decode("utf-8", "replace") if isinstance(token, bytes) else token
        return _section_label(section) + text


class _TokenGroup(NamedTuple):
    """Tokens that were made in one way, and where in a run each comes from."""

    tokens: NDArray[np.uint32]
    run: TokenRun
    positions: NDArray[np.intp]  # of each, or of the first of a pair
    step: int = 0  # from there to the second of the pair

    def token_text(self, number: int) -> str:
        """Readable text of one token."""
        position = int(self.positions[number])
        text = self.run.token_text(position)
        if not self.step:
            return text
        right = self.run.token_text(position + self.step).rpartition(":")[2]
        return text + _PAIR_SEPARATORS[self.step] + right


def _section_label(section: bytes) -> str:
    return f"{section.decode('utf-8', 'replace')}:" if section else ""
