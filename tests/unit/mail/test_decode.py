"""Transfer encodings, charsets, encoded words and folding, valid and damaged."""

from __future__ import annotations

import base64
import binascii
import codecs
import quopri
from email.header import Header, decode_header, make_header
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.decode import (
    CODECS,
    codec_name,
    decode_base64,
    decode_text,
    decode_transfer_encoding,
    decode_unstructured,
    sniff_charset,
)
from spamguard.mail.text import fold
from tests.unit.mail.support import repeatable, seconds, words


@pytest.mark.parametrize(
    ("data", "charset", "text", "defects"),
    [
        ("grün".encode(), b"utf-8", "grün", []),
        ("grün".encode("latin-1"), b"ISO-8859-1", "grün", []),
        ("grün".encode("latin-1"), b"utf-8", "grün", [b"charset-wrong"]),
        ("grün".encode("latin-1"), b"", "grün", [b"charset-missing"]),
        ("grün".encode(), b"", "grün", [b"charset-missing"]),
        ("grün".encode(), b"us-ascii", "grün", [b"charset-wrong"]),
        ("grün".encode(), b"x-nonsense", "grün", [b"charset-unknown", b"charset-wrong"]),
        (b"plain", b"x-nonsense", "plain", [b"charset-unknown"]),
        (b"plain", b"", "plain", []),
        ("привет".encode("koi8-r"), b'"KOI8-R"', "привет", []),
        ("привет".encode(), b"shift_jis", "привет", [b"charset-wrong"]),
        ("中文".encode("gb18030"), b"gb2312", "中文", []),
        ("カナ".encode("iso-2022-jp"), b"iso-2022-jp", "カナ", []),
        ("カナ".encode("iso-2022-jp") + b"\x1b(I1\x1b(B", b"iso-2022-jp", "カナｱ", []),
        (
            "カナ".encode("iso-2022-jp") + b"\x1b$B-!\x1b(Bx",
            b"iso-2022-jp",
            "カナ\ufffdx",
            [b"charset-wrong"],
        ),
        (b"+AGE-bc +?", b"utf-7", "abc \ufffd", [b"charset-wrong"]),
        (b"plain", b"utf-16", "plain", []),
        (b"plain ones", b"utf-32", "plain ones", []),
        ("привет".encode("utf-16"), b"us-ascii", "привет", []),
        (b"\xfe\xff" + "привет".encode("utf-16-be"), b"", "привет", []),
        ("привет".encode("utf-16"), b"utf-16le", "привет", []),
        ("привет".encode("utf-16")[:-1], b"utf-8", "приве\ufffd", [b"charset-wrong"]),
        ("привет".encode("utf-32"), b"utf-32", "привет", []),
        (("ю" * 20).encode()[:-1], b"utf-8", "ю" * 19 + "\ufffd", [b"charset-wrong"]),
        (b"", b"utf-8", "", []),
        (
            "œuvre à 50 €".encode("cp1252"),
            b"iso-8859-1",
            "œuvre à 50 €",
            [],
        ),  # what stands in these gaps is never meant as control signs
        ("şükür, 50 €".encode("cp1254"), b"iso-8859-9", "şükür, 50 €", []),
        (b"\x81a\x8d\x9d \x93b\x94", b"iso-8859-1", "\xa0a\xa0\xa0 “b”", []),
        (
            "会議は明日の午後に始まります".encode("cp932"),
            b"iso-2022-jp",
            "会議は明日の午後に始まります",
            [b"charset-wrong"],
        ),
        (
            "회의는 내일 오후에 시작합니다".encode("cp949"),
            b"iso-2022-kr",
            "회의는 내일 오후에 시작합니다",
            [b"charset-wrong"],
        ),
        ("裏面碁".encode("big5hkscs"), b"big5", "裏面碁", []),
        (
            "会議".encode("euc_jp") + b"\xad\xa1" + "資料".encode("euc_jp"),
            b"euc-jp",
            "会議\ufffd資料",
            [b"charset-wrong"],
        ),
        (
            "회의".encode("cp949") + b"\xc9\xa1" + "자료".encode("cp949"),
            b"euc-kr",
            "회의\ufffd자료",
            [b"charset-wrong"],
        ),
        (
            "會議".encode("big5") + b"\xff\xffx" + "資料".encode("big5"),
            b"big5",
            "會議\ufffdx資料",
            [b"charset-wrong"],
        ),
    ],
)
def test_charsets(data: bytes, charset: bytes, text: str, defects: list[bytes]) -> None:
    assert decode_text(data, charset) == (text, defects)


