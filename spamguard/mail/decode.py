"""In which charset 8-bit text is that names none, by its bytes: only those that Windows-1252 would
make rubbish of.

East Asian charsets put two bytes to a character, and most characters of a text into few rows of the
code table; Thai has an order of its own. What fits none gets no answer. Looks at a bounded part.
Source: the indexes of the WHATWG Encoding Standard; Li & Momoi 2001, "A composite approach to
language/encoding detection".

Transfer encodings, charsets and encoded words to text, and text to its folded form (RFC 2045, 2047,
2231).

Wrong, lying and unknown declarations are the usual case in spam: they never raise, they give the
best text there is and the name of the defect.
"""

from __future__ import annotations

import binascii
import re
import unicodedata
from collections import Counter
from contextlib import suppress
from encodings.aliases import aliases
from functools import lru_cache

import numpy as np

from spamguard import native
from spamguard.mail.text import to_single_script

_MAX_GUESS_BYTES = 2000  # bytes
_MIN_HIGH_BYTES = 12  # bytes beyond ASCII: fewer could be anything
_MIN_RUN_SHARE = (
    0.5  # share of them beside another: in Latin letters those with accents stand alone
)
_ASCII_BYTES = bytes(range(0x80))
_HIGH_BYTE_RUN = re.compile(rb"[\x80-\xff]{2,}")
_TWO_BYTE_CHARACTER = re.compile(rb"([\x81-\xfe])([\x40-\x7e\x80-\xfe])|[\x80-\xff]")
_THAI_MARKED = re.compile(rb"[\xa1-\xce][\xd1\xd4-\xda\xe7-\xee]")
_THAI_SYLLABLES = re.compile(
    rb"(?:[\xa1-\xce][\xd1\xd4-\xda]?[\xe7-\xee]?\xd3?|[\xcf\xd0\xd2\xdf-\xe6\xef-\xfb])+"
)
_ALPHABET_BYTES = bytes(
    range(0xC0, 0x100)
)  # where charsets of one byte have their letters: Windows-1252 makes one other letter of each


def guess_charset(data: bytes) -> bytes:
    """Its name, empty where nothing fits."""
    sample = data[:_MAX_GUESS_BYTES]
    beyond = sample.translate(None, _ASCII_BYTES)
    runs = _HIGH_BYTE_RUN.findall(sample)
    joined = b"".join(runs)
    if len(beyond) < _MIN_HIGH_BYTES or len(joined) < _MIN_RUN_SHARE * len(beyond):
        return b""
    if len(joined.translate(None, _ALPHABET_BYTES)) < len(joined) / 10:
        return b""
    pairs = _TwoByteStatistics(sample)
    return (
        _guess_japanese_or_korean(pairs) or _guess_thai(joined, len(runs)) or _guess_chinese(pairs)
    )


def _guess_thai(joined: bytes, runs: int) -> bytes:
    """No blanks between words; marks stand on consonants and nowhere else."""
    marked = len(_THAI_MARKED.findall(joined))
    fits = sum(map(len, _THAI_SYLLABLES.findall(joined))) > 0.98 * len(joined)
    return b"tis-620" if fits and marked > len(joined) / 8 and len(joined) > 6 * runs else b""


class _TwoByteStatistics:
    """Text as characters of two bytes. whole: nearly all are; low: share of second bytes that are
    ASCII.
    """

    def __init__(self, sample: bytes) -> None:
        found = _TWO_BYTE_CHARACTER.findall(sample)
        self._lead_counts = Counter([lead[0] for lead, _ in found if lead])
        self._pair_count = max(self._lead_counts.total(), 1)
        self.is_two_byte = self._pair_count > 0.9 * len(found)
        self.ascii_trail_share = (
            sum([trail < b"\x80" for lead, trail in found if lead]) / self._pair_count
        )

    def row_share(self, first: int, last: int) -> float:
        """The share of those whose first byte is among these."""
        return sum([self._lead_counts[lead] for lead in range(first, last + 1)]) / self._pair_count


