"""Text to keyed token hashes, in one numpy pass: no Python object per token.

All sections of a message stand in one buffer, and a table of byte classes gives the borders of the
tokens. A token's hash comes from three eight-byte loads (its first sixteen bytes and its last
eight), each mixed with a multiplier that only this installation knows, and from the seed of its
section. So tokens of up to 24 bytes are hashed whole, and longer ones by both ends and their
length: a spammer who wants a token that collides with a good word can simply write the good word.

The compiled functions do the same, bit for bit (`TokenHasher.native_tokens`). Pure: text and a key
in, numbers out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import native
from spamguard.mail.headers import Section
from spamguard.mail.text import fold, has_spaceless
from spamguard.records import Word

Hashes = NDArray[np.uint64]

WORDS, CLUES, PAIRS, GRAMS = (np.uint32(value << 30) for value in range(4))
_TOKEN_CHARACTERS = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'$_-!%"
) | frozenset(range(128, 256))
_TOKEN_BYTE_TABLE = bytes(value in _TOKEN_CHARACTERS for value in range(256))
_LOW_BYTES = np.array([(1 << (8 * size)) - 1 for size in range(8)] + [2**64 - 1], np.uint64)
# Constants are arrays without dimensions: with a scalar every operation would take a third longer.
_SHIFT = np.array(32, np.uint64)
_EIGHT = np.array(8, np.intp)
_NARROW_SHIFT = np.array(2, np.uint32)
_SECTION_GAP = b"\n"
_PADDING = bytes(24)  # keeps the loads of the last token inside the buffer
_MAX_SEEDS = 4096
PAIR_SEPARATORS = ("", " ", " … ")  # between the two tokens of a pair, by their distance
_MADE_OF_GRAM = (
    3  # the compiled functions' mark of a gram; smaller marks are the distance of a pair
)

# Grams are characters of what people write (corpora/RESULTS.md, "Grams of characters"). The
# compiled functions have the same numbers.
_GRAM_SECTION = b"letters"
_MAX_GRAM_TEXT_BYTES = 2000  # bytes of a section of which grams are made, blanks put together
_GRAM_CHARACTERS = 5
_MAX_GRAM_BYTES = 8  # a gram has fewer characters when they take more bytes
_GRAM_MASK = np.uint64(3)  # a gram is kept when these bits of its hash are zero
_NO_PAIRS, _WITH_GRAMS = 1, 2

_MAX_WORD_CHARACTERS = 64  # filters cut words off much earlier


class TokenRun(NamedTuple):
    """Tokens in order of appearance, and where they stand.

    sections, counts, borders: names of the sections, their numbers of tokens, and the running sum.
    hashes: uint64, (n,). pairs_with_next: bool, (n,); the last token never pairs.
    starts, ends: (n,), into buffer.
    """

    sections: Sequence[bytes]
    counts: NDArray[np.intp]
    borders: list[int]
    hashes: Hashes
    pairs_with_next: NDArray[np.bool_]
    starts: NDArray[np.intp]
    ends: NDArray[np.intp]
    buffer: bytes | str

    def token_texts(self) -> list[str]:
        """Readable text of every token."""
        return list(map(self.token_text, range(len(self.starts))))

    def token_text(self, number: int) -> str:
        """Readable text of one token."""
        section = self.sections[bisect_right(self.borders, number)]
        return _label_token(section, self.buffer[self.starts[number] : self.ends[number]])


class NativeTokens(NamedTuple):
    """The tokens of one message, found by the compiled functions.

    arguments: of those functions, about the sections.
    """

    functions: native.NativeFunctions
    sections: list[Section]
    arguments: tuple[tuple[bytes, ...], bytes, bytes, bytes, bytes]
    max_skips: int

    def distinct_tokens(self) -> NDArray[np.uint32]:
        """All tokens, each once, sorted."""
        return np.frombuffer(self.functions.tokens(*self.arguments, self.max_skips), np.uint32)

    def words(
        self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int
    ) -> tuple[Word, ...]:
        """The first token in each of these buckets (`token >> shift`), and what the bucket adds.

        Raises
        ------
        IndexError
            A bucket has no token.
        """
        places = self.functions.places(
            *self.arguments, buckets.astype(np.uint32), self.max_skips, shift
        )
        return tuple(
            [
                Word(place[0], self._token_text(*place[1:]), part)
                for place, part in zip(places, parts.tolist(), strict=True)
            ]
        )

    def _token_text(self, origin: int, section: int, text: bytes, partner: bytes) -> str:
        if origin == _MADE_OF_GRAM:
            return _label_token(_GRAM_SECTION, _show_blanks(text))
        label = _label_token(self.sections[section][0], text)
        return label + PAIR_SEPARATORS[origin] + _to_str(partner) if origin else label


def _label_token(section: bytes, token: bytes | str) -> str:
    """A token's text with its section in front, unless that is the body."""
    label = section.decode("utf-8", "replace") + ":" if section else ""
    return label + _to_str(token)