@pytest.mark.parametrize(
    ("names", "codec"),
    [
        ("windows-1251 cp1251 cp-1251 win-1251 Windows1251 x-cp1251", "cp1251"),
        ("iso-8859-2 iso8859-2 iso88592 ISO_8859-2:1987", "iso8859_2"),
        ("iso-8859-8-i iso-8859-8-e iso-8859-8", "iso8859_8"),
        ("iso-8859-6-i", "iso8859_6"),
        ("x-sjis windows-31j shift_jis x-cp932", "cp932"),
        ("x-gbk gb_2312-80 windows-936", "gb18030"),
        ("ks_c_5601-1987 windows-949 x-windows-949 x-euc-kr", "cp949"),
        ("big5 cn-big5 x-big5", "big5hkscs"),
        ("iso-2022-jp cp50220 csISO2022JP", "iso2022_jp_ext"),
        ("macintosh x-mac-roman mac", "mac_roman"),
        ("x-mac-cyrillic", "mac_cyrillic"),
        ("x-mac-ce x-mac-centraleurroman", "mac_latin2"),
        ("tis-620 iso-8859-11 windows-874", "cp874"),
        ("koi8-u koi8-ru", "koi8_u"),
    ],
)
def test_a_charset_is_known_by_all_its_names(names: str, codec: str) -> None:
    assert {codec_name(name.encode()) for name in names.split()} == {codec}


def test_every_codec_in_the_list_is_a_charset_that_python_has() -> None:
    assert all(codecs.lookup(name)._is_text_encoding for name in set(CODECS.values()))


@pytest.mark.parametrize(
    "name",
    [
        b"base64",
        b"zlib",
        b"rot13",
        b"idna",
        b"punycode",
        b"unicode_escape",
        b"undefined",
        b"\0",
        b"",
        b"\xff",
        b"x" * 9999,
    ],
)
def test_codecs_that_are_no_charset_for_mail_are_unknown(name: bytes) -> None:
    assert codec_name(name) is None


@repeatable
@given(st.binary(max_size=300), st.sampled_from(sorted(CODECS)))
def test_any_bytes_are_text_in_any_charset(data: bytes, charset: str) -> None:
    text, _ = decode_text(data, charset.encode())
    assert isinstance(text, str)


@repeatable
@given(st.binary(max_size=500))
def test_transfer_encodings_are_undone(data: bytes) -> None:
    assert decode_transfer_encoding(base64.encodebytes(data), b"base64") == (data, [])
    assert decode_transfer_encoding(quopri.encodestring(data), b"quoted-printable") == (
        quopri.decodestring(quopri.encodestring(data)),
        [],
    )
    lines = [binascii.b2a_uu(data[at : at + 45]) for at in range(0, len(data), 45)]
    assert decode_transfer_encoding(
        b"begin 644 x\n" + b"".join(lines) + b"`\nend\n", b"x-uuencode"
    ) == (data, [])
    assert decode_transfer_encoding(data, b"8bit") == (data, [])
    assert decode_transfer_encoding(data, b"rot13") == (data, [b"encoding-unknown"])


@pytest.mark.parametrize(
    ("data", "decoded"),
    [
        (b"aGVsbG8", b"hello"),
        (b"aGVsbG8gdA", b"hello t"),
        (b"aGVs!bG8=", b"hello"),
        (b"aGVsbG8=\n\n", b"hello"),
        (b"aGVsb", b"hel"),
        (b"aGVsbG8=aGVsbG8=", b"hellohello"),
        (b"YQ==\nYg==\n", b"ab"),
        (b"====", b""),
        (b"a", b""),
        (b"", b""),
    ],
)
def test_damaged_base64_is_read_as_far_as_it_goes(data: bytes, decoded: bytes) -> None:
    assert decode_base64(data)[0] == decoded


