"""Words as readers see them: scripts without spaces, look-alike letters, disguised words.

Words of scripts without spaces become pairs of neighbouring characters. Words that mix Latin with
Greek or Cyrillic look-alikes become Latin. "v1agra" and "v i a g r a" become "viagra".

All functions work on folded text (`mail.decode`), in time linear in its length. They must never
raise.
"""

from __future__ import annotations

import re

import numpy as np

from spamguard import native

# No spaces between words: Thai, Lao, Myanmar, Khmer, kana.
_SPACELESS_LETTERS = "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff"
# Each ideograph and each emoji is a word (RESULTS.md, "What becomes a token").
_IDEOGRAPHS = (
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001f000-\U0001faff\U00020000-\U0003ffff"
)
# Hangul has spaces, but joins particles to words: pairs of syllables stand beside the words.
_HANGUL = "\uac00-\ud7a3"
_BIGRAM_RUN = re.compile(f"[{_SPACELESS_LETTERS}{_HANGUL}]+")
_SPACELESS_RUN = re.compile(f"[{_SPACELESS_LETTERS}]+")
_IDEOGRAPH_RUN = re.compile(f"[{_IDEOGRAPHS}]+")
_SPACELESS = re.compile(f"[{_SPACELESS_LETTERS}{_IDEOGRAPHS}]")
# The first bytes of their characters in UTF-8. A search for these is a hundred times faster than
# one for the expressions.
_SPACELESS_LEADS = bytes((0xE0, 0xE1, 0xE3))
_IDEOGRAPH_LEADS = bytes((*range(0xE3, 0xEA), 0xEF, *range(0xF0, 0xF4)))
_HANGUL_LEADS = bytes(range(0xEA, 0xEE))

_MIXABLE_LETTERS = "a-z\u0370-\u052f"  # Latin; Greek and Cyrillic
_EASTERN_LEADS = bytes(range(0xCD, 0xD5))  # first bytes of Greek and Cyrillic
_MIXED_SCRIPTS = re.compile("[a-z][\u0370-\u052f]|[\u0370-\u052f][a-z]")
_WORD = re.compile(f"[{_MIXABLE_LETTERS}]+")
_LATIN = re.compile("[a-z]")
_LOOK_ALIKES = str.maketrans(
    "асеіорхуѕјѵԁһӏвнкмтгαβεηικνορτυχωγ", "aceiopxysjvdhlbhkmtrabenikvoptuxwy"
)

# Every letter looks at the one behind it: a run is taken whole or left at once, in linear time.
_LETTER = "[a-z\u00df-\u024f\u0370-\u052f]"
_SPACED_WORD = re.compile(
    rf"(?<![^\W_]){_LETTER}([ .*_|/~+-]){_LETTER}(?![^\W_])"
    rf"(?:\1{_LETTER}(?![^\W_])){{2}}(?:\1{_LETTER}(?![^\W_])|)*+"
)
_SPACED_LETTERS = b" a a a a"
_SPACED_LETTERS_NUMBER = np.array(int.from_bytes(_SPACED_LETTERS, "little"), np.uint64)
_MAX_SEARCHED_BYTES = 1000  # above this size numpy is faster than a search

# Signs that stand for letters, inside a word: "v1agra", "m0ney", "vi@gra".
_LETTER_SIGNS, _SIGN_LETTERS = b"01345789$!@", b"oieastbgsia"


def _byte_kind(byte: int) -> str:
    """Kind of a first byte in UTF-8: "a" a letter of words that may be disguised, "0" a sign that
    may stand for one, "." another letter or digit, " " anything else.
    """
    if byte in _LETTER_SIGNS:
        return "0"
    if chr(byte).isalpha() and (byte < 0x80 or 0xC3 <= byte <= 0xD4):
        return "a"
    return "." if byte >= 0x80 or chr(byte).isdigit() else " "


_BYTE_KINDS = "".join(map(_byte_kind, range(256))).encode()
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_MASKED_PATTERN = b"a0a"
_UNMASK_TABLE = bytes.maketrans(_LETTER_SIGNS, _SIGN_LETTERS)
_MAX_MASKED_BYTES = 24
_MAX_MASKED_WORDS = 20


