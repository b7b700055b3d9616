"""Mail in languages with and without blanks between words: what is about different things comes
apart after a few lessons.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from spamguard import keys
from spamguard.engine import policy
from spamguard.engine.filter import Filter

# of each language: what parts words and sentences, words of one topic, of another, of every text
LANGUAGES = {
    "chinese": (
        "",
        "。",
        (
            "公司 提供 正规 发票 优惠 税务 代开 增值 咨询 联系 电话 点数 验证 付款 服务 长期 "
            "广告 运输 建筑"
        ),
        (
            "周末 爬山 天气 孩子 学校 照片 朋友 晚饭 火车 旅行 电影 图书 妈妈 生日 蛋糕 公园 "
            "散步 音乐 足球"
        ),
        "我们 可以 的 了 在 和 您 是 这个 如果",
    ),
    "japanese": (
        "",
        "。",
        "出会い 無料 登録 会員 当選 高額 副業 収入 限定 特典 購入 広告 配信 簡単 稼ぐ 在庫 割引",
        "会議 資料 来週 出張 報告 設計 試験 研究 論文 学生 先生 教室 食事 散歩 電車 天気 写真",
        "の は を に が です ます から ください について",
    ),
    "thai": (
        "",
        " ",
        ("สินเชื่อ เงินด่วน อนุมัติ ดอกเบี้ย คาสิโน ออนไลน์ โบนัส สมัคร ฝาก ถอน เครดิต ฟรี รวย ลงทุน กำไร"),
        "ประชุม โรงเรียน ครอบครัว อาหาร วันหยุด ทะเล ภูเขา หนังสือ ดนตรี เพื่อน แม่ น้อง รถไฟ ฝน สวน",
        "และ ที่ ของ เรา ได้ จะ มี ให้ กับ",
    ),
    "korean": (
        " ",
        ". ",
        "대출 무료 광고 회원 가입 할인 쿠폰 당첨 카지노 보너스 수익 투자 한정 특가 이벤트 클릭",
        "회의 자료 학교 가족 저녁 여행 날씨 사진 친구 음악 축구 도서관 산책 생일 기차 공원",
        "그리고 우리 오늘 내일 있습니다 합니다 드립니다 입니다",
    ),
    "russian": (
        " ",
        ". ",
        (
            "кредит скидка реклама рассылка казино бонус заработок бесплатно акция распродажа "
            "доставка налоги семинар таможня"
        ),
        (
            "встреча школа семья ужин поездка погода фотографии друзья музыка футбол библиотека "
            "прогулка поезд парк книга"
        ),
        "и в на мы вы это для если когда будет",
    ),
}
HEAD = (
    b"From: anna@example.com\nTo: otto@example.org\nSubject: hello\n"
    b"Content-Type: text/plain; charset=utf-8\n\n"
)


def message(language: str, topic: int, chance: random.Random) -> bytes:
    gap, end, *topics, always = LANGUAGES[language]
    words, common = topics[topic].split(), always.split()
    sentences = [
        gap.join(
            chance.choice(words if chance.random() < 0.6 else common)
            for _ in range(chance.randint(6, 12))
        )
        for _ in range(chance.randint(3, 6))
    ]
    return HEAD + end.join(sentences).encode() + b"\n"


def apart(make: Callable[[int], bytes], place: Path) -> None:
    """Messages of two topics, by number, come apart by probability after four lessons of each: too
    few for the label spam.
    """
    keys.store_key(place / "key", b"the key of a test of languages..")
    with Filter.open(place) as spam_filter:
        for topic, label in [(0, "spam"), (1, "ham")] * 4:
            spam_filter.learn(make(topic), label)
        spam_filter.settle()
        verdicts = [spam_filter.judge(make(topic)) for topic in [0] * 10 + [1] * 10]
    probabilities = [verdict.probability for verdict in verdicts]
    assert min(probabilities[:10]) > policy.HAM_THRESHOLD
    assert max(probabilities[10:]) < policy.SPAM_THRESHOLD
    assert (
        sum(
            policy.HAM_THRESHOLD < probability < policy.SPAM_THRESHOLD
            for probability in probabilities
        )
        <= 2
    )
    assert min(verdict.log_odds for verdict in verdicts[:10]) > max(
        verdict.log_odds for verdict in verdicts[10:]
    )


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_topics_come_apart_after_four_messages_of_each(language: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    apart(lambda topic: message(language, topic, chance), tmp_path)


@pytest.mark.parametrize(
    ("language", "charset"),
    [
        ("chinese", "gbk"),
        ("japanese", "shift_jis"),
        ("japanese", "euc-jp"),
        ("korean", "euc-kr"),
        ("thai", "cp874"),
    ],
)
def test_and_where_no_charset_is_named(language: str, charset: str, tmp_path: Path) -> None:
    chance = random.Random(1)
    unnamed = HEAD.replace(b"; charset=utf-8", b"")
    apart(
        lambda topic: (
            unnamed + message(language, topic, chance).removeprefix(HEAD).decode().encode(charset)
        ),
        tmp_path,
    )
