"""Transfer encodings, charsets and encoded words to text (RFC 2045, RFC 2047).

Wrong, lying and unknown declarations are the usual case in spam. A declared charset is tried
strictly first, then UTF-8, then the charset that the bytes look like (`guess_charset`), and last
what can be read of it. Every function gives the best text there is, and the names of the defects.
Must never raise; takes linear time.

It is written by hand because `email.header` refuses what is damaged, and charset-normalizer takes
0.7 ms to guess where this takes 0.04 (5,000 letters of Russian).
"""

from __future__ import annotations

import binascii
import re
from collections import Counter
from encodings.aliases import aliases
from functools import lru_cache

# ---- names of charsets

# A fixed table, because `codecs.lookup` searches the file system for unknown names and remembers
# each for ever. Left out is what is no charset, what takes quadratic time, and charsets of
# mainframes: mail programs know none of these and show the text as if nothing was declared.
_EXCLUDED_NAMES = (
    "base64_codec bz2_codec hex_codec quopri_codec rot_13 uu_codec zlib_codec idna mbcs punycode"
    " cp037 cp273 cp424 cp500 cp875 cp1026 cp1140"
)
_EXCLUDED_CODECS = frozenset(_EXCLUDED_NAMES.split())
_UNALIASED_CODECS = "cp856 cp874 cp1006 koi8_t koi8_u mac_croatian mac_farsi utf_8_sig"
_OWN_NAMES = {codec: codec for codec in (*aliases.values(), *_UNALIASED_CODECS.split())}
CODECS = {
    **{
        name: codec
        for name, codec in (aliases | _OWN_NAMES).items()
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
# What senders write under the narrower name (WHATWG Encoding Standard, section 4.2).
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
}
_MAX_CHARSET_BYTES = 60
_WIDE_CODEC_PREFIXES = ("utf_16", "utf_32")
_SEVEN_BIT_CODEC_PREFIXES = ("iso2022", "hz", "utf_7")  # their text is all ASCII as it stands
_TWO_BYTE_CODECS = frozenset(("big5hkscs", "cp932", "cp949", "euc_jp"))  # with gaps in the table


@lru_cache(maxsize=256)
def codec_name(charset: bytes) -> str | None:
    """Python's name for a declared charset, or None when there is none fit for mail.

    >>> codec_name(b"ISO-8859-1"), codec_name(b"x-sjis"), codec_name(b"rot13")
    ('cp1252', 'cp932', None)
    """
    written = charset[:_MAX_CHARSET_BYTES].decode("ascii", "replace").lower()
    name = re.sub("[^a-z0-9]+", "_", written).strip("_")
    common = name.removeprefix("x_")
    if family := _CHARSET_FAMILY.fullmatch(common):
        common = f"cp{family[1]}" if family[1] else f"iso8859_{family[2]}"
    codec = CODECS.get(name) or CODECS.get(common)
    return codec and _SUPERSET_CODECS.get(codec, codec)


# ---- charsets to text

_MAX_LOST_CHARACTERS = 100
# Windows-1252 has no letters there, and browsers show none.
_CP1252_GAPS = bytes.maketrans(b"\x81\x8d\x8f\x90\x9d", b"\xa0" * 5)
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_META_CHARSET = re.compile(rb"charset\s*+=\s*+[\"']?([\w.:-]{1,40}+)", re.I)
_PRESCAN_BYTES = 1024  # in which a page must name its charset (HTML Standard, 13.2.3.2)


def decode_text(data: bytes, charset: bytes) -> tuple[str, list[bytes]]:
    """Bytes in a declared charset to text: strictly, then as UTF-8, then what can be read.

    8-bit text that is unlabelled, mislabelled or labelled as Western is UTF-8 if it is valid UTF-8
    (practically never by chance), else what its bytes look like, else as declared or Windows-1252.
    Text that begins with the mark of UTF-16 is UTF-16, whatever it is declared as (WHATWG Encoding
    Standard, section 6).
    """
    is_ascii = data.isascii()
    if data.startswith(_UTF16_MARKS) and data[2:4] != b"\0\0":  # else UTF-32, with the same start
        declared: str | None = "utf-16"
    else:
        declared = codec_name(charset) if charset else None
        if (
            declared
            and is_ascii
            and declared.startswith(_WIDE_CODEC_PREFIXES)
            and b"\0" not in data
        ):
            declared = "ascii"  # it can be nothing else
    defects = [b"charset-unknown"] if charset and declared is None else []
    if is_ascii and declared in (None, "ascii", "utf-8", "cp1252"):  # the usual case
        return data.decode("ascii"), defects
    guess_defects = [*defects, b"charset-wrong" if charset else b"charset-missing"]
    first = "utf-8" if declared in (None, "ascii") else declared
    codecs = [first]
    if not (is_ascii and first.startswith(_SEVEN_BIT_CODEC_PREFIXES)):
        codecs = [first, "utf-8"]
        # Text declared as Western, or in a charset of 7 bits that it cannot be in, is likelier
        # something else (RESULTS.md, "Mail of other sources").
        is_seven_bit = first.startswith(_SEVEN_BIT_CODEC_PREFIXES)
        if first == "cp1252" or (is_seven_bit and data.find(b"\x1b") < 0):
            codecs = ["utf-8", *filter(None, [codec_name(guess_charset(data))]), first]
    for codec in dict.fromkeys(codecs):
        text = _decode_strict(data, codec)
        if text is not None:
            return text, defects if codec == declared or text.isascii() else guess_defects
    return _decode_damaged(data, declared), guess_defects


def sniff_charset(data: bytes) -> bytes:
    """The charset of text without a label: by its escape sequences (RFC 1468, RFC 1557), or as a
    page names it; empty if unknown.
    """
    if data.isascii():
        # to look for one byte first is ten times faster than for two
        if data.find(b"\x1b") < 0 or data.find(b"\x1b$") < 0:
            return b""
        return b"iso-2022-kr" if b"\x1b$)C" in data else b"iso-2022-jp"
    label = _META_CHARSET.search(data, 0, _PRESCAN_BYTES)
    codec = codec_name(label[1]) if label else None
    if label is None or codec is None:
        return b""
    # these cannot be: the name stood there in ASCII, and the text is not all ASCII
    impossible = codec.startswith((*_WIDE_CODEC_PREFIXES, *_SEVEN_BIT_CODEC_PREFIXES))
    return b"utf-8" if impossible else label[1]


def _decode_strict(data: bytes, codec: str) -> str | None:
    try:
        return (data.translate(_CP1252_GAPS) if codec == "cp1252" else data).decode(codec)
    except ValueError:  # UnicodeDecodeError, and what some codecs raise
        return None


def _decode_damaged(data: bytes, declared: str | None) -> str:
    """Text that no codec takes as a whole: damaged or cut off if most of it is what was declared,
    else by its bytes, else Windows-1252.
    """
    if declared in _TWO_BYTE_CODECS:
        return _decode_two_byte(data, declared)
    if declared not in (None, "ascii"):
        text = data.decode(declared, "replace")
        beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
        if declared != "utf-8" or 2 * text.count("\ufffd") < beyond_ascii:
            return text
    guess = codec_name(guess_charset(data))
    return data.decode(guess, "replace") if guess else data.translate(_CP1252_GAPS).decode("cp1252")


def _decode_two_byte(data: bytes, codec: str) -> str:
    """Text with each invalid character replaced, both its bytes as in browsers: with one byte left,
    all that follows would be read wrongly. The number of repairs is bounded.
    """
    texts: list[str] = []
    rest = memoryview(data)
    for _ in range(_MAX_LOST_CHARACTERS):
        try:
            return "".join((*texts, str(rest, codec)))
        except UnicodeDecodeError as error:
            start = error.start
        texts += str(rest[:start], codec), "\ufffd"
        has_second_byte = bytes(rest[start + 1 : start + 2]) >= b"\x80"
        rest = rest[start + 1 + has_second_byte :]
    return "".join((*texts, str(rest, codec, "replace")))


# ---- charset by the bytes
#
# East Asian charsets take two bytes for a character, and most characters of a text are in few rows
# of the code table; Thai has an order of its own. Only charsets that Windows-1252 would turn into
# rubbish are looked for. Sources: the indexes of the WHATWG Encoding Standard; Li & Momoi 2001, "A
# composite approach to language/encoding detection".

_MAX_GUESS_BYTES = 2000
_MIN_HIGH_BYTES = 12  # beyond ASCII: fewer could be anything
_MIN_RUN_SHARE = 0.5  # of them beside another one: accented Latin letters stand alone
_ASCII_BYTES = bytes(range(0x80))
# The letters of one-byte charsets: read as Windows-1252, each is one other letter.
_ALPHABET_BYTES = bytes(range(0xC0, 0x100))
_HIGH_BYTE_RUN = re.compile(rb"[\x80-\xff]{2,}")
_TWO_BYTE_CHARACTER = re.compile(rb"([\x81-\xfe])([\x40-\x7e\x80-\xfe])|[\x80-\xff]")
_THAI_MARKED = re.compile(rb"[\xa1-\xce][\xd1\xd4-\xda\xe7-\xee]")
_THAI_SYLLABLES = re.compile(
    rb"(?:[\xa1-\xce][\xd1\xd4-\xda]?[\xe7-\xee]?\xd3?|[\xcf\xd0\xd2\xdf-\xe6\xef-\xfb])+"
)


def guess_charset(data: bytes) -> bytes:
    """The name of the charset that the start of a text looks like; empty where none fits."""
    sample = data[:_MAX_GUESS_BYTES]
    beyond_ascii = sample.translate(None, _ASCII_BYTES)
    runs = _HIGH_BYTE_RUN.findall(sample)
    joined = b"".join(runs)
    if (
        len(beyond_ascii) < _MIN_HIGH_BYTES
        or len(joined) < _MIN_RUN_SHARE * len(beyond_ascii)
        or len(joined.translate(None, _ALPHABET_BYTES)) < len(joined) / 10
    ):
        return b""
    pairs = _TwoByteStatistics(sample)
    if pairs.is_two_byte and (guess := _guess_japanese_or_korean(pairs)):
        return guess
    # Thai has no blanks between words, and marks on consonants and nowhere else.
    marked = len(_THAI_MARKED.findall(joined))
    fits = sum(map(len, _THAI_SYLLABLES.findall(joined))) > 0.98 * len(joined)
    if fits and marked > len(joined) / 8 and len(joined) > 6 * len(runs):
        return b"tis-620"
    if not pairs.is_two_byte:
        return b""
    punctuation = pairs.row_share(0xA1, 0xA3)
    if pairs.ascii_trail_share > 0.1:
        return b"big5" if pairs.row_share(0xA4, 0xC6) + punctuation > 0.85 else b""
    is_gbk = pairs.ascii_trail_share < 0.1 and pairs.row_share(0xB0, 0xD7) + punctuation > 0.8
    return b"gbk" if is_gbk else b""


class _TwoByteStatistics:
    """A sample read as characters of two bytes: whether nearly all are, the share whose second byte
    is ASCII, and the rows of the code table that they are in.
    """

    def __init__(self, sample: bytes) -> None:
        characters = _TWO_BYTE_CHARACTER.findall(sample)
        self._lead_counts = Counter([lead[0] for lead, _ in characters if lead])
        self._count = max(self._lead_counts.total(), 1)
        self.is_two_byte = self._count > 0.9 * len(characters)
        ascii_trails = sum([trail < b"\x80" for lead, trail in characters if lead])
        self.ascii_trail_share = ascii_trails / self._count

    def row_share(self, first: int, last: int) -> float:
        """The share of characters whose first byte is in a range."""
        return sum([self._lead_counts[lead] for lead in range(first, last + 1)]) / self._count


def _guess_japanese_or_korean(pairs: _TwoByteStatistics) -> bytes:
    """Japanese by its kana, Korean by its syllables; half of the common Chinese characters stand
    behind those rows.
    """
    if pairs.row_share(0x82, 0x83) > 0.15 and pairs.row_share(0x81, 0x9F) > 0.8:
        return b"shift_jis"
    if pairs.ascii_trail_share >= 0.03:
        return b""
    if pairs.row_share(0xA4, 0xA5) > 0.15 and pairs.row_share(0xA6, 0xAF) < 0.05:
        return b"euc-jp"
    is_korean = pairs.row_share(0xB0, 0xC8) + pairs.row_share(0xA1, 0xA3) > 0.95
    return b"euc-kr" if is_korean else b""


# ---- transfer encodings (RFC 2045 section 6)

_NOT_BASE64 = bytes(
    set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
)
_BASE64_BYTES = bytes(set(range(256)) - set(_NOT_BASE64)) + b"\r\n"
_CONTROLS = bytes(set(range(1, 32)) - set(b"\t\n\v\f\r\x1b"))  # that no text has; no NUL
_SAMPLE_BYTES, _MIN_SAMPLE_BYTES = 4096, 64
_MIN_FOREIGN_SHARE, _MIN_CONTROL_SHARE = 20, 50  # one in so many
_BASE64_PADDING = re.compile(rb"=++")
_MAX_BASE64_PIECES = 100  # encodings in a row in one part
# Blanks at the end of a line were added on the way (RFC 2045 section 6.7, rule 3).
_PADDED_SOFT_BREAK = re.compile(rb"=[ \t]++\n")
# Mailing lists append a footer to any text, encoded or not. It begins like this, as base64 cannot.
_FOOTER_STARTS = (b"\n--", b"\n__")
_MAX_FOOTER_BYTES = 2000
_UU_LINES = rb"(?:M[ -`]{50,62}\r?\n|)*+"  # full ones
_UU_REST = rb"(?:[ -`]{0,62}\r?\n|){0,2}+"
_UU_FILE = re.compile(  # cut off, or with its end
    rb"begin (?<![^\n]begin )[0-7]{3,6} ([^\r\n]{1,200})\r?\n"
    rb"(?:(?=M[ -`]{50})%b%b(?:end\b)?|%bend\b)" % (_UU_LINES, _UU_REST, _UU_REST)
)


def decode_transfer_encoding(data: bytes, encoding: bytes) -> tuple[bytes, list[bytes]]:
    """Undo a content transfer encoding; damaged data is decoded as far as possible, and what cannot
    be base64 stays as it is.
    """
    if encoding == b"base64":
        decoded, defects = decode_base64(data)
        return (data, [b"base64"]) if _is_plain_text(data, decoded) else (decoded, defects)
    if encoding == b"quoted-printable":
        padded = data.find(b"= ") >= 0 or data.find(b"=\t") >= 0
        return binascii.a2b_qp(_PADDED_SOFT_BREAK.sub(b"=\n", data) if padded else data), []
    if encoding in (b"x-uuencode", b"uuencode", b"x-uue"):
        return _decode_uuencode(data)
    is_identity = encoding in (b"", b"7bit", b"8bit", b"binary")
    return data, [] if is_identity else [b"encoding-unknown"]


def decode_base64(data: bytes) -> tuple[bytes, list[bytes]]:
    """Base64 with its padding repaired and other characters skipped. Several encodings in a row are
    all read, and a footer behind them is kept.
    """
    starts = [data.find(start, -_MAX_FOOTER_BYTES) for start in _FOOTER_STARTS]
    footer = min([start for start in starts if start >= 0], default=-1)
    if footer >= 0:
        return _decode_base64_run(data[:footer])[0] + data[footer:], [b"base64"]
    return _decode_base64_run(data)


def _is_plain_text(data: bytes, decoded: bytes) -> bool:
    """Whether data in base64 are text under a wrong label: much of it is not of that alphabet, or
    the last character holds no byte, and what comes of it is no text. Rubbish in true base64 does
    not make it plain, because mail programs skip that.
    """
    sample = data[:_SAMPLE_BYTES]
    foreign = len(sample.translate(None, _BASE64_BYTES))
    if len(sample) >= _MIN_FOREIGN_SHARE * foreign and (
        len(data) > len(sample) or len(data.translate(None, _NOT_BASE64).rstrip(b"=")) % 4 != 1
    ):
        return False
    start = decoded[:_SAMPLE_BYTES]
    if len(start) < _MIN_SAMPLE_BYTES:  # too short to count
        return _decode_strict(start, "utf-8") is None
    return _MIN_CONTROL_SHARE * (len(start) - len(start.translate(None, _CONTROLS))) > len(start)


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
    """Decode one run of base64 with the padding it needs; a last character alone holds no byte.

    The last piece may hold padding, if there are too many: it stands for zeros, which are dropped.
    """
    plain = piece.replace(b"=", b"A")
    plain = plain[: len(plain) - (len(plain) % 4 == 1)]
    decoded = binascii.a2b_base64(plain + b"=" * (-len(plain) % 4))
    return decoded.replace(b"\0", b"") if b"=" in piece else decoded


def strip_uuencoded_files(data: bytes) -> tuple[bytes, list[bytes]]:
    """Plain text without the uuencoded files that programs from before MIME put into it, and the
    names of these files.
    """
    if data.find(b"begin ") < 0:
        return data, []
    return _UU_FILE.sub(b"", data), _UU_FILE.findall(data)


def _decode_uuencode(data: bytes) -> tuple[bytes, list[bytes]]:
    """Lines between `begin` and `end`; the first damaged line ends it."""
    begin = re.search(rb"^begin [^\n]*\n", data, re.M)
    decoded: list[bytes] = []
    for line in filter(None, data[begin.end() if begin else 0 :].split(b"\n")):
        if line == b"end":
            break
        try:
            # cut, because a short line is filled up with NUL
            decoded.append(binascii.a2b_uu(line)[: len(line)])
        except binascii.Error:
            return b"".join(decoded), [b"uuencode"]
    return b"".join(decoded), []


# ---- encoded words (RFC 2047)

_ENCODED_WORD = re.compile(
    rb"=\?([\w.:+-]{1,40}+)(?:\*[\w-]*+)?\?([bBqQ])\?((?:[^?]|(?<!=)\?(?!=)|)*+)\?="
)


def decode_unstructured(value: bytes, charset: bytes = b"") -> tuple[str, list[bytes]]:
    """A header field's value as text: encoded words decoded, folding kept.

    Text of 8 bits that is not UTF-8 is taken to be in the charset of the body.

    >>> decode_unstructured(b"=?utf-8?q?Gr=C3=BC?= =?utf-8?q?=C3=9Fe?=, Anna")
    ('Grüße, Anna', [])
    """
    if value.find(b"=?") < 0:  # "in" is slower
        if not value.isascii():
            utf8 = _decode_strict(value, "utf-8")
            return decode_text(value, charset)[0] if utf8 is None else utf8, [b"header-8bit"]
        if value.find(b"\x1b") < 0:
            return value.decode("ascii"), []
        return decode_text(value, sniff_charset(value))
    # Neighbours of one charset are one run: many senders cut a character in two (RFC 2047 section 5
    # forbids it).
    runs: list[tuple[bytes, bytes]] = []  # charset and bytes; no charset between encoded words
    defects: list[bytes] = []
    position = 0
    for match in _ENCODED_WORD.finditer(value):
        between = value[position : match.start()]
        if between and not (runs and between.isspace()):
            runs.append((b"", between))
        word_charset, encoding, data = match.groups()
        word_charset = word_charset.lower()
        if encoding in b"qQ":
            data = binascii.a2b_qp(data, header=True)
        else:
            data, word_defects = decode_base64(data)
            defects += word_defects
        if runs and runs[-1][0] == word_charset:
            data = runs.pop()[1] + data
        runs.append((word_charset, data))
        position = match.end()
    runs.append((b"", value[position:]))
    texts: list[str] = []
    for word_charset, data in runs:
        text, text_defects = decode_text(data, word_charset or charset)
        texts.append(text)
        if word_charset:
            defects += text_defects
    return "".join(texts), defects