def _guess_japanese_or_korean(pairs: _TwoByteStatistics) -> bytes:
    """Japanese by its kana, Korean by its syllables (of common ideographs half stand behind these
    rows).
    """
    if not pairs.is_two_byte:
        return b""
    if pairs.row_share(0x82, 0x83) > 0.15 and pairs.row_share(0x81, 0x9F) > 0.8:
        return b"shift_jis"
    if (
        pairs.ascii_trail_share < 0.03
        and pairs.row_share(0xA4, 0xA5) > 0.15
        and pairs.row_share(0xA6, 0xAF) < 0.05
    ):
        return b"euc-jp"
    return (
        b"euc-kr"
        if pairs.ascii_trail_share < 0.03
        and pairs.row_share(0xB0, 0xC8) + pairs.row_share(0xA1, 0xA3) > 0.95
        else b""
    )


def _guess_chinese(pairs: _TwoByteStatistics) -> bytes:
    """By the rows of common ideographs and of punctuation."""
    marks = pairs.row_share(0xA1, 0xA3)
    if (
        pairs.is_two_byte
        and pairs.ascii_trail_share > 0.1
        and pairs.row_share(0xA4, 0xC6) + marks > 0.85
    ):
        return b"big5"
    return (
        b"gbk"
        if pairs.is_two_byte
        and pairs.ascii_trail_share < 0.1
        and pairs.row_share(0xB0, 0xD7) + marks > 0.8
        else b""
    )


