"""In which charset 8-bit text is that names none, by its bytes: only those that Windows-1252 would make rubbish of.

East Asian charsets put two bytes to a character, and most characters of a text into few rows of the code table; Thai has an order of
its own. What fits none gets no answer. Looks at a bounded part. Source: the indexes of the WHATWG Encoding Standard; Li & Momoi 2001,
"A composite approach to language/encoding detection".
"""

from __future__ import annotations

import re
from collections import Counter

_SAMPLE = 2000  # bytes
_LEAST = 12  # bytes beyond ASCII: fewer could be anything
_IN_RUNS = 0.5  # share of them beside another: in Latin letters those with accents stand alone
_ASCII = bytes(range(0x80))
_RUN = re.compile(rb"[\x80-\xff]{2,}")
_CHARACTER = re.compile(rb"([\x81-\xfe])([\x40-\x7e\x80-\xfe])|[\x80-\xff]")
_THAI_MARKED = re.compile(rb"[\xa1-\xce][\xd1\xd4-\xda\xe7-\xee]")
_THAI = re.compile(rb"(?:[\xa1-\xce][\xd1\xd4-\xda]?[\xe7-\xee]?\xd3?|[\xcf\xd0\xd2\xdf-\xe6\xef-\xfb])+")
_ALPHABETS = bytes(range(0xC0, 0x100))  # where charsets of one byte have their letters: Windows-1252 makes one other letter of each


def charset(data: bytes) -> bytes:
    """Its name, empty where nothing fits."""
    sample = data[:_SAMPLE]
    beyond = sample.translate(None, _ASCII)
    runs = _RUN.findall(sample)
    joined = b"".join(runs)
    if len(beyond) < _LEAST or len(joined) < _IN_RUNS * len(beyond):
        return b""
    if len(joined.translate(None, _ALPHABETS)) < len(joined) / 10:
        return b""
    pairs = _Pairs(sample)
    return _with_kana_or_syllables(pairs) or _thai(joined, len(runs)) or _chinese(pairs)


def _thai(joined: bytes, runs: int) -> bytes:
    """No blanks between words; marks stand on consonants and nowhere else."""
    marked = len(_THAI_MARKED.findall(joined))
    fits = sum(map(len, _THAI.findall(joined))) > 0.98 * len(joined)
    return b"tis-620" if fits and marked > len(joined) / 8 and len(joined) > 6 * runs else b""


class _Pairs:
    """Text as characters of two bytes. whole: nearly all are; low: share of second bytes that are ASCII."""

    def __init__(self, sample: bytes) -> None:
        found = _CHARACTER.findall(sample)
        self._leads = Counter([lead[0] for lead, _ in found if lead])
        self._number = max(self._leads.total(), 1)
        self.whole = self._number > 0.9 * len(found)
        self.low = sum([trail < b"\x80" for lead, trail in found if lead]) / self._number

    def rows(self, first: int, last: int) -> float:
        """The share of those whose first byte is among these."""
        return sum([self._leads[lead] for lead in range(first, last + 1)]) / self._number


def _with_kana_or_syllables(pairs: _Pairs) -> bytes:
    """Japanese by its kana, Korean by its syllables (of common ideographs half stand behind these rows)."""
    if not pairs.whole:
        return b""
    if pairs.rows(0x82, 0x83) > 0.15 and pairs.rows(0x81, 0x9F) > 0.8:
        return b"shift_jis"
    if pairs.low < 0.03 and pairs.rows(0xA4, 0xA5) > 0.15 and pairs.rows(0xA6, 0xAF) < 0.05:
        return b"euc-jp"
    return b"euc-kr" if pairs.low < 0.03 and pairs.rows(0xB0, 0xC8) + pairs.rows(0xA1, 0xA3) > 0.95 else b""


def _chinese(pairs: _Pairs) -> bytes:
    """By the rows of common ideographs and of punctuation."""
    marks = pairs.rows(0xA1, 0xA3)
    if pairs.whole and pairs.low > 0.1 and pairs.rows(0xA4, 0xC6) + marks > 0.85:
        return b"big5"
    return b"gbk" if pairs.whole and pairs.low < 0.1 and pairs.rows(0xB0, 0xD7) + marks > 0.8 else b""
