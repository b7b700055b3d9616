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


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_known(name: str) -> None:
    data = TEXTS[name].encode(name)
    assert decode.guess_charset(data) == name.encode()
    assert decode.decode_text(data, b"") == (TEXTS[name], [b"charset-missing"])
    for declared in (b"us-ascii", b"iso-8859-1", b"windows-1252"):
        assert decode.decode_text(data, declared) == (TEXTS[name], [b"charset-wrong"])


@given(st.binary(max_size=4000))
def test_any_bytes_get_a_known_charset_or_none(data: bytes) -> None:
    charset = decode.guess_charset(data)
    assert charset == b"" or decode.codec_name(charset)