_ENCODED_WORD = re.compile(
    rb"=\?([\w.:+-]{1,40}+)(?:\*[\w-]*+)?\?([bBqQ])\?((?:[^?]|(?<!=)\?(?!=)|)*+)\?="
)
_NOT_BASE64 = bytes(
    set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
)
_BASE64_PADDING = re.compile(rb"=++")
_PADDED_SOFT_BREAK = re.compile(
    rb"=[ \t]++\n"
)  # blanks at the end of a line were put there on the way (RFC 2045 section 6.7, rule 3)
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u065f\u0670"  # vowels of Hebrew and Arabic; what makes words longer
)
_PUNCTUATION = (
    "\u0080-\u00a9\u00ab\u00ac\u00ae-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u2000-\u200a\u2010-\u2029\u202f-\u205f"
    "\u037e\u0387\u055a-\u055f\u0589\u058a\u05be\u05c0\u05c3\u05c6\u05f3\u05f4\u0609-\u060d\u061b\u061d-\u061f\u066a-\u066d\u06d4"
    "\u0964\u0965\u1361-\u1368\u2070-\u209f\u2190-\u2bff\u2e00-\u2e5d\u3000-\u3004\u3008-\u3020\u3030\u3164\uff61-\uff64\uffa0"
)
_RANGE = re.compile("(.)(?:-(.))?", re.DOTALL)
_CHARACTER_RANGES = np.array(
    sorted(
        (ord(first), ord(last or first), kind)
        for kind, some in ((1, _PUNCTUATION), (2, _INVISIBLE))
        for first, last in _RANGE.findall(some)
    ),
    np.uint32,
)
_PUNCTUATION_RUN = re.compile(
    f"[{_INVISIBLE}{_PUNCTUATION}]+"
)  # one search for both: it is what folding spends its time on
# Marks that belong to no letter with a code of its own. What their UTF-8 begins with is found a
# hundred times faster.
_COMBINING_MARKS = re.compile("[\u0300-\u036f\u20d0-\u20ff]+")
_INVISIBLE_RUN = re.compile(f"[{_INVISIBLE}]+")
# A fixed list, because `codecs.lookup` searches the file system for names it does not know and
# remembers each for ever. Left out: what is no charset, what takes quadratic time, and charsets of
# mainframes: readers know none of these and show what is called so as if nothing was said, in
# letters that would be lost here.
_EXCLUDED_CODECS = frozenset(
    (
        *(
            "base64_codec",
            "bz2_codec",
            "hex_codec",
            "quopri_codec",
            "rot_13",
            "uu_codec",
            "zlib_codec",
            "idna",
            "mbcs",
            "punycode",
        ),
        *("cp037", "cp273", "cp424", "cp500", "cp875", "cp1026", "cp1140"),
    )
)
_UNALIASED_CODECS = (
    "cp856",
    "cp874",
    "cp1006",
    "koi8_t",
    "koi8_u",
    "mac_croatian",
    "mac_farsi",
    "utf_8_sig",
)
_CODECS = {
    **{alias: codec for alias, codec in aliases.items() if codec not in _EXCLUDED_CODECS},
    **{
        codec: codec
        for codec in (*aliases.values(), *_UNALIASED_CODECS)
        if codec not in _EXCLUDED_CODECS
    },
    **dict.fromkeys(("cp50220", "cp50221", "iso_2022_jp_ms"), "iso2022_jp"),
    "cn_big5": "big5",
    "cp31j": "cp932",
    "gb_2312_80": "gb2312",
    "koi8_ru": "koi8_u",
    "mac": "mac_roman",
    "mac_ce": "mac_latin2",
    "mac_centraleurroman": "mac_latin2",
    "mac_cyrillic": "mac_cyrillic",
    "unicode": "utf_16_le",
}
# One charset has many names: "windows-1251", "cp-1251", "win1251"; "ISO-8859-8-I", "iso88598".
_CHARSET_FAMILY = re.compile(
    "(?:windows|win|cp|ibm|ms|dos)_?([0-9]{2,4}j?)|iso_?8859_?([0-9]{1,2})(?:_[ei])?"
)
# what senders write under the narrower name (WHATWG Encoding Standard, section 4.2)
_SUPERSET_CODECS = {
    "latin_1": "cp1252",
    "iso8859_9": "cp1254",
    "iso8859_11": "cp874",
    "big5": "big5hkscs",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "tis_620": "cp874",
    "iso2022_jp": "iso2022_jp_ext",
    "utf_8": "utf-8",
    "ascii": "ascii",
}
_WIDE_CODEC_PREFIXES = (
    "utf_16",
    "utf_32",
)  # beginnings of names of codecs: of several bytes to a character
_SEVEN_BIT_CODEC_PREFIXES = (
    "iso2022",
    "hz",
    "utf_7",
)  # of those whose text is all ASCII as it stands
_TWO_BYTE_CODECS = frozenset(
    ("big5hkscs", "cp932", "cp949", "euc_jp")
)  # to a character, with gaps between them
_MAX_LOST_CHARACTERS = 100
_CP1252_GAPS = bytes.maketrans(
    b"\x81\x8d\x8f\x90\x9d", b"\xa0" * 5
)  # Windows-1252 has no letters there, and browsers show none
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_META_CHARSET = re.compile(rb"charset\s*+=\s*+[\"']?([\w.:-]{1,40}+)", re.I)
_PRESCAN_BYTES = (
    1024  # bytes in which a page must name its charset (HTML Standard, section 13.2.3.2)
)
_FOOTER_STARTS = (
    b"\n--",
    b"\n__",
)  # how that begins which lists append to any text, encoded or not
_MAX_FOOTER_BYTES = 2000  # at the end of a text
_UU_LINE = rb"M[ -`]{50,62}\r?\n"  # a full one
_UU_FILE = re.compile(
    rb"^begin 0?[0-7]{3} ([^\r\n]{1,200})\r?\n"
    + _UU_LINE
    + rb"(?:"
    + _UU_LINE
    + rb"|)*+(?:[ -`]{0,62}\r?\n|){0,2}+(?:end\b)?",
    re.M,
)
_MAX_BASE64_PIECES = 100  # encodings in a row in one part
_NORMALISE_CHARACTERS = (
    512  # characters normalised at once: reordering a run of combining marks takes quadratic time
)


def codec_name(charset: bytes) -> str | None:
    """Python's name for a declared charset, or None when there is none fit for mail."""
    return _codec_name(charset[:60])