@pytest.mark.parametrize("text", ["grüße", "grüßen", "größen"])  # with padding, and without
@pytest.mark.parametrize("line", [b"_" * 47, b"-- ", b"-" * 54, b"___\n---"])
def test_a_footer_behind_base64_is_text(text: str, line: bytes) -> None:
    below = b"\n" + line + b"\nA mailing list\nhttps://lists.example.com/?a=b\n"
    assert decode_base64(base64.encodebytes(text.encode()) + below) == (
        text.encode() + below,
        [b"base64"],
    )


def test_appending_without_end_is_read_once() -> None:
    assert decode_base64(b"aGVsbG8=" + b"\n--" * 100_000)[0].startswith(b"hello")


def test_base64_in_a_great_many_pieces_is_read_to_its_end() -> None:
    said = base64.b64encode(b"what it says") + b"\n" + base64.b64encode(b", and more")
    assert decode_base64(b"IA==\n" * 5000 + said)[0].endswith(b"what it says, and more")


@repeatable
@given(st.binary(max_size=300))
def test_nothing_in_base64_raises(data: bytes) -> None:
    assert isinstance(decode_base64(data)[0], bytes)
    assert isinstance(decode_base64(b"=".join([data] * 150))[0], bytes)


def test_soft_line_breaks_and_damage_in_quoted_printable() -> None:
    assert decode_transfer_encoding(b"via=\ngra =3D =E4=zz=", b"quoted-printable")[0].startswith(
        b"viagra = \xe4=zz"
    )
    assert (
        decode_transfer_encoding(b"via= \t\ngra =\t\nx= y", b"quoted-printable")[0]
        == b"viagra x= y"
    )


def test_a_damaged_uuencoded_line_ends_the_text() -> None:
    assert decode_transfer_encoding(
        b"begin 644 x\n" + binascii.b2a_uu(b"hello") + b"\x7f\x7f\n", b"uuencode"
    ) == (b"hello", [b"uuencode"])
    assert (
        len(decode_transfer_encoding(b"=\n" * 1000, b"uuencode")[0]) <= 2000
    )  # short lines are not blown up


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"plain", "plain"),
        (b"=?utf-8?q?gr=C3=BCn_?= =?utf-8?b?w7w=?=", "grün ü"),
        (b"=?utf-8?q?a?=\n =?utf-8?q?b?=", "ab"),
        (b"=?utf-8?q?a?= b =?utf-8?q?c?=", "a b c"),
        (b"=?utf-8?b?w7w=?=x=?UTF-8?Q?y?=", "üxy"),
        (b"=?utf-8?q?=C3?= =?utf-8?q?=BC?=", "ü"),  # one character cut in two
        (b"=?iso-8859-1?q?=FC?= =?utf-8?q?=C3=BC?=", "üü"),
        (b"=?utf-8*de?q?a?=", "a"),
        (b"=?nonsense?q?a?=", "a"),
        (
            b"=?utf-8?Q?gr=C3=BCn? ja?!?=",
            "grün? ja?!",
        ),  # a question mark should be encoded there, and often is not
        (b"=?utf-8?Q?open =?utf-8?Q?gr=C3=BCn??=", "=?utf-8?Q?open grün?"),
        (b"=?utf-8?x?a?=", "=?utf-8?x?a?="),
        (b"=?utf-8?q?open", "=?utf-8?q?open"),
        (b"=?utf-8?b?w7x!?=", "ü"),
        ("grün".encode(), "grün"),
        (b" =?utf-8?q?a?=", " a"),
    ],
)
def test_encoded_words(value: bytes, text: str) -> None:
    assert decode_unstructured(value)[0] == text


@repeatable
@given(
    words.map(lambda text: " ".join(text.split())),
    st.sampled_from(("utf-8", "iso-8859-1", "iso-2022-jp")),
)
def test_headers_that_the_standard_library_writes_are_read(text: str, charset: str) -> None:
    text = text.encode(charset, "ignore").decode(charset)
    value = Header(text, charset).encode()
    assert decode_unstructured(value.encode())[0].replace("\n", "") == str(
        make_header(decode_header(value))
    ).replace("\n", "")