def separate_spaceless(text: str) -> tuple[bytes, str]:
    """Split text into words and runs without spaces.

    Returns
    -------
    tuple of bytes and str
        UTF-8 in which blanks separate words; the runs of scripts without spaces, NUL between two.
    """
    utf8 = text.encode("utf-8", "replace")
    if text.isascii():
        return utf8, ""
    words, has_letters = text, _contains_any(utf8, _SPACELESS_LEADS)
    if has_letters:
        words = _SPACELESS_RUN.sub(" ", words)
    if _contains_any(utf8, _IDEOGRAPH_LEADS):
        words = _IDEOGRAPH_RUN.sub(lambda run: f" {' '.join(run[0])} ", words)
    runs = _BIGRAM_RUN.findall(text) if has_letters or _contains_any(utf8, _HANGUL_LEADS) else ()
    return utf8 if words is text else words.encode("utf-8", "replace"), "\0".join(runs)


def _contains_any(utf8: bytes, leads: bytes) -> bool:
    return any(map(utf8.__contains__, leads))


def has_spaceless(text: str) -> bool:
    """Whether `separate_spaceless` would take something out of a text.

    >>> has_spaceless("loan"), has_spaceless("会議")
    (False, True)
    """
    return not text.isascii() and _SPACELESS.search(text) is not None


def to_single_script(text: str) -> str:
    """Replace look-alikes in words that have Latin letters too (UTS #39).

    >>> to_single_script("раypal и мы")
    'paypal и мы'
    """
    utf8 = text.encode("utf-8", "replace")
    if not _contains_any(utf8, _EASTERN_LEADS) or not _MIXED_SCRIPTS.search(text):
        return text
    return _WORD.sub(
        lambda word: word[0].translate(_LOOK_ALIKES) if _LATIN.search(word[0]) else word[0], text
    )


def deobfuscate(utf8: bytes) -> bytes:
    """Undo disguises: digits and signs within words, and letters set apart.

    At most `_MAX_MASKED_WORDS` words are looked at. Four and more letters with the same sign or
    blank between any two are closed up.

    >>> deobfuscate(b"v1agra, v i a g r a"), deobfuscate(b"7x7 is 49")
    (b'viagra, viagra', b'7x7 is 49')
    """
    compiled = native.functions()
    if compiled is None:
        text, apart = _unmask_words(utf8), _has_spaced_letters(utf8)
    else:
        text, apart = compiled.undisguised(
            utf8, _BYTE_KINDS, _UNMASK_TABLE, _MAX_MASKED_BYTES, _MAX_MASKED_WORDS
        )
    if not apart:
        return text
    words = _SPACED_WORD.sub(
        lambda word: word[0].replace(word[1], ""), text.decode("utf-8", "replace")
    )
    return words.encode()


def _has_spaced_letters(utf8: bytes) -> bool:
    """Whether four letters stand apart, or three and a word."""
    # One byte for each character.
    kinds = utf8.translate(_BYTE_KINDS, b"" if utf8.isascii() else _CONTINUATION_BYTES)
    if len(kinds) < _MAX_SEARCHED_BYTES:
        return _SPACED_LETTERS in kinds
    windows = np.ndarray(shape=(len(kinds) - 7,), dtype="<u8", buffer=kinds, strides=(1,))
    return bool(np.count_nonzero(windows == _SPACED_LETTERS_NUMBER))


def _unmask_words(utf8: bytes) -> bytes:
    kinds = utf8.translate(_BYTE_KINDS)
    place = kinds.find(_MASKED_PATTERN)
    if place < 0:
        return utf8
    text = bytearray(utf8)
    for _ in range(_MAX_MASKED_WORDS):
        if place < 0:
            break
        start, end = _locate_masked_word(utf8, kinds, place)
        text[start:end] = text[start:end].translate(_UNMASK_TABLE)
        place = kinds.find(_MASKED_PATTERN, max(end, place + 1))
    return bytes(text)


def _locate_masked_word(utf8: bytes, kinds: bytes, place: int) -> tuple[int, int]:
    """Start and end of the word around a place.

    Both are the place itself if the word is long, mostly signs, or part of a number or an address.
    """
    before = kinds[max(place - _MAX_MASKED_BYTES, 0) : place].rpartition(b" ")[2]
    behind = kinds[place : place + _MAX_MASKED_BYTES].partition(b" ")[0]
    start, end = place - len(before), place + len(behind)
    in_address = utf8[max(start - 1, 0) : start] == b"." or (
        utf8[end : end + 1] == b"." and utf8[end + 1 : end + 2].isalnum()
    )
    end = start + len(utf8[start:end].rstrip(b"!"))
    word = kinds[start:end]
    if (
        in_address
        or len(word) >= _MAX_MASKED_BYTES
        or b"." in word
        or 3 * word.count(b"0") > len(word)
    ):
        return place, place
    return start, end
