"""Words as readers see them: folding, scripts without spaces, look-alike letters, disguised words.

`fold` brings all text into one form: NFKC and lower case, without invisible characters. The other
functions work on folded text. Words of scripts without spaces become pairs of neighbouring
characters. Words that mix Latin with Greek or Cyrillic look-alikes become Latin. "v1agra" and "v i
a g r a" become "viagra".

All functions take time linear in the length of the text. They must never raise.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# ---- folding

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
    # vowels of Hebrew and Arabic, and what makes words longer
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670"
)
_PUNCTUATION = (
    "\u0080-\u00a9\u00ab\u00ac\u00ae-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u2000-\u200a\u2010-\u2029"
    "\u202f-\u205f\u037e\u0387\u055a-\u055f\u0589\u058a\u05be\u05c0\u05c3\u05c6\u05f3\u05f4"
    "\u0609-\u060d\u061b\u061d-\u061f\u066a-\u066d\u06d4\u0964\u0965\u1361-\u1368\u2070-\u209f"
    "\u2190-\u2bff\u2e00-\u2e5d\u3000-\u3004\u3008-\u3020\u3030\u3164\uff61-\uff64\uffa0"
)
# Letters that NFKC leaves as they are: small capitals, squared ones, regional indicators; and ones
# in parentheses, which it does not take out.
_LETTER_BLOCKS = (
    *range(0x250, 0x2B0),
    *range(0x1D00, 0x1D2C),
    *range(0x249C, 0x24B6),
    *range(0xA720, 0xA800),
    *range(0x1F100, 0x1F200),
)
_LETTER_NAME = re.compile(
    r"(?:.* )?(?:LATIN|SYMBOL)(?: .*)? LETTER (?:SMALL CAPITAL |SCRIPT )?([A-Z])"
)
# Lunate sigma, which NFKC makes a common one, counts as the Cyrillic letter that looks the same.
_OTHER_LETTERS = {"ɑ": "a", "ɩ": "i", "\u03f2": "\u0441", "\u03f9": "\u0441"}


def _character_changes() -> NDArray[np.uint32]:
    """What to add to each character's code; so much of it is zero that it takes little memory."""
    becomes = {ord(letter): ord(plain) for letter, plain in _OTHER_LETTERS.items()}
    for characters, replacement in ((_PUNCTUATION, ord(" ")), (_INVISIBLE, 0)):
        for first, last in re.findall("(.)(?:-(.))?", characters, re.DOTALL):
            for code in range(ord(first), ord(last or first) + 1):
                plain = unicodedata.normalize("NFKC", chr(code))
                if not (plain.isascii() and plain.isalnum()):  # else a letter in a circle
                    becomes[code] = replacement
    for code in _LETTER_BLOCKS:
        if letter := _LETTER_NAME.fullmatch(unicodedata.name(chr(code), "")):
            becomes[code] = ord(letter[1].lower())
    changes = np.zeros(sys.maxunicode + 1, np.uint32)
    codes = np.array(list(becomes), np.uint32)
    changes[codes] = np.array(list(becomes.values()), np.uint32) - codes
    return changes


_CHANGES = _character_changes()
# What readers see the other way round; any other mark of direction within may turn it again.
_BACKWARDS = re.compile("\u202e([^\u202a-\u202e\u2066-\u2069\n]{1,200})\u202c")
_UTF_32 = f"utf-32-{sys.byteorder[0]}e"
# Marks of letters that have no code together with them. To find the first bytes of their UTF-8 is a
# hundred times faster.
_COMBINING_MARKS = re.compile("[\u0300-\u036f\u20d0-\u20ff]+")
# Greek, Cyrillic, Armenian, Cherokee and Lisu, and how they begin in UTF-8.
_FOREIGN = "\u0370-\u058f\u13f8-\u13fd\uab70-\uabbf\ua4d0-\ua4f7"
_FOREIGN_STARTS = (
    *[bytes([lead]) for lead in range(0xCD, 0xD7)],
    *(b"\xe1\x8f", b"\xea\xad", b"\xea\xae", b"\xea\x93"),
)
_MIXED_SCRIPTS = re.compile(f"[{_FOREIGN}](?:(?<=[a-z].)|(?=[a-z]))")
_WORD = re.compile(f"[a-z{_FOREIGN}]+")
_LATIN = re.compile("[a-z]")
_LOOK_ALIKES = str.maketrans(
    "асеіорхуѕјѵԁһӏвнкмтгёїүьпԛԝ"
    + "αβεηικνορτυχωγςσζμϳ"
    + "օսհոցզյռլտ"
    + "ꓐꓑꓒꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴ"
    + "ᎪᏴᏟᎠᎬᏀᎻᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᏃ".lower(),
    "aceiopxysjvdhlbhkmtreiybnqw"
    + "abenikvoptuxwycozmj"
    + "ouhngqjnls"
    + "bpddtgkjczfmnlsrvhwxyaeiou"
    + "abcdeghjklmprstvwz",
)
_NORMALISE_CHARACTERS = 512  # at once: reordering a run of combining marks takes quadratic time