def _to_str(token: bytes | str) -> str:
    return token.decode("utf-8", "replace") if isinstance(token, bytes) else token


def _show_blanks(grams: bytes) -> bytes:
    return grams.replace(b" ", b"_")


def narrow_hashes(hashes: Hashes) -> NDArray[np.uint32]:
    """The thirty highest bits of each hash, low: the token set goes into the two bits above."""
    high: NDArray[np.uint32] = hashes.view("<u4")[1::2]
    return high >> _NARROW_SHIFT


class _SectionSeeds(dict[bytes, bytes]):
    """Seed of each section. Bounded, since senders invent names of fields."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __missing__(self, section: bytes) -> bytes:
        if len(self) == _MAX_SEEDS:
            self.clear()
        self[section] = seed = blake2b(b"section:" + section, key=self._key, digest_size=8).digest()
        return seed


class TokenHasher:
    """Keyed hashes of tokens and token pairs. key: the installation's, at most 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._seeds = _SectionSeeds(key)
        digest = blake2b(b"multipliers", key=key, digest_size=64).digest()
        multipliers = np.frombuffer(digest, "<u8") | np.uint64(1)
        self._multipliers = multipliers.tobytes()
        first, second, last, length, left, right, skip, final = map(np.array, multipliers)
        self._first, self._second, self._last, self._length = first, second, last, length
        self._left, self._right, self._skip, self._final = left, right, skip, final

    def native_tokens(
        self,
        sections: list[Section],
        unpaired: Set[bytes],
        max_skips: int = 0,
        with_grams: Set[bytes] = frozenset(),
    ) -> NativeTokens | None:
        """The tokens of one message by the compiled functions; None without these.

        Parameters
        ----------
        sections
            The first is the text of the body.
        unpaired, with_grams
            Names of sections whose tokens make no pairs, and of those that have grams.
        max_skips
            How many tokens behind the body's make pairs with a gap.
        """
        functions = native.functions()
        if functions is None:
            return None
        names, texts = zip(*sections, strict=True)
        seeds = b"".join(map(self._seeds.__getitem__, (*names, _GRAM_SECTION)))
        kinds = bytes(
            [_NO_PAIRS * (name in unpaired) + _WITH_GRAMS * (name in with_grams) for name in names]
        )
        arguments = (texts, seeds, kinds, self._multipliers, _TOKEN_BYTE_TABLE)
        return NativeTokens(functions, sections, arguments, max_skips)

    def hash_tokens(self, sections: list[Section], unpaired: Set[bytes] = frozenset()) -> TokenRun:
        """Hashes of all tokens, in order. unpaired: sections whose tokens make no pairs."""
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
        joined = ~np.frombuffer(bytes(map(unpaired.__contains__, names)), np.bool_).repeat(counts)
        if len(joined):
            joined[borders - 1] = False  # the last token of each section
        seeds = np.frombuffer(b"".join(map(self._seeds.__getitem__, names)), "<u8")
        hashes = self._mix(buffer, starts, ends, seeds.repeat(counts))
        return TokenRun(names, counts, borders.tolist(), hashes, joined, starts, ends, buffer)

    def hash_bigrams(self, section: bytes, text: str) -> TokenRun:
        """Hashes of all pairs of neighbouring characters. text: its runs are separated by NUL."""
        points = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4").astype(np.uint64)
        starts = np.flatnonzero((points[1:] != 0) & (points[:-1] != 0))
        seed = np.frombuffer(self._seeds[b"bigram:" + section], "<u8")
        mixed = ((points.take(starts) << _SHIFT) | points.take(starts + 1)) ^ seed
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        mixed ^= mixed >> _SHIFT
        joined = np.zeros(len(starts), np.bool_)
        # Pairs of bigrams stay inside one run of characters.
        np.equal(starts[1:], starts[:-1] + 1, out=joined[:-1])
        count = len(starts)
        return TokenRun(
            [section], np.array([count]), [count], mixed, joined, starts, starts + 2, text
        )

    def hash_grams(self, text: bytes) -> TokenRun:
        """Hashes of five characters at a time from the start of a section, in order.

        One gram in four is kept, as the key decides. Grams show what words do not: the beginnings
        and endings that words share, signs, and letters put between others.
        """
        # No more words are looked at than the size can hold.
        text = b" ".join(text.split(None, _MAX_GRAM_TEXT_BYTES))[:_MAX_GRAM_TEXT_BYTES]
        # Where the characters begin in UTF-8.
        heads = (np.frombuffer(text, np.uint8) & 0xC0 != 0x80).nonzero()[0]
        behind = np.append(heads, len(text))
        starts = heads[: max(len(heads) - _GRAM_CHARACTERS + 1, 0)]
        ends = np.minimum(behind[1 : len(starts) + 1], starts + _MAX_GRAM_BYTES)
        for more in range(2, _GRAM_CHARACTERS + 1):
            later = behind[more : more + len(starts)]
            ends = np.where(later - starts <= _MAX_GRAM_BYTES, later, ends)
        seed = np.frombuffer(self._seeds[_GRAM_SECTION], "<u8")
        hashes = self._mix(text + _PADDING, starts, ends, seed)
        kept = (hashes & _GRAM_MASK == 0).nonzero()[0]
        count = len(kept)
        return TokenRun(
            [_GRAM_SECTION],
            np.array([count]),
            [count],
            hashes[kept],
            np.zeros(count, np.bool_),
            starts[kept],
            ends[kept],
            _show_blanks(text),
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
        return self._finish(mixed)

    def hash_neighbours(self, hashes: Hashes, first: int, skips: int) -> Hashes:
        """These hashes, then those of all neighbours, then those of pairs with a gap.

        A gap pair joins each of the `skips` tokens from number `first` on with the next but one.
        """
        left, right = hashes * self._left, hashes * self._right
        singles, pairs = len(hashes), max(len(hashes) - 1, 0)
        every = np.empty(singles + pairs + skips, np.uint64)
        every[:singles] = hashes
        mixed = every[singles:]
        np.add(left[:-1], right[1:], out=mixed[:pairs])
        np.add(left[first : first + skips], right[first + 2 : first + skips + 2], out=mixed[pairs:])
        mixed[pairs:] += self._skip
        self._finish(mixed)
        return every

    def _finish(self, mixed: Hashes) -> Hashes:
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        return mixed


class WordListHasher:
    """Words of other filters' lists as tokens of ours. key: as `mail.extract` takes it."""

    def __init__(self, key: bytes) -> None:
        self._hasher = TokenHasher(key)

    def hash_words(
        self, words: Sequence[tuple[bytes, str]]
    ) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Tokens of words, and which words are exactly one token of ours.

        Parameters
        ----------
        words
            Section (b"" is the body) and word.

        Returns
        -------
        tuple of uint32 and bool arrays, (len(words),)
        """
        run = self._hasher.hash_tokens([(section, _fold_word(word)) for section, word in words])
        is_token = run.counts == 1
        kinds = np.where([section != b"" for section, _ in words], CLUES, WORDS)
        tokens = np.zeros(len(words), np.uint32)
        hashes = run.hashes[is_token.repeat(run.counts)]
        tokens[is_token] = narrow_hashes(hashes) | kinds[is_token]
        return tokens, is_token


def _fold_word(word: str) -> bytes:
    """As the text of a message is folded; empty for words that never become one token."""
    # Runs of scripts without spaces become bigrams, never words.
    text = word[: _MAX_WORD_CHARACTERS + 1]
    if len(text) > _MAX_WORD_CHARACTERS or has_spaceless(text):
        return b""
    return fold(text.lower()).encode("utf-8", "replace")
