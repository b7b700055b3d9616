"""Text to keyed token hashes in one numpy pass: no Python object per token.

All sections of a message stand in one buffer. Token borders come from a byte-class table; a token's hash from three
eight-byte loads (its first sixteen bytes and its last eight), each mixed with a multiplier that only this installation
knows, and from its section's seed. Tokens of up to 24 bytes are hashed whole; longer ones by both ends and their length:
a spammer who wants a token that collides with a good word can simply write the good word.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard import kernel
from spamguard.mail.fields import Section
from spamguard.records import Word

Hashes = NDArray[np.uint64]

WORDS, CLUES, PAIRS, GRAMS = (np.uint32(value << 30) for value in range(4))
_TOKEN_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'$_-!%") | frozenset(range(128, 256))
_CLASS = bytes(value in _TOKEN_CHARACTERS for value in range(256))
_LOW_BYTES = np.array([(1 << (8 * size)) - 1 for size in range(8)] + [2**64 - 1], np.uint64)
# Constants are arrays without dimensions: with a scalar every operation would take a third longer.
_SHIFT = np.array(32, np.uint64)
_EIGHT = np.array(8, np.intp)
_NARROWER = np.array(2, np.uint32)
_GAP = b"\n"
BETWEEN = ("", " ", " … ")  # the two tokens of a pair, by how far they are apart
_OF_CHARACTERS = 3  # how a token was made, says the kernel: what else it says is how far the two are apart
# Characters of what people write (corpora/RESULTS.md, "Grams of characters"); the kernel has the same numbers.
_LETTERS = b"letters"  # their section
_GRAM_TEXT = 2000  # bytes of a section of which grams are made, blanks put together
_GRAM_CHARACTERS = 5
_GRAM_BYTES = 8  # fewer characters when they take more
_GRAM_MASK = np.uint64(3)  # of a gram's hash: zero in those that are kept
_NO_PAIRS, _WITH_GRAMS = 1, 2
_MOST_SEEDS = 4096
_PADDING = bytes(24)  # so that the loads of the last token stay inside the buffer


class Run(NamedTuple):
    """Tokens in order of appearance: hashes uint64 (n,); start and end of each; the text they stand in.

    counts: tokens of each section; borders: their running sum. joined: bool (n,), whether a token makes a pair with the next
    one; the last never does.
    """

    sections: Sequence[bytes]
    counts: NDArray[np.intp]
    borders: list[int]
    hashes: Hashes
    joined: NDArray[np.bool_]
    starts: NDArray[np.intp]
    ends: NDArray[np.intp]
    buffer: bytes | str

    def names(self) -> list[str]:
        """Readable text of every token."""
        return list(map(self.name, range(len(self.starts))))

    def name(self, number: int) -> str:
        """Readable text of one token."""
        section = self.sections[bisect_right(self.borders, number)]
        return _labelled(section, self.buffer[self.starts[number] : self.ends[number]])


class Compiled(NamedTuple):
    """The tokens of one message, as the kernel finds them. arguments: what its functions want to know of the sections."""

    functions: kernel.Functions
    sections: list[Section]
    arguments: tuple[tuple[bytes, ...], bytes, bytes, bytes, bytes]
    skipped: int

    def distinct(self) -> NDArray[np.uint32]:
        """Sorted."""
        return np.frombuffer(self.functions.tokens(*self.arguments, self.skipped), np.uint32)

    def words(self, buckets: NDArray[np.intp], parts: NDArray[np.float64], shift: int) -> tuple[Word, ...]:
        """As `extract.Named`: where they stand is looked for now that it is known which. IndexError: a bucket has none."""
        told = self.functions.places(*self.arguments, buckets.astype(np.uint32), self.skipped, shift)
        return tuple([Word(place[0], self._name(*place[1:]), part) for place, part in zip(told, parts.tolist(), strict=True)])

    def _name(self, made: int, section: int, text: bytes, other: bytes) -> str:
        """Readable text of a token, as `Run` and `Group` tell it."""
        if made == _OF_CHARACTERS:
            return _labelled(_LETTERS, _shown(text))
        name = _labelled(self.sections[section][0], text)
        return name + BETWEEN[made] + _text(other) if made else name


def _labelled(section: bytes, token: bytes | str) -> str:
    """Readable text of a token, with its section in front unless that is the body."""
    label = section.decode("utf-8", "replace") + ":" if section else ""
    return label + _text(token)


def _text(token: bytes | str) -> str:
    return token.decode("utf-8", "replace") if isinstance(token, bytes) else token


def narrow(hashes: Hashes) -> NDArray[np.uint32]:
    """The thirty highest bits of each hash, in the low bits: room for the token set above them."""
    high: NDArray[np.uint32] = hashes.view("<u4")[1::2]
    return high >> _NARROWER


class _Seeds(dict[bytes, bytes]):
    """Seed of each section. Senders invent names of fields: at most so many are remembered."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __missing__(self, section: bytes) -> bytes:
        if len(self) == _MOST_SEEDS:
            self.clear()
        self[section] = seed = blake2b(b"section:" + section, key=self._key, digest_size=8).digest()
        return seed


