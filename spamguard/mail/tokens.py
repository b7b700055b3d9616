"""Text to keyed token hashes in one numpy pass: no Python object per token.

All sections of a message stand in one buffer. Token borders come from a byte-class table; a token's hash from three
eight-byte loads (its first sixteen bytes and its last eight), each mixed with a multiplier that only this installation
knows, and from its section's seed. Tokens of up to 24 bytes are hashed whole; longer ones by both ends and their length:
a spammer who wants a token that collides with a good word can simply write the good word.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spamguard.mail.fields import Section

Hashes = NDArray[np.uint64]

WORDS, CLUES, PAIRS, SKIPS = (np.uint32(value << 30) for value in range(4))
_TOKEN_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789'$_-!%") | frozenset(range(128, 256))
_CLASS = bytes(value in _TOKEN_CHARACTERS for value in range(256))
_LOW_BYTES = np.array([(1 << (8 * size)) - 1 for size in range(8)] + [2**64 - 1], np.uint64)
_SHIFT = np.uint64(32)
_GAP = b"\n"
_PADDING = bytes(24)  # so that the loads of the last token stay inside the buffer


class Run(NamedTuple):
    """Tokens in order of appearance: hashes uint64 (n,); start and end of each; the text they stand in.

    counts: tokens of each section. bound: number of the section (of bigrams: of the run of characters) of each token, for
    nothing but equality.
    """

    sections: list[bytes]
    counts: NDArray[np.intp]
    hashes: Hashes
    bound: NDArray[np.intp]
    starts: NDArray[np.intp]
    ends: NDArray[np.intp]
    buffer: bytes | str

    def names(self) -> list[str]:
        """Readable text of every token, with its section in front unless that is the body."""
        labels = [section.decode("utf-8", "replace") + ":" if section else "" for section in self.sections]
        owners = np.repeat(np.arange(len(labels)), self.counts).tolist()
        spans = zip(owners, self.starts.tolist(), self.ends.tolist(), strict=True)
        return [labels[owner] + _text(self.buffer[start:end]) for owner, start, end in spans]


def _text(token: bytes | str) -> str:
    return token.decode("utf-8", "replace") if isinstance(token, bytes) else token


def narrow(hashes: Hashes) -> NDArray[np.uint32]:
    """The thirty highest bits of each hash, in the low bits: room for the token set above them."""
    high: NDArray[np.uint32] = hashes.view("<u4")[1::2]
    return high >> np.uint32(2)


class TokenHasher:
    """Keyed hashes of tokens and token pairs. key: the installation's secret, any length up to 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        multipliers = np.frombuffer(blake2b(b"multipliers", key=key, digest_size=64).digest(), "<u8") | np.uint64(1)
        self._first, self._second, self._last, self._length, self._left, self._right, self._skip, self._final = multipliers
        self.seed = lru_cache(maxsize=4096)(self._seed)

    def _seed(self, section: bytes) -> bytes:
        return blake2b(b"section:" + section, key=self._key, digest_size=8).digest()

    def run(self, sections: list[Section]) -> Run:
        """Hashes of all tokens of all sections, in order."""
        names, texts = zip(*sections, strict=True)
        buffer = _GAP + _GAP.join(texts) + _PADDING
        mask = np.frombuffer(buffer.translate(_CLASS), np.bool_)
        edges = (mask[1:] != mask[:-1]).nonzero()[0]
        edges += 1
        starts, ends = edges[::2], edges[1::2]
        before = starts.searchsorted(np.array([len(text) + 1 for text in texts]).cumsum(), side="right")
        counts = before.copy()
        counts[1:] -= before[:-1]
        bound = np.arange(len(texts)).repeat(counts)
        seeds = np.frombuffer(b"".join(map(self.seed, names)), "<u8")
        return Run(list(names), counts, self._mix(buffer, starts, ends, seeds.take(bound)), bound, starts, ends, buffer)

    def bigrams(self, section: bytes, text: str) -> Run:
        """Hashes of all pairs of neighbouring characters; runs are separated by NUL."""
        points = np.frombuffer(text.encode("utf-32-le", "replace"), "<u4").astype(np.uint64)
        starts = np.flatnonzero((points[1:] != 0) & (points[:-1] != 0))
        mixed = ((points.take(starts) << _SHIFT) | points.take(starts + 1)) ^ np.frombuffer(self.seed(b"bigram:" + section), "<u8")
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        bound = (points == 0).cumsum().take(starts)  # pairs of bigrams stay inside one run
        return Run([section], np.array([len(starts)]), mixed ^ (mixed >> _SHIFT), bound, starts, starts + 2, text)

    def _mix(self, buffer: bytes, starts: NDArray[np.intp], ends: NDArray[np.intp], seeds: Hashes) -> Hashes:
        size = ends - starts
        eight = np.ndarray(shape=(len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))  # every 8-byte window
        mixed: Hashes = eight[starts]
        mixed &= _LOW_BYTES.take(size, mode="clip")
        mixed ^= seeds
        mixed *= self._first
        mixed ^= mixed >> _SHIFT
        long = (size > 8).nonzero()[0]
        if len(long):
            mixed[long] = self._mix_long(eight, mixed.take(long), starts.take(long), size.take(long))
        mixed *= self._final
        mixed ^= mixed >> _SHIFT
        return mixed

    def _mix_long(self, eight: Hashes, mixed: Hashes, starts: NDArray[np.intp], size: NDArray[np.intp]) -> Hashes:
        """What a token's bytes after the eighth, its last eight and its length add."""
        mixed ^= eight[starts + 8] & _LOW_BYTES.take(size - 8, mode="clip")
        mixed *= self._second
        mixed ^= mixed >> _SHIFT
        mixed ^= eight[starts + size - 8]
        mixed ^= size.astype(np.uint64) * self._length
        mixed *= self._last
        mixed ^= mixed >> _SHIFT
        return mixed

    def pairs(self, left: Hashes, right: Hashes, gap: int) -> Hashes:
        """Hashes of ordered pairs of tokens with `gap` others between (sparse bigrams: Siefkes et al. 2004)."""
        mixed: Hashes = left * self._left
        mixed += right * self._right
        mixed += np.uint64(gap) * self._skip
        mixed ^= mixed >> _SHIFT
        mixed *= self._final
        return mixed