def fold(text: str, *, lower: bool = False) -> str:
    """NFKC and lower case, without invisible characters and marks on letters, blanks for
    punctuation beyond ASCII; letters in circles, small capitals and their like are plain letters,
    and look-alikes in Latin words are Latin (UAX #15, UTS #39). With `lower`, the text is in lower
    case already.

    >>> fold("Cr\u00e9dit \uff26\uff32\uff25\uff25, vi\u200bagra, \u24df\u24d0ypal и мы")
    'cr\u00e9dit free, viagra, paypal и мы'
    """
    if text.isascii():
        return text if lower else text.lower()
    if "\u202e" in text:
        text = _BACKWARDS.sub(lambda run: run[1][::-1], text)
    codes = np.frombuffer(text.encode(_UTF_32, "surrogatepass"), np.uint32)
    plain = (codes + _CHANGES.take(codes)).tobytes().decode(_UTF_32, "surrogatepass")
    visible = plain.replace("\0", "")
    if visible.isascii():
        return visible if lower else visible.lower()
    pieces = [
        visible[start : start + _NORMALISE_CHARACTERS]
        for start in range(0, len(visible), _NORMALISE_CHARACTERS)
    ]
    normal = "".join(
        [piece if piece.isascii() else unicodedata.normalize("NFKC", piece) for piece in pieces]
    )
    if not lower or normal != visible:
        normal = normal.lower()
    utf8 = normal.encode("utf-8", "replace")
    if 0xCC in utf8 or 0xCD in utf8 or utf8.find(b"\xe2\x83") >= 0:
        normal = _COMBINING_MARKS.sub("", normal)
    if any(map(utf8.__contains__, _FOREIGN_STARTS)) and _MIXED_SCRIPTS.search(normal):
        normal = _WORD.sub(
            lambda word: word[0].translate(_LOOK_ALIKES) if _LATIN.search(word[0]) else word[0],
            normal,
        )
    return normal


# ---- words

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
# The first bytes of their characters in UTF-8. A search for these is a hundred times faster than
# one for the expressions.
_SPACELESS_LEADS = bytes((0xE0, 0xE1, 0xE3))
_IDEOGRAPH_LEADS = bytes((*range(0xE3, 0xEA), 0xEF, *range(0xF0, 0xF4)))
_HANGUL_LEADS = bytes(range(0xEA, 0xEE))

# Every letter looks at the one behind it: a run is taken whole or left at once, in linear time.
_LETTER = "[a-z\u00df-\u024f\u0370-\u052f]"
_SPACED_WORD = re.compile(
    rf"(?<![^\W_]){_LETTER}([ \n.*_|/~+-]){_LETTER}(?![^\W_])"
    rf"(?:\1{_LETTER}(?![^\W_])){{2}}(?:\1{_LETTER}(?![^\W_])|)*+"
)
_SPACED_LETTERS = b" a a a a"

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


def deobfuscate(utf8: bytes) -> bytes:
    """Undo disguises: digits and signs within words, and letters set apart.

    At most `_MAX_MASKED_WORDS` words are looked at. Four and more letters with the same sign or
    blank between any two are closed up.

    >>> deobfuscate(b"v1agra, v i a g r a"), deobfuscate(b"7x7 is 49")
    (b'viagra, viagra', b'7x7 is 49')
    """
    kinds = utf8.translate(_BYTE_KINDS)
    place = kinds.find(_MASKED_PATTERN)
    text = _unmask_words(utf8, kinds, place) if place >= 0 else utf8
    if not utf8.isascii():  # one byte for each character
        kinds = utf8.translate(_BYTE_KINDS, _CONTINUATION_BYTES)
    first = kinds.find(_SPACED_LETTERS)  # four letters apart, or three and a word, behind a sign
    if first < 0:
        return text
    start, end = max(first - 2, 0), kinds.rfind(_SPACED_LETTERS) + len(_SPACED_LETTERS) + 1
    words = text.decode("utf-8", "replace")
    closed = _SPACED_WORD.sub(lambda word: word[0].replace(word[1], ""), words[start:end])
    return (words[:start] + closed + words[end:]).encode()