def _put_together(text: bytes) -> bytes:
    """The part of a section's text of which grams are made; no more of its words are looked at than that can hold."""
    return b" ".join(text.split(None, _GRAM_TEXT))[:_GRAM_TEXT]


def _shown(grams: bytes) -> bytes:
    """The same, or a gram, for people, who would not see blanks."""
    return grams.replace(b" ", b"_")


class TokenHasher:
    """Keyed hashes of tokens and token pairs. key: the installation's secret, any length up to 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._seeds = _Seeds(key)
        multipliers = np.frombuffer(blake2b(b"multipliers", key=key, digest_size=64).digest(), "<u8") | np.uint64(1)
        self._multipliers = multipliers.tobytes()
        self._first, self._second, self._last, self._length, self._left, self._right, self._skip, self._final = map(np.array, multipliers)

    def compiled(
        self, sections: list[Section], unpaired: Set[bytes], skipped: int = 0, lettered: Set[bytes] = frozenset()
    ) -> Compiled | None:
        """The tokens of one message by the kernel; None without it.

        The first section is the text of the body. What `run`, `with_neighbours` and `grams` find, in one go: pairs but in some sections,
        skips of the first `skipped` tokens behind the body's, grams of some sections.
        """
        functions = kernel.functions()
        if functions is None:
            return None
        names, texts = zip(*sections, strict=True)
        seeds = b"".join(map(self._seeds.__getitem__, (*names, _LETTERS)))
        kinds = bytes([_NO_PAIRS * (name in unpaired) + _WITH_GRAMS * (name in lettered) for name in names])
        return Compiled(functions, sections, (texts, seeds, kinds, self._multipliers, _CLASS), skipped)

    def run(self, sections: list[Section], unpaired: Set[bytes] = frozenset()) -> Run:
        """Hashes of all tokens of all sections, in order. unpaired: names of sections whose tokens make no pairs."""
        names, texts = zip(*sections, strict=True)
        buffer = _GAP + _GAP.join(texts) + _PADDING
        mask = np.frombuffer(buffer.translate(_CLASS), np.bool_)
        edges = (mask[1:] != mask[:-1]).nonzero()[0]
        edges += 1
        starts, ends = edges[::2], edges[1::2]
        lengths = np.array(list(map(len, texts)))
        lengths += len(_GAP)
        before = starts.searchsorted(lengths.cumsum(), "right")
        counts = before.copy()
        counts[1:] -= before[:-1]
        joined = ~np.frombuffer(bytes(map(unpaired.__contains__, names)), np.bool_).repeat(counts)
        if len(joined):
            joined[before - 1] = False  # the last of each section
        seeds = np.frombuffer(b"".join(map(self._seeds.__getitem__, names)), "<u8")
        return Run(names, counts, before.tolist(), self._mix(buffer, starts, ends, seeds.repeat(counts)), joined, starts, ends, buffer)

    def bigrams(self, section: bytes, text: str) -> Run:
        """Hashes of all pairs of neighbouring characters; runs are separated by NUL."""
        points = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4").astype(np.uint64)
        starts = np.flatnonzero((points[1:] != 0) & (points[:-1] != 0))
        mixed = ((points.take(starts) << _SHIFT) | points.take(starts + 1)) ^ np.frombuffer(self._seeds[b"bigram:" + section], "<u8")
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        joined = np.zeros(len(starts), np.bool_)
        np.equal(starts[1:], starts[:-1] + 1, out=joined[:-1])  # pairs of bigrams stay inside one run of characters
        return Run([section], np.array([len(starts)]), [len(starts)], mixed ^ (mixed >> _SHIFT), joined, starts, starts + 2, text)

    def grams(self, text: bytes) -> Run:
        """Hashes of the characters at the start of a section, five at a time, in order: of one in four, as the key will have it.

        They see what words do not: what beginnings and endings words share, signs, and letters put between others.
        """
        text = _put_together(text)
        heads = (np.frombuffer(text, np.uint8) & 0xC0 != 0x80).nonzero()[0]  # of characters in UTF-8
        behind = np.append(heads, len(text))
        starts = heads[: max(len(heads) - _GRAM_CHARACTERS + 1, 0)]
        ends = np.minimum(behind[1 : len(starts) + 1], starts + _GRAM_BYTES)
        for more in range(2, _GRAM_CHARACTERS + 1):
            later = behind[more : more + len(starts)]
            ends = np.where(later - starts <= _GRAM_BYTES, later, ends)
        hashes = self._mix(text + _PADDING, starts, ends, np.frombuffer(self._seeds[_LETTERS], "<u8"))
        kept = (hashes & _GRAM_MASK == 0).nonzero()[0]
        number = len(kept)
        return Run(
            [_LETTERS], np.array([number]), [number], hashes[kept], np.zeros(number, np.bool_), starts[kept], ends[kept], _shown(text)
        )

    def _mix(self, buffer: bytes, starts: NDArray[np.intp], ends: NDArray[np.intp], seeds: Hashes) -> Hashes:
        size = ends - starts
        eight = np.ndarray(shape=(len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))  # every 8-byte window
        mixed: Hashes = eight[starts]
        mixed &= _LOW_BYTES.take(size, mode="clip")
        mixed ^= seeds
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        long = (size > _EIGHT).nonzero()[0]
        if len(long):
            mixed[long] = self._mix_long(eight, mixed.take(long), starts.take(long), ends.take(long))
        mixed *= self._final
        mixed ^= mixed >> _SHIFT
        return mixed

    def _mix_long(self, eight: Hashes, mixed: Hashes, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> Hashes:
        """What a token's bytes after the eighth, its last eight and its length add."""
        size = ends - starts
        mixed ^= eight[starts + _EIGHT] & _LOW_BYTES.take(size - _EIGHT, mode="clip")
        mixed *= self._second
        mixed ^= mixed >> _SHIFT
        mixed ^= eight[ends - _EIGHT]
        mixed ^= size.astype(np.uint64) * self._length
        mixed *= self._last
        mixed ^= mixed >> _SHIFT
        return mixed

    def pairs(self, left: Hashes, right: Hashes, gap: int) -> Hashes:
        """Hashes of ordered pairs of tokens with `gap` others between (sparse bigrams: Siefkes et al. 2004)."""
        mixed: Hashes = left * self._left
        mixed += right * self._right
        mixed += np.uint64(gap) * self._skip
        return self._finish(mixed)

    def with_neighbours(self, hashes: Hashes, first: int, skips: int) -> Hashes:
        """These hashes, behind them those of all neighbours, and of `skips` tokens from number `first` on with the next but one of each."""
        left, right = hashes * self._left, hashes * self._right
        singles, pairs = len(hashes), max(len(hashes) - 1, 0)
        found = np.empty(singles + pairs + skips, np.uint64)
        found[:singles] = hashes
        mixed = found[singles:]
        np.add(left[:-1], right[1:], out=mixed[:pairs])
        np.add(left[first : first + skips], right[first + 2 : first + skips + 2], out=mixed[pairs:])
        mixed[pairs:] += self._skip
        self._finish(mixed)
        return found

    def _finish(self, mixed: Hashes) -> Hashes:
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        return mixed
