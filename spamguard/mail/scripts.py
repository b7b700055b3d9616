"""What text is made of, as its readers take it: words that no blanks part, words disguised by letters of another script, words
whose letters are set apart.

Works on folded text (`mail.decode`), in time linear in its length whatever it holds. It must never raise.
"""

from __future__ import annotations

import re

import numpy as np

from spamguard import kernel

# No spaces between words: Thai, Lao, Myanmar, Khmer, kana. These become pairs of neighbouring characters.
_LETTERS = "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff"
# Each of these, and each emoji, is a word by itself, and two neighbours a pair of words (RESULTS.md, "What becomes a token").
_IDEOGRAPHS = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001f000-\U0001faff\U00020000-\U0003ffff"
# Has spaces, but joins particles to words: the words stay, and pairs of syllables stand beside them.
_HANGUL = "\uac00-\ud7a3"
_RUN = re.compile(f"[{_LETTERS}{_HANGUL}]+")
_NO_WORDS = re.compile(f"[{_LETTERS}]+")
_IDEOGRAPH_RUN = re.compile(f"[{_IDEOGRAPHS}]+")
_SPACELESS = re.compile(f"[{_LETTERS}{_IDEOGRAPHS}]")
# first bytes of their characters in UTF-8: to look for these is a hundred times faster than the expressions
_LETTER_LEADS = bytes((0xE0, 0xE1, 0xE3))
_IDEOGRAPH_LEADS = bytes((*range(0xE3, 0xEA), 0xEF, *range(0xF0, 0xF4)))
_HANGUL_LEADS = bytes(range(0xEA, 0xEE))

_BOTH = "a-z\u0370-\u052f"  # Latin; Greek and Cyrillic
_EASTERN_LEADS = bytes(range(0xCD, 0xD5))  # as above, of the second and third
_MIXED = re.compile("[a-z][\u0370-\u052f]|[\u0370-\u052f][a-z]")
_WORD = re.compile(f"[{_BOTH}]+")
_LATIN = re.compile("[a-z]")
_LOOK_ALIKES = str.maketrans("асеіорхуѕјѵԁһӏвнкмтгαβεηικνορτυχωγ", "aceiopxysjvdhlbhkmtrabenikvoptuxwy")

# Every letter looks at what follows it, so that a run is taken whole or left at once: nothing is tried twice.
_LETTER = "[a-z\u00df-\u024f\u0370-\u052f]"
_SET_APART = re.compile(rf"(?<![^\W_]){_LETTER}([ .*_|/~+-]){_LETTER}(?![^\W_])(?:\1{_LETTER}(?![^\W_])){{2}}(?:\1{_LETTER}(?![^\W_])|)*+")
_FOUR = b" a a a a"
_FOUR_AT_ONCE = np.array(int.from_bytes(_FOUR, "little"), np.uint64)
_SHORT = 1000  # bytes: up to so many a search is faster than numpy

# Signs that stand for letters, inside a word: "v1agra", "m0ney", "vi@gra".
_SIGNS, _MEANT = b"01345789$!@", b"oieastbgsia"


def _kind(byte: int) -> str:
    """Of a first byte in UTF-8: one of those letters; a sign that may stand for one; another letter or digit; anything else."""
    if byte in _SIGNS:
        return "0"
    if chr(byte).isalpha() and (byte < 0x80 or 0xC3 <= byte <= 0xD4):
        return "a"
    return "." if byte >= 0x80 or chr(byte).isdigit() else " "


_KINDS = "".join(map(_kind, range(256))).encode()
_NOT_FIRST = bytes(range(0x80, 0xC0))
_MASKED = b"a0a"
_UNMASKED = bytes.maketrans(_SIGNS, _MEANT)
_LONGEST_MASKED = 24
_MOST_MASKED = 20