def _unmask_words(utf8: bytes, kinds: bytes, place: int) -> bytes:
    """Leaves words that are long, mostly signs, or part of a number or an address."""
    pieces: list[bytes] = []
    done = 0
    for _ in range(_MAX_MASKED_WORDS):
        first, last = max(place - _MAX_MASKED_BYTES, 0), place + _MAX_MASKED_BYTES
        start = kinds.rfind(b" ", first, place) + 1 or first
        end = kinds.find(b" ", place, last)
        end = min(last, len(kinds)) if end < 0 else end
        word, follows = utf8[start:end].rstrip(b"!"), utf8[end : end + 2]
        size = len(word)
        if (
            size < _MAX_MASKED_BYTES
            and utf8[start - 1 : start] != b"."
            and not (follows[:1] == b"." and follows[1:].isalnum())
            and 3 * kinds.count(b"0", start, start + size) <= size
            and kinds.find(b".", start, start + size) < 0
        ):
            pieces += utf8[done:start], word.translate(_UNMASK_TABLE)
            done = place = start + size
        place = kinds.find(_MASKED_PATTERN, place + 1)
        if place < 0:
            break
    return b"".join((*pieces, utf8[done:]))


# ---- texts compared

# Above a signature, or what a mailing list appends: RFC 3676 section 4.3; Mailman's; many others'.
_FOOTER_LINE = re.compile(r"\n(?:-- ?|_{20,}+|-{20,}+)\n")
_FOOTER_STARTS = ("\n--", "\n____")
_MAX_FOOTER_CHARACTERS = 1500
_MIN_TEXT_CHARACTERS = 20  # above a footer


def split_footer(text: str) -> tuple[str, str]:
    """A text, and the signature or the mailing list's footer below it."""
    start = max(len(text) - _MAX_FOOTER_CHARACTERS, _MIN_TEXT_CHARACTERS)
    marks = [mark for begin in _FOOTER_STARTS if (mark := text.find(begin, start)) >= 0]
    line = _FOOTER_LINE.search(text, min(marks)) if marks else None
    return (text[: line.start()], text[line.start() :]) if line else (text, "")


_COMPARED_LETTERS = 8  # of each word
_MAX_SOUGHT_WORDS = 48  # of the words that are not found at once, spread over them
_MAX_COMPARED_CHARACTERS, _MAX_COMPARED_TEXTS = 50_000, 5
_SHORT_WORD_LETTERS = 3  # shorter words are in any text
_MIN_COMPARED_WORDS = 8
_WORD_MARKS = ".,:;!?\"'()"


def find_unlike_page(texts: Sequence[str], unseen: Sequence[int]) -> list[int]:
    """The numbers of those texts that may stand for a page (`unseen`), but say something else than
    the page, which is what people see.

    With 150 words of good mail in such a text, of 200 spam (SpamAssassin corpus) 71 were called
    spam instead of 178; like this, 155. If all words of the spam are in it too, 153 are while half
    of the words have to be missing, and 170 with a quarter.
    """
    visible = [text for number, text in enumerate(texts) if number not in unseen]
    page = "\n".join(visible)[:_MAX_COMPARED_CHARACTERS]
    if len(page.split(None, _MIN_COMPARED_WORDS)) <= _MIN_COMPARED_WORDS:
        return []
    return [
        number
        for count, number in enumerate(unseen)
        if count >= _MAX_COMPARED_TEXTS or _differs_from_page(texts[number], page)
    ]