@lru_cache(maxsize=256)
def _codec_name(charset: bytes) -> str | None:
    name = re.sub("[^a-z0-9]+", "_", charset.decode("ascii", "replace").lower()).strip("_")
    plain = name.removeprefix("x_")
    family = _CHARSET_FAMILY.fullmatch(plain)
    common = (f"cp{family[1]}" if family[1] else f"iso8859_{family[2]}") if family else plain
    codec = _CODECS.get(name) or _CODECS.get(common)
    return codec and _SUPERSET_CODECS.get(codec, codec)


def decode_text(data: bytes, charset: bytes) -> tuple[str, list[bytes]]:
    """Bytes in a declared charset to text; strict first, then UTF-8, then whatever can be read.

    8-bit text that is unlabelled, mislabelled or labelled as Western is UTF-8 if it is valid UTF-8
    (practically never by chance), else what its bytes look like, else as declared or Windows-1252.
    Text that begins with the mark of UTF-16 is that, whatever it is called (WHATWG Encoding
    Standard, section 6).
    """
    declared = "utf-16" if _has_utf16_mark(data) else codec_name(charset) if charset else None
    if (
        declared is not None
        and declared.startswith(_WIDE_CODEC_PREFIXES)
        and data.isascii()
        and b"\0" not in data
    ):
        declared = "ascii"  # whatever it is called: what it says would be lost
    defects = [b"charset-unknown"] if charset and declared is None else []
    if declared in (None, "ascii", "utf-8", "cp1252") and data.isascii():  # the usual case
        return data.decode("ascii"), defects
    wrong = [*defects, b"charset-wrong" if charset else b"charset-missing"]
    first = declared if declared not in (None, "ascii") else "utf-8"
    shifted = first.startswith(_SEVEN_BIT_CODEC_PREFIXES) and data.isascii()
    for codec in dict.fromkeys(
        (first,) if shifted else (*_likelier_codecs(data, first), first, "utf-8")
    ):
        text = _decode_strict(data, codec)
        if text is not None:
            return text, defects if codec == declared or text.isascii() else wrong
    return _decode_damaged(data, declared), wrong


def _has_utf16_mark(data: bytes) -> bool:
    return (
        data.startswith(_UTF16_MARKS) and data[2:4] != b"\0\0"
    )  # UTF-32 begins with one of them, too


def _likelier_codecs(data: bytes, declared: str) -> list[str]:
    """As what to try 8-bit text first that calls itself Western (RESULTS.md, "Mail of other
    sources"), or names a charset of 7 bits.
    """
    if declared != "cp1252" and (
        not declared.startswith(_SEVEN_BIT_CODEC_PREFIXES) or data.find(b"\x1b") >= 0
    ):  # 8-bit text is in none of these
        return []
    guess = codec_name(guess_charset(data))
    return ["utf-8", guess] if guess else ["utf-8"]


def sniff_charset(data: bytes) -> bytes:
    """The charset of text that came without one: by its escape sequences (RFC 1468, 1557), or as a
    page names it; empty: unknown.
    """
    if data.isascii():
        if (
            data.find(b"\x1b") < 0 or data.find(b"\x1b$") < 0
        ):  # one byte is found ten times faster than two
            return b""
        return b"iso-2022-kr" if b"\x1b$)C" in data else b"iso-2022-jp"
    named = _META_CHARSET.search(data, 0, _PRESCAN_BYTES)
    codec = codec_name(named[1]) if named else None
    if named is None or codec is None:
        return b""
    return (
        b"utf-8"
        if codec.startswith((*_WIDE_CODEC_PREFIXES, *_SEVEN_BIT_CODEC_PREFIXES))
        else named[1]
    )  # what says so in ASCII is none of these


def _decode_strict(data: bytes, codec: str) -> str | None:
    try:
        return (data.translate(_CP1252_GAPS) if codec == "cp1252" else data).decode(codec)
    except ValueError:  # UnicodeDecodeError, and what single codecs raise
        return None


