"""The charset of unlabelled text is guessed only where Windows-1252 would turn it into rubbish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail import decode

TEXTS = {
    "gbk": "您好，本公司是深圳市一家大型贸易公司，现有多余发票可"
    "以对外代开，税率优惠，欢迎来电咨询。联系人：张先生",
    "big5": "您好，本公司是臺北市一家大型貿易公司，現有多餘發票可"
    "以對外代開，稅率優惠，歡迎來電諮詢。聯絡人：張先生",
    "euc-kr": "안녕하세요 고객님, 이번 주말 특가 상품을 안내해"
    " 드립니다. 무료 배송과 할인 쿠폰도 함께 드려요!",
    "shift_jis": "いつもお世話になっております。来週の会議の"
    "資料をお送りしますので、ご確認ください。",
    "euc-jp": "いつもお世話になっております。来週の会議の資料をお送りしますので、ご確認ください。",
    "tis-620": "สวัสดีครับ วันหยุดนี้เราจะไปทะเลกับครอบครัวและเพื่อนของน้อง ที่บ้านมีอาหารมากมาย",
}
OTHERS = {
    "cp1252": "Le médecin a été très gêné : où étaient les élève"
    "s ? Ça, c’est déjà l’œuvre d’une équipe « rêvée ».",
    "latin-1": "Die schönen Grüße über Äpfel hören die Mädc"
    "hen in Köln täglich früher als die Größeren.",
    "iso8859-2": "Zażółć gęślą jaźń, a potem święta Bożego Narodzenia, życzę miłego dnia wszystkim",
    "cp1254": "İstanbul'da çok güzel bir gün, değişik öğrenciler şöyle çalışıyor",
    "iso8859-7": "Καλημέρα σας, αυτό είναι ένα μήνυμα για την εργασία της επόμενης εβδομάδας",
    "cp1255": "שלום לכולם זו הודעה חשובה מאוד ואני מקווה שכולכם תבואו לפגישה",
    "cp1256": "مرحبا بكم في الاجتماع القادم مع العائلة والأصدقاء في الحديقة",
    "cp1251": "Приглашаем вас на семинар для руководителей предприятий и бухгалтеров",
    "koi8-r": "Приглашаем вас на семинар для руководителей предприятий и бухгалтеров",
}


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_known(name: str) -> None:
    data = TEXTS[name].encode(name)
    assert decode.guess_charset(data) == name.encode()
    assert decode.decode_text(data, b"") == (TEXTS[name], [b"charset-missing"])
    for declared in (b"us-ascii", b"iso-8859-1", b"windows-1252"):
        assert decode.decode_text(data, declared) == (TEXTS[name], [b"charset-wrong"])


@pytest.mark.parametrize("name", TEXTS)
def test_among_markup_and_cut_off(name: str) -> None:
    text = TEXTS[name].encode(name)
    page = b"".join(
        b'<td class="x"><a href="http://example.com/%d">' % at
        + text[: 60 if at % 2 else None]
        + b"</a></td>\n"
        for at in range(9)
    )
    assert decode.guess_charset(page[:-41]) == name.encode()


@pytest.mark.parametrize("name", OTHERS)
def test_other_text_is_left_alone(name: str) -> None:
    data = OTHERS[name].encode(name)
    assert decode.guess_charset(data) == b""
    assert decode.decode_text(data, b"")[0] == data.decode("cp1252", "replace")
    assert decode.decode_text(data, b"iso-8859-1") == (data.decode("cp1252"), [])
    assert decode.decode_text(OTHERS[name].encode(), b"iso-8859-1") == (
        OTHERS[name],
        [b"charset-wrong"],
    )


@pytest.mark.parametrize(
    "text",
    [b"", b"plain", "你好".encode("gbk"), b"\xff" * 5000, bytes(range(256)) * 20, b"a\xe9" * 1000],
)
def test_too_little_or_nonsense_gets_no_answer(text: bytes) -> None:
    assert decode.guess_charset(text) == b""


def test_a_subject_says_it_too() -> None:
    assert decode.decode_unstructured(TEXTS["gbk"].encode("gbk")) == (
        TEXTS["gbk"],
        [b"header-8bit"],
    )


@given(st.binary(max_size=4000))
def test_any_bytes_get_a_known_charset_or_none(data: bytes) -> None:
    charset = decode.guess_charset(data)
    assert charset == b"" or decode.codec_name(charset)