def _differs_from_page(text: str, page: str) -> bool:
    """Whether more than a quarter of the words of a text are not on the page."""
    text_words, page_words = set(text.split()), set(page.split())
    missing = _comparable_words(text_words - page_words)
    if len(missing) >= _MAX_SOUGHT_WORDS:
        # not all can be looked for: leave out those that differ in their end, or in signs
        missing -= _comparable_words(page_words)
    sought = sorted(missing)[:: len(missing) // _MAX_SOUGHT_WORDS + 1]
    # a search finds them also where no blanks part the words of the page, or signs do
    absent = 4 * sum([word not in page for word in sought]) * len(missing)
    if absent <= _MIN_COMPARED_WORDS * len(sought):
        return False  # nearly all are there: the number of words makes no difference
    words = len(_comparable_words(text_words))
    return words >= _MIN_COMPARED_WORDS and absent > words * len(sought)


def _comparable_words(words: set[str]) -> set[str]:
    return {
        start
        for word in words
        if len(word) > _SHORT_WORD_LETTERS
        and len(start := word.strip(_WORD_MARKS)[:_COMPARED_LETTERS]) > _SHORT_WORD_LETTERS
        and start.isalpha()
    }


# ---- how little text there is
#
# This is evidence too. A picture with text drawn into it leaves no words to know spam by, and few
# honest messages are a picture that leads to a link and nothing else. A handful of words may be
# words that come only once; then their looks are all there is. Such clues say how much and of what
# kind, in a few steps, so what is learnt holds for pictures and words never seen.

_WORD_COUNT_STEPS = ((0, b"no"), (3, b"scarce"), (10, b"few"), (30, b"some"))  # at most
_MAX_COUNTED_WORDS = _WORD_COUNT_STEPS[-1][0]
_MAX_NO_TEXT_WORDS = 3
_MAX_KINDS = 6
_HANDFUL_WORDS = 10  # (corpora/RESULTS.md, "What a handful of words looks like")
_MAX_LOOK_BYTES = 16  # longer words all look alike
_LETTERS_AND_DIGITS = re.compile(rb"[A-Za-z0-9\x80-\xff]*")


def describe_makeup(
    text: bytes, letters: int, leaves: Iterable[bytes], *, pictures: bool, linked: bool
) -> tuple[list[bytes], bytes]:
    """Clues to how a message is built, and what counts as its words where there are next to none:
    they are in capitals, which folded text does not have.

    Parameters
    ----------
    text
        What a reader sees.
    letters
        Number of characters of scripts without blanks, beside it.
    leaves
        Media types.
    pictures
        Whether any are shown or attached.
    linked
        Whether one stands within a link.
    """
    kinds = []  # of text its subtype, of all else its main type
    for media in leaves:
        main, _, subtype = media.partition(b"/")
        kinds.append(subtype if main == b"text" else main)
    clues = [b"leaves_" + b"_".join(list(dict.fromkeys(kinds))[:_MAX_KINDS])]
    words = len(text.split(None, _MAX_COUNTED_WORDS)) + letters if pictures else 0
    if not pictures or words > _MAX_COUNTED_WORDS:
        return clues, b""
    size = next(name for limit, name in _WORD_COUNT_STEPS if words <= limit)
    clues += [
        size + b"_words_picture",
        b"little_text_picture",
        b"little_text_picture_" + (b"link" if linked else b"alone"),
    ]
    is_substituted = linked and words <= _MAX_NO_TEXT_WORDS
    return clues, b" ".join(clues).upper() if is_substituted else b""


def handful_clues(text: bytes, letters: int, subjects: Iterable[bytes]) -> list[bytes]:
    """How many words a reader sees and what each looks like, in the subject too, if the text is a
    handful of words at most; `text` and `letters` as in `describe_makeup`.
    """
    words = text.split(None, _HANDFUL_WORDS)
    if len(words) + letters > _HANDFUL_WORDS:
        return []
    clues = _word_looks(b"text", words, letters)
    for subject in subjects:
        clues += _word_looks(b"subject", subject.split(None, _HANDFUL_WORDS), 0)
    return clues


def _word_looks(where: bytes, words: list[bytes], letters: int) -> list[bytes]:
    if len(words) > _HANDFUL_WORDS:
        return []
    looks = [
        b"few_%b_%b_%d" % (where, _word_kind(word), min(len(word), _MAX_LOOK_BYTES))
        for word in words
    ]
    return [b"few_%b_%d" % (where, len(words) + letters), *looks]


def _word_kind(word: bytes) -> bytes:
    if not _LETTERS_AND_DIGITS.fullmatch(word):
        return b"signs"
    letters = len(word.translate(None, b"0123456789"))
    if letters == len(word):
        return b"letters"
    return b"mixed" if letters else b"digits"