def _decode_damaged(data: bytes, declared: str | None) -> str:
    """Text that no codec takes as a whole: damaged or cut off, if most of it is what was declared;
    else by its bytes, else Windows-1252.
    """
    if declared not in (None, "ascii"):
        text = (
            _decode_two_byte(data, declared)
            if declared in _TWO_BYTE_CODECS
            else data.decode(declared, "replace")
        )
        if declared != "utf-8" or 2 * text.count("\ufffd") < len(text) - len(
            text.encode("ascii", "ignore")
        ):
            return text
    guess = codec_name(guess_charset(data))
    return data.decode(guess, "replace") if guess else data.translate(_CP1252_GAPS).decode("cp1252")


def _decode_two_byte(data: bytes, codec: str) -> str:
    """Text without what is no character: as in browsers both its bytes go, so often at most, or all
    that follow would be others.
    """
    texts: list[str] = []
    rest = memoryview(data)
    for _ in range(_MAX_LOST_CHARACTERS):
        try:
            return "".join((*texts, str(rest, codec)))
        except UnicodeDecodeError as error:
            place = error.start
        texts += str(rest[:place], codec), "\ufffd"
        rest = rest[place + 1 + (bytes(rest[place + 1 : place + 2]) >= b"\x80") :]
    return "".join((*texts, str(rest, codec, "replace")))


def decode_transfer_encoding(data: bytes, encoding: bytes) -> tuple[bytes, list[bytes]]:
    """Undo the content transfer encoding (RFC 2045 section 6); damage is decoded as far as it goes."""
    if encoding == b"base64":
        return decode_base64(data)
    if encoding == b"quoted-printable":
        padded = data.find(b"= ") >= 0 or data.find(b"=\t") >= 0
        return binascii.a2b_qp(_PADDED_SOFT_BREAK.sub(b"=\n", data) if padded else data), []
    if encoding in (b"x-uuencode", b"uuencode", b"x-uue"):
        return _decode_uuencode(data)
    known = encoding in (b"", b"7bit", b"8bit", b"binary")
    return data, [] if known else [b"encoding-unknown"]


def decode_base64(data: bytes) -> tuple[bytes, list[bytes]]:
    """Base64 with the padding repaired, foreign characters passed over, several encodings in a row
    all read, and what a list appended.
    """
    places = [
        place for mark in _FOOTER_STARTS if (place := data.find(mark, -_MAX_FOOTER_BYTES)) >= 0
    ]  # base64 has neither
    if not places:
        return _decode_base64_run(data)
    place = min(places)
    return _decode_base64_run(data[:place])[0] + data[place:], [b"base64"]


def _decode_base64_run(data: bytes) -> tuple[bytes, list[bytes]]:
    padding = data.find(b"=")
    if padding < 0 or not data[padding:].strip(b"= \t\n"):
        try:
            return binascii.a2b_base64(data), []
        except binascii.Error:
            pass  # mended below
    pieces = _BASE64_PADDING.split(data.translate(None, _NOT_BASE64), maxsplit=_MAX_BASE64_PIECES)
    return b"".join([_mend_base64(piece) for piece in pieces]), [b"base64"]


def _mend_base64(piece: bytes) -> bytes:
    """One run of base64 with the padding it needs; a last character alone holds no byte. What is
    left after so many runs is decoded as one, in which padding stands for zeros.
    """
    whole = piece.replace(b"=", b"A")
    whole = whole[: len(whole) - (len(whole) % 4 == 1)]
    found = binascii.a2b_base64(whole + b"=" * (-len(whole) % 4))
    return found.replace(b"\0", b"") if b"=" in piece else found


def strip_uuencoded_files(data: bytes) -> tuple[bytes, list[bytes]]:
    """Plain text without the files that programs from before MIME put into it, uuencoded, and their
    names.
    """
    if data.find(b"\nend", -_MAX_FOOTER_BYTES) < 0:
        return data, []
    return _UU_FILE.sub(b"", data), _UU_FILE.findall(data)