@pytest.mark.parametrize(
    ("data", "charset"),
    [
        ("<META charset='Big5'>今日".encode("big5"), b"Big5"),
        ("<meta content='text/html; charset = koi8-r'>кредит".encode("koi8-r"), b"koi8-r"),
        (b"<meta charset=nonsense>\xff", b""),
        (b" " * 1024 + b"charset=big5 \xff", b""),
        (b"<meta charset=big5>", b""),
        ("<meta charset=utf-16>é".encode(), b"utf-8"),
        ("<meta charset='utf-7'>é".encode(), b"utf-8"),
        ("こんにちは".encode("iso-2022-jp"), b"iso-2022-jp"),
        ("대출".encode("iso-2022-kr"), b"iso-2022-kr"),
        (b"\x1b[31mred", b""),
    ],
)
def test_text_without_a_charset_may_name_one_itself(data: bytes, charset: bytes) -> None:
    assert sniff_charset(data) == charset


@pytest.mark.parametrize("charset", [b"windows-1252", b"euc-kr", b"euc-jp", b"big5"])
def test_text_that_is_no_character_at_all_is_read_as_fast_as_any(charset: bytes) -> None:
    assert seconds(partial(decode_text, b"\x81\xff" * 500_000, charset)) < 0.06


def test_8_bit_headers_have_the_charset_of_the_body_unless_they_are_utf_8() -> None:
    assert decode_unstructured("今日".encode("big5"), b"big5") == ("今日", [b"header-8bit"])
    assert decode_unstructured("今日".encode(), b"big5") == ("今日", [b"header-8bit"])


@pytest.mark.parametrize(
    ("text", "charset"), [("会議の資料 2024", "iso-2022-jp"), ("회의 자료", "iso-2022-kr")]
)
def test_headers_in_escape_sequences_are_read(text: str, charset: str) -> None:
    assert decode_unstructured(text.encode(charset)) == (text, [])


def test_8_bit_headers_are_a_defect() -> None:
    assert decode_unstructured("grün".encode("latin-1")) == ("grün", [b"header-8bit"])


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("ViAgRa", "viagra"),
        ("Ｖｉａｇｒａ", "viagra"),
        ("v\u200bi\u00ada\ufeffgra", "viagra"),
        ("v\u2066i\ufff9a\U0001d173gra", "viagra"),
        ("v\u0336i\u0338\u0336agr\u20dda", "viagra"),
        ("a\u00a0b\u3164c\uffa0d", "a b c d"),
        ("one\u2013two", "one two"),
        ("‘a’", " a "),
        ("ﬁne", "fine"),
        ("ÄÖ", "äö"),
        ("A\u0308", "ä"),
        ("V\u0456agr\u0430", "viagra"),
        ("p\u03b1ypal", "paypal"),
        ("кредит", "кредит"),
        ("it-компания", "it-компания"),
        ("مرحبا، تخفيـــضات؟", "مرحبا  تخفيضات "),
        ("مُحَمَّد", "محمد"),
        ("שָׁלוֹם־רב", "שלום רב"),
        ("नमस्ते।", "नमस्ते "),
        ("τι κάνεις\u037e", "τι κάνεις "),
    ],
)
def test_folding(text: str, folded: str) -> None:
    assert fold(text) == folded


@repeatable
@given(st.text(max_size=400))
def test_folded_text_is_in_lower_case_and_all_of_it_can_be_seen(text: str) -> None:
    folded = fold(text)
    assert folded == folded.lower()
    assert not set(folded) & set("\u200b\u200d\u00ad\ufeff\u00a0\u2019")


@given(words)
def test_text_in_lower_case_is_folded_alike_when_that_is_known(text: str) -> None:
    assert fold(text.lower(), lower=True) == fold(text.lower())


@pytest.mark.parametrize(
    "text",
    [
        "\u2103 \u212a",
        "a" * 600 + "\u2103\u1e9b\u0323",
        "x\u200by \u2019",
        "stra\u00dfe",
        "\u03c3\u03c2",
    ],
)
def test_signs_that_fold_to_capitals_are_in_lower_case_too(text: str) -> None:
    assert fold(text.lower(), lower=True) == fold(text.lower()) == fold(text).lower()


@pytest.mark.parametrize("charset", [b"cp037", b"IBM500", b"ebcdic-cp-us", b"cp1140"])
def test_charsets_of_mainframes_are_unknown(charset: bytes) -> None:
    """No mail program knows them: their text is shown as if no charset was declared."""
    assert decode_text(b"seen by all", charset) == ("seen by all", [b"charset-unknown"])