def parted(text: str) -> tuple[bytes, str]:
    """Text as UTF-8 in which blanks part words, and its runs of scripts without them, NUL between two."""
    utf8 = text.encode("utf-8", "replace")
    if text.isascii():
        return utf8, ""
    words, letters = text, _has_any(utf8, _LETTER_LEADS)
    if letters:
        words = _NO_WORDS.sub(" ", words)
    if _has_any(utf8, _IDEOGRAPH_LEADS):
        words = _IDEOGRAPH_RUN.sub(_each, words)
    runs = _RUN.findall(text) if letters or _has_any(utf8, _HANGUL_LEADS) else ()
    return utf8 if words is text else words.encode("utf-8", "replace"), "\0".join(runs)


def _has_any(utf8: bytes, leads: bytes) -> bool:
    return any(map(utf8.__contains__, leads))


def _each(run: re.Match[str]) -> str:
    return f" {' '.join(run.group())} "


def has_spaceless(text: str) -> bool:
    """Whether there is anything in it that does not stay a word."""
    return not text.isascii() and _SPACELESS.search(text) is not None


def unmixed(text: str) -> str:
    """Words of Latin and look-alike letters as the Latin ones they look like (UTS #39); those of one script as they are."""
    utf8 = text.encode("utf-8", "replace")
    if not _has_any(utf8, _EASTERN_LEADS) or not _MIXED.search(text):
        return text
    return _WORD.sub(_in_latin, text)


def _in_latin(match: re.Match[str]) -> str:
    word = match.group()
    return word.translate(_LOOK_ALIKES) if _LATIN.search(word) else word


def undisguised(utf8: bytes) -> bytes:
    """Text as it is read: words with single digits or signs between letters, "v1agra", in letters, so many at most; four and more
    letters with the same sign or blank between any two, "v i a g r a", closed up."""
    compiled = kernel.functions()
    if compiled is None:
        text, apart = _in_letters(utf8), _four_apart(utf8)
    else:
        text, apart = compiled.undisguised(utf8, _KINDS, _UNMASKED, _LONGEST_MASKED, _MOST_MASKED)
    return _SET_APART.sub(_together, text.decode("utf-8", "replace")).encode() if apart else text


def _four_apart(utf8: bytes) -> bool:
    """Whether four letters stand apart, or three and a word."""
    kinds = utf8.translate(_KINDS, b"" if utf8.isascii() else _NOT_FIRST)  # a byte for each character
    if len(kinds) < _SHORT:
        return _FOUR in kinds
    eight = np.ndarray(shape=(len(kinds) - 7,), dtype="<u8", buffer=kinds, strides=(1,))  # every 8-byte window
    return bool(np.count_nonzero(eight == _FOUR_AT_ONCE))


def _in_letters(utf8: bytes) -> bytes:
    kinds = utf8.translate(_KINDS)
    place = kinds.find(_MASKED)
    if place < 0:
        return utf8
    text = bytearray(utf8)
    for _ in range(_MOST_MASKED):
        if place < 0:
            break
        start, end = _masked_word(utf8, kinds, place)
        text[start:end] = text[start:end].translate(_UNMASKED)
        place = kinds.find(_MASKED, max(end, place + 1))
    return bytes(text)


def _masked_word(utf8: bytes, kinds: bytes, place: int) -> tuple[int, int]:
    """Where the word around a place is; empty if it is long, mostly signs, or part of something else: a number, an address."""
    before = kinds[max(place - _LONGEST_MASKED, 0) : place].rpartition(b" ")[2]
    behind = kinds[place : place + _LONGEST_MASKED].partition(b" ")[0]
    start, end = place - len(before), place + len(behind)
    dotted = utf8[max(start - 1, 0) : start] == b"." or (utf8[end : end + 1] == b"." and utf8[end + 1 : end + 2].isalnum())
    end = start + len(utf8[start:end].rstrip(b"!"))
    signs = kinds[start:end]
    meant = len(signs) < _LONGEST_MASKED and not dotted and b"." not in signs and 3 * signs.count(b"0") <= len(signs)
    return (start, end) if meant else (place, place)


def _together(match: re.Match[str]) -> str:
    return match.group().replace(match.group(1), "")