def _decode_uuencode(data: bytes) -> tuple[bytes, list[bytes]]:
    """Lines between `begin` and `end`; the first damaged line ends it."""
    begin = re.search(rb"^begin [^\n]*\n", data, re.M)
    lines: list[bytes] = []
    for line in filter(None, data[begin.end() if begin else 0 :].split(b"\n")):
        if line == b"end":
            break
        try:
            lines.append(
                binascii.a2b_uu(line)[: len(line)]
            )  # it fills what a short line lacks with NUL
        except binascii.Error:
            return b"".join(lines), [b"uuencode"]
    return b"".join(lines), []


def decode_unstructured(value: bytes, charset: bytes = b"") -> tuple[str, list[bytes]]:
    """A header field's value as text: encoded words decoded (RFC 2047 section 6.2), 8-bit guessed,
    folding kept.

    charset: of the body, which that of 8-bit text is unless it is UTF-8.
    """
    if value.find(b"=?") < 0:  # "in" would fail within, and be slower
        if value.isascii():
            return (
                decode_text(value, sniff_charset(value))
                if value.find(b"\x1b") >= 0
                else (value.decode("ascii"), [])
            )
        utf8 = _decode_strict(value, "utf-8")
        return decode_text(value, charset)[0] if utf8 is None else utf8, [b"header-8bit"]
    texts: list[str] = []
    defects: list[bytes] = []
    for named, data in _split_encoded_words(value, defects):
        text, wrong = decode_text(data, named or charset)
        texts.append(text)
        if named:
            defects += wrong
    return "".join(texts), defects


def _split_encoded_words(value: bytes, defects: list[bytes]) -> list[tuple[bytes, bytes]]:
    """A value as (charset, bytes) in order, charset empty between encoded words.

    Neighbours of one charset are one run: many senders cut a character in two (RFC 2047 section 5
    forbids it).
    """
    runs: list[tuple[bytes, bytes]] = []
    position = 0
    for match in _ENCODED_WORD.finditer(value):
        between = value[position : match.start()]
        if between and not (runs and between.isspace()):
            runs.append((b"", between))
        charset, data = (
            match.group(1).lower(),
            _decode_encoded_word(match.group(2), match.group(3), defects),
        )
        if runs and runs[-1][0] == charset:
            data = runs.pop()[1] + data
        runs.append((charset, data))
        position = match.end()
    return [*runs, (b"", value[position:])]


def _decode_encoded_word(kind: bytes, data: bytes, defects: list[bytes]) -> bytes:
    if kind in b"qQ":
        return binascii.a2b_qp(data, header=True)
    decoded, wrong = decode_base64(data)
    defects += wrong
    return decoded


def fold(text: str, *, lower: bool = False) -> str:
    """NFKC and lower case, without invisible characters and marks put on letters, look-alikes in
    Latin words Latin (UAX #15, UTS #39).

    lower: it is in lower case already. Linear time for any input.
    """
    visible = text if text.isascii() else _strip_punctuation(text)
    if visible.isascii():
        return visible if lower else visible.lower()
    pieces = [
        visible[at : at + _NORMALISE_CHARACTERS]
        for at in range(0, len(visible), _NORMALISE_CHARACTERS)
    ]
    normal = "".join(
        [piece if piece.isascii() else unicodedata.normalize("NFKC", piece) for piece in pieces]
    )
    if not lower or normal != visible:
        normal = normal.lower()
    utf8 = normal.encode("utf-8", "replace")
    if 0xCC in utf8 or 0xCD in utf8 or utf8.find(b"\xe2\x83") >= 0:
        normal = _COMBINING_MARKS.sub("", normal)
    return to_single_script(normal)


def _strip_punctuation(text: str) -> str:
    """The text without runs of punctuation and invisible characters."""
    compiled = native.functions()
    if compiled is not None:
        with suppress(UnicodeEncodeError):
            return compiled.letters(text, _CHARACTER_RANGES)
    return _PUNCTUATION_RUN.sub(_replace_run, text)


def _replace_run(match: re.Match[str]) -> str:
    """What is left of a run of punctuation and invisible characters: a blank, or nothing if nobody
    sees it.
    """
    run = match.group()
    return "" if _INVISIBLE_RUN.fullmatch(run) else " "
