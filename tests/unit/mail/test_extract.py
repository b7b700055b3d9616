"""The whole way from bytes to features."""

from __future__ import annotations

import base64
import binascii

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail import html
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.mime import ParseLimits
from tests.unit.mail.support import KEY, header, messages, page, repeatable

MAIL = [raw for _, raw in generate(80, 21)]


def texts(raw: bytes, limits: ParseLimits | None = None) -> set[str]:
    return set(
        (FeatureExtractor(KEY, limits) if limits else FeatureExtractor(KEY))
        .token_texts(raw)
        .values()
    )


@pytest.mark.slow
@repeatable
@given(st.sampled_from(MAIL) | messages() | st.binary(max_size=500))
def test_texts_name_exactly_the_tokens(raw: bytes) -> None:
    extractor = FeatureExtractor(KEY)
    features = extractor.features(raw)
    assert sorted(extractor.token_texts(raw)) == features.tokens.tolist()


@repeatable
@given(st.sampled_from(MAIL) | messages())
def test_features_are_sorted_distinct_and_always_the_same(raw: bytes) -> None:
    first, second = FeatureExtractor(KEY).features(raw), FeatureExtractor(KEY).features(raw)
    assert first.tokens.dtype == np.uint32
    assert (np.diff(first.tokens.astype(np.int64)) > 0).all()
    assert all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("tokens", "traits", "numbers")
    )


@repeatable
@given(st.sampled_from(MAIL))
def test_line_ends_and_the_envelope_line_change_nothing(raw: bytes) -> None:
    extractor = FeatureExtractor(KEY)
    plain = extractor.features(raw)
    for other in (
        raw.replace(b"\n", b"\r\n"),
        b"From anna@example.com Mon Jan  1 10:00:00 2024\n" + raw,
    ):
        features = extractor.features(other)
        assert np.array_equal(features.tokens, plain.tokens)
        assert np.array_equal(features.traits, plain.traits)
        assert np.array_equal(features.numbers, plain.numbers)


def test_token_sets() -> None:
    tokens = FeatureExtractor(KEY).token_texts(
        header(b"Subject: cheap good things", body=b"buy it now, all of you")
    )
    kinds = {text: token >> 30 for token, text in tokens.items()}
    assert kinds["buy"] == 0
    assert kinds["subject:cheap"] == 1
    assert kinds["buy it"] == 2
    assert kinds["subject:cheap … things"] == 3
    assert "buy … now" not in kinds
    letters = {
        text.removeprefix("letters:"): kind
        for text, kind in kinds.items()
        if text.startswith("letters:")
    }
    assert letters
    assert set(letters.values()) == {3}
    assert all(text in "buy_it_now,_all_of_you cheap_good_things" for text in letters)


def test_skips_are_of_the_first_tokens_beside_the_body() -> None:
    written = header(
        b"Subject: " + b" ".join(b"s%d" % number for number in range(60)),
        body=b" ".join(b"b%d" % number for number in range(60)),
    )
    skips = [text for text in texts(written) if "…" in text]
    assert sorted(skips) == sorted(f"subject:s{number} … s{number + 2}" for number in range(48))


def test_grams_come_from_subject_and_body_only() -> None:
    written = header(
        b"Subject: cheap offers", b"X-Mailer: software", body=b"<p hidden>concealed</p>visible ones"
    )
    tokens = set(
        FeatureExtractor(KEY)
        .token_texts(written.replace(b"Subject", b"Content-Type: text/html\nSubject"))
        .values()
    )
    letters = [text for text in tokens if text.startswith("letters:")]
    assert letters
    assert all(text.removeprefix("letters:") in "cheap_offers visible_ones" for text in letters)


def test_pairs_never_cross_the_border_of_a_section() -> None:
    tokens = texts(header(b"Subject: one two", b"X-Mailer: three", body=b"four five"))
    assert {"subject:one two", "four five"} <= tokens
    assert not [text for text in tokens if "two" in text and ("three" in text or "four" in text)]
    assert not [
        text for text in tokens if "five" in text and ("subject" in text or "mailer" in text)
    ]


def test_pairs_of_bigrams_stay_inside_one_run() -> None:
    tokens = texts(
        header(b"Content-Type: text/plain; charset=utf-8", body="こんに x てんき".encode())
    )
    assert {"こん", "んに", "てん", "こん んに", "x"} <= tokens
    assert "んに てん" not in tokens


def test_ideographs_are_words_and_hangul_words_stay_beside_their_syllables() -> None:
    tokens = texts(
        header(b"Content-Type: text/plain; charset=utf-8", body="今日は天気 대출을".encode())
    )
    assert {"今", "日", "今 日", "대출을", "대출", "출을"} <= tokens


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (header(b"Subject: =?utf-8?b?5LuK5pel44Gv?="), {"subject:今", "subject:今 日"}),
        (
            header("From: 今日は <a@example.com>".encode()),
            {"from:今 日", "address:a-at-example_com"},
        ),
        (header(b"Content-Type: text/plain; charset=utf-8", body="สวัสดี".encode()), {"สว", "วั"}),
        (
            page(b"<p>V<b></b>iagra</p><div style='display:none'>meeting</div>"),
            {"viagra", "hidden:meeting", "tags:style", "tags:none'"},
        ),
        (
            page(b"see <a href='http://user@WWW.Shop.Example:80/x?y=1'>this</a>"),
            {"host:www_shop_example", "host:shop_example", "url:y"},
        ),
        (
            header(body=b"go to www.shop.example/now, http://a.example"),
            {"host:www_shop_example", "host:a_example"},
        ),
        (page("＜b＞bold".encode()), {"b", "bold"}),
        (header(b"Subject: V I A G R A", body=b"c-i-a-l-i-s"), {"subject:viagra", "cialis"}),
        (page("vіagrа".encode()), {"viagra"}),
        (
            header(
                "Subject: 今日".encode("big5"),
                b"Content-Type: text/html",
                body=b"<meta charset=big5>" + "天空".encode("big5"),
            ),
            {"天", "subject:今"},
        ),
        (
            header(
                b"Content-Type: text/html; charset=US-ASCII",
                body=b"<meta charset=big5>" + "天空".encode("big5"),
            ),
            {"天"},
        ),
        (header(b"A: 1", body="こんにちは".encode("iso-2022-jp")), {"こん"}),
        (header(b"A: 1", b"no field"), {"clue:defect_header_line"}),
        (header(b"Content-Type: multipart/mixed"), {"clue:defect_no_boundary", "hello"}),
        (header(b"Content-Type: text/plain; charset=x"), {"clue:defect_charset_unknown"}),
        (
            header(b"Content-Type: application/zip; name=a.Zip", body=b"word"),
            {"attachment:a_zip", "clue:kind_application_zip"},
        ),
        (
            header(b"Content-Type: text/plain; charset=utf-7", body=b"+AHYAaQBhAGcAcgBh-"),
            {"viagra"},
        ),
        (
            header(b"Clue: x", b"Message-ID: <Ab1@h.example>", b"Date: 1 Jan 2024 1:00:00 +0100"),
            {"id-host:h_example", "zone:0100", "field clue:x"},
        ),
    ],
)
def test_evidence(raw: bytes, expected: set[str]) -> None:
    assert expected <= texts(raw)


@pytest.mark.parametrize(
    "written",
    [
        b"base64;",
        b"Base64 (as text)",
        b"(7bit) base64",
        b'"base64"',
        b"base64; x=y",
        b"\n\tbase64,",
    ],
)
def test_a_transfer_encoding_is_read_with_comments_and_parameters(written: bytes) -> None:
    assert "viagra" in texts(
        header(b"Content-Transfer-Encoding: " + written, body=b"dmlhZ3JhIHBpbGxz")
    )


def test_words_that_flowed_text_breaks_are_whole() -> None:
    flowed = b"Content-Type: text/plain; format=flowed; delsp="
    body = b"buy via \ngra and more  \nof what you wanted\n-- \nJohn"
    tokens = texts(header(flowed + b"Yes", body=body))
    assert {"viagra", "more of", "footer:john"} <= tokens
    assert "via" in texts(header(flowed + b"no", body=body))


def test_hidden_words_are_not_words_of_the_body() -> None:
    assert "meeting" not in texts(page(b"<p>buy</p><div style='display:none'>meeting</div>"))
    assert "zip" not in texts(header(b"Content-Type: application/zip", body=b"zip"))


@pytest.mark.parametrize("line", [b"-- ", b"--", b"_" * 47, b"-" * 30])
def test_a_footer_is_a_section_of_its_own(line: bytes) -> None:
    tokens = texts(
        header(
            b"Subject: x",
            b"Footer: y",
            body=b"a text of some length\n" + line + b"\nthe list of users\n",
        )
    )
    assert {"footer:list", "footer:of users", "length", "field footer:y"} <= tokens
    assert not {"list", "users"} & tokens


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("Thank you for all of it. Best regards, Anna", ["of", "it", "best", "regards", "anna"]),
        ("one two three four five", []),
        ("one two three four five six", ["two", "three", "four", "five", "six"]),
        ("See you soon, Anna Grün\n-- \nA club of many words in its footer", []),
        ("six words that are long " + "x" * 400, []),
    ],
)
def test_the_last_words_of_a_text_that_has_more_say_something_of_their_own(
    text: str, last: list[str]
) -> None:
    raw = b"Content-Type: text/plain; charset=utf-8\n\n" + text.encode()
    assert [
        word for word in FeatureExtractor(KEY).token_texts(raw).values() if word.startswith("end:")
    ] == ["end:" + word for word in last]


@pytest.mark.parametrize(
    "body",
    [
        b"short\n-- \nlist of users\n",
        b"some text that is longer\n--x\nlist",
        b"some text\n-- \n" + b"list of users " * 120,
    ],
)
def test_a_footer_is_never_most_of_a_text(body: bytes) -> None:
    assert "list" in texts(header(b"Subject: x", body=body))


def test_texts_beyond_the_limits_leave_a_defect() -> None:
    small = ParseLimits(text_bytes=100)
    tokens = texts(header(b"A: 1", body=b"word " * 19 + b"inside " + b"outside"), small)
    assert "clue:defect_text_size" in tokens
    assert "outside" not in tokens
    assert "clue:defect_text_size" not in texts(header(b"A: 1", body=b"x" * 100), small)
    assert "clue:defect_text_size" in texts(
        header(b"Content-Transfer-Encoding: quoted-printable", body=b"=\n" * 500 + b"x"), small
    )
    two = header(
        b"Content-Type: multipart/mixed; boundary=b",
        body=b"--b\n\n" + b"x" * 100 + b"\n--b\n\nsecond\n--b--",
    )
    assert "clue:defect_text_size" in texts(two, small)
    assert "clue:defect_message_size" in texts(
        header(b"A: 1", body=b"x" * 500), ParseLimits(message_bytes=200)
    )


def test_a_long_part_does_not_keep_later_ones_from_being_read() -> None:
    page = b"Content-Type: text/html\n\n<p>viagra</p>"
    raw = header(
        b"Content-Type: multipart/mixed; boundary=b",
        body=b"--b\n\n" + b"word " * 60_000 + b"\n--b\n" + page + b"\n--b--",
    )
    assert {"viagra", "clue:defect_text_size"} <= texts(raw)


@pytest.mark.parametrize("blank", [b" ", b"<p></p>", b"&nbsp;", b"&#8203;\n", b" \xc2\xa0\t"])
def test_blanks_take_no_room(blank: bytes) -> None:
    tokens = texts(page(b"one" + blank * 7000 + b"viagra" + blank * 3000 + b"two"))
    assert {"one", "viagra", "two"} <= tokens
    assert "clue:defect_text_cut" not in tokens


@pytest.mark.parametrize(
    "kind",
    [
        b"application/octet-stream; name=a.html",
        b"image/svg+xml; name=A.SVG",
        b"application/html\nContent-Disposition: attachment; filename=b.xhtml",
    ],
)
def test_files_that_open_as_a_page_are_read(kind: bytes) -> None:
    part = (
        b"Content-Type: "
        + kind
        + b"\nContent-Transfer-Encoding: base64\n\n"
        + base64.b64encode(b"<svg><text>viagra</text></svg>")
    )
    tokens = texts(
        header(
            b"Content-Type: multipart/mixed; boundary=b",
            body=b"--b\n\nhello\n--b\n" + part + b"\n--b--",
        )
    )
    assert {"hello", "viagra", "tags:svg"} <= tokens


def test_files_within_plain_text_are_attachments() -> None:
    lines = b"".join([binascii.b2a_uu(bytes(range(at, at + 45))) for at in range(100)])
    said = b"please look at this\n\nbegin 644 bill.pdf\n" + lines + b"#86)C\n`\nend\n\nthank you\n"
    extractor = FeatureExtractor(KEY)
    plain = extractor.features(
        header(b"Subject: bill", body=b"please look at this\n\n\n\nthank you\n")
    )
    features = extractor.features(header(b"Subject: bill", body=said))
    assert (
        features.tokens[features.tokens < 1 << 30].tolist()
        == plain.tokens[plain.tokens < 1 << 30].tolist()
    )
    assert {"attachment:bill", "attachment:pdf", "attachment:bill_pdf"} <= texts(
        header(b"Subject: bill", body=said)
    )
    assert "begin" in texts(header(body=b"begin 644 bill.pdf\nno such file follows\n"))


def test_nul_parts_no_words() -> None:
    assert "viagra" in texts(page(b"via\0gra"))
    assert "viagra" in texts(page(b"<sty\0le>viagra"))


def test_an_empty_message_has_features() -> None:
    features = FeatureExtractor(KEY).features(b"")
    assert len(features.tokens) == len(FeatureExtractor(KEY).token_texts(b""))


PAGE = (
    b"--b\nContent-Type: text/html\n\n<p>"
    + b" ".join(b"shown%b" % bytes([97 + number]) for number in range(20))
    + b"\n"
)
SAME = b"shownb, (shownc) shownd shownx showne shownf shownk showng shownh shownj"
OTHER = b" ".join(b"other%b" % bytes([97 + number]) for number in range(12))


def alternatives(*parts: bytes, kind: bytes = b"alternative") -> bytes:
    return header(
        b"Content-Type: multipart/" + kind + b"; boundary=b", body=b"".join(parts) + b"--b--\n"
    )


@pytest.mark.parametrize(
    "raw",
    [
        alternatives(b"--b\n\n" + OTHER + b"\n", PAGE),
        alternatives(PAGE, b"--b\n\n" + OTHER + b"\n"),
        alternatives(b"--b\n\n" + SAME + b" " + OTHER[:27] + b"\n", PAGE),
        alternatives(b"--b\nContent-Type: text/x-new\n\n" + OTHER + b"\n", PAGE),
        alternatives(
            b"--b\n\n" + SAME + b"\n", b"--b\n\n" + OTHER + b" " + SAME[:20] + b"\n", PAGE
        ),
        alternatives(
            b"--b\n\n" + OTHER + b"\n",
            b"--b\nContent-Type: multipart/related; boundary=c\n\n"
            + PAGE.replace(b"--b", b"--c")
            + b"--c--\n",
        ),
        alternatives(PAGE.replace(b"shown", b"other"), PAGE),
        alternatives(
            b"--b\nContent-Type: multipart/related; boundary=c\n\n"
            + PAGE.replace(b"shown", b"other").replace(b"--b", b"--c")
            + b"--c--\n",
            PAGE,
        ),
        alternatives(PAGE, b"--b\n\n" + OTHER + b"\n", kind=b"related"),
        alternatives(*([b"--b\n\n" + SAME + b"\n"] * 5), b"--b\n\n" + SAME + b" othera\n", PAGE),
    ],
)
def test_text_beside_a_page_that_says_something_else_is_hidden(raw: bytes) -> None:
    tokens = texts(raw)
    assert {"showna", "hidden:othera"} <= tokens
    assert "othera" not in tokens


@pytest.mark.parametrize(
    "raw",
    [
        alternatives(b"--b\n\n" + OTHER + b"\n", PAGE, kind=b"mixed"),
        alternatives(
            b"--b\n\n" + OTHER + b"\n", b"--b\nContent-Type: image/png\n\nx\n", kind=b"related"
        ),
        alternatives(PAGE, PAGE.replace(b"shown", b"other")),
        alternatives(
            PAGE.replace(b"shown", b"other"),
            b"--b\nContent-Type: multipart/mixed; boundary=c\n\n--c\n\n" + SAME + b"\n--c--\n",
        ),
        alternatives(b"--b\n\n" + SAME + b" othera\n", PAGE),
        alternatives(b"--b\n\nothera and others\n", PAGE),
        alternatives(
            b"--b\n\n" + OTHER + b"\n", b"--b\nContent-Type: text/html\n\n<img src=x> see it\n"
        ),
        alternatives(b"--b\n\n" + OTHER + b"\n", b"--b\nContent-Type: image/png\n\nx\n"),
    ],
)
def test_other_text_beside_a_page_is_text(raw: bytes) -> None:
    assert "othera" in texts(raw)


def test_text_beside_a_page_is_visible() -> None:
    """Only some of so many words are compared."""
    many = b" ".join(
        b"shown%b " % bytes([97 + number % 20])
        + OTHER.replace(b"other", b"more%b" % bytes([97 + number]))
        for number in range(20)
    )
    assert "hidden:moreaa" in texts(alternatives(b"--b\n\n" + many + b"\n", PAGE))


def test_words_beside_signs_count_as_seen_however_many_there_are() -> None:
    """Each sixth word stands nowhere else, which is few; of those that have a comma only in the
    text each sixth is looked for.
    """
    words = [b"word%c%c" % (97 + number // 26, 97 + number % 26) for number in range(241)]
    plain, shown = (
        b", ".join(words),
        b" ".join(word for number, word in enumerate(words) if number % 6),
    )
    raw = alternatives(
        b"--b\n\n" + plain + b"\n", b"--b\nContent-Type: text/html\n\n<p>" + shown + b"\n"
    )
    assert not [text for text in texts(raw) if text.startswith("hidden:")]


def test_text_without_blanks_beside_a_page_may_break_elsewhere() -> None:
    lines = [
        "\u4eca\u65e5\u306f\u5929\u6c17\u304c\u826f\u3044\u306e\u3067" + chr(0x4E00 + number) * 3
        for number in range(12)
    ]
    plain, shown = (
        "\n".join(lines).encode(),
        "<br>".join(line + "\u3002" for line in lines).encode(),
    )
    raw = alternatives(
        b"--b\nContent-Type: text/plain; charset=utf-8\n\n" + plain,
        b"\n--b\nContent-Type: text/html; charset=utf-8\n\n" + shown + b" a" * 9,
    )
    assert not [text for text in texts(raw) if text.startswith("hidden:")]


@pytest.mark.parametrize(
    "before",
    [
        b"<template>",
        b"<!-- ",
        b"<a ",
        b"<p hidden>",
        b"<script>x",
        b"<a b='",
        b"<p style='font:0 a'>",
    ],
)
def test_text_that_is_called_plain_hides_nothing(before: bytes) -> None:
    tokens = texts(
        header(
            b"Content-Type: text/plain", body=b"good <p>v<b></b>ery\n" + before + b"\nseen text\n"
        )
    )
    assert {"good", "very", "seen", "text"} <= tokens
    assert "hidden:seen" not in tokens
    assert "seen" not in texts(
        header(b"Content-Type: text/html", body=b"good <p>\n" + before + b"\nseen text\n")
    )


@pytest.mark.parametrize(
    "link",
    [
        b"<a href='https&colon;//evil.example/x'>",
        b'<a href="&#72;ttp&#x3a;//evil.example?a&amp;b">',
        b'<a href="https://ev&#105;l.example/x">',
        b"<a href=https:\\\\evil.example/x>",
        b'<form action="//evil.example/x">',
        b"<img src=' https:/&#47;evil.example'>",
        b"<a href='ht\ntps://evil.example/x'>",
        b'<a class="it\'s" href="https://ev\til.\r\nexample/x">',
        b"<a href='https://&#101;vil.ex&#9;ample/x'>",
        b"<a href='ht&Tab;tps://evil.&NewLine;example/x'>",
        b"<a href='https://%65vil%2Eexampl%65/x'>",
        b"<a href='https://shop.example%20@%45vil.example/x'>",
        b"https://shop.example%40%45vil.example/x",
        b"<a href='https://evil.example\\@shop.example/x'>",
        b"<a href='https://shop.example@shop.example:80@evil.example:443/x'>",
    ],
)
def test_links_are_read_as_browsers_read_them(link: bytes) -> None:
    assert "host:evil_example" in texts(page(b"<p>" + link + b"go"))


@pytest.mark.parametrize(
    "link",
    [
        "https://a.example/?b&amp;c=&amp;d",
        "https://a.example\n",
        "//",
        "&#47;x/y",
        "x&#58;//y",
        "mailto&#58;a@b.example",
    ],
)
def test_plain_links_are_not_added_twice(link: str) -> None:
    assert not html.parse_page(f"<a title=':\\' href='{link}'>go").links


def test_percent_encoded_hosts_are_decoded() -> None:
    tokens = texts(
        page(
            b"<a href='https://%/x'>a</a><a href='https://a%2Fb.example/x'>b</a><a href='https://%20%00.example/'>c</a>"
        )
    )
    assert "host:a" in tokens
    assert "host:b_example" not in tokens


def test_lines_of_calendars_are_put_together() -> None:
    body = b"BEGIN:VEVENT\nDESCRIPTION:see https://evil.ex\n ample/x\\nviag\n\tra\nEND:VEVENT\n"
    tokens = texts(
        header(b"From: anna@example.com", b"Content-Type: text/calendar; method=REQUEST", body=body)
    )
    assert tokens >= {"host:evil_example", "viagra"}


def test_interactive_pages_are_pages() -> None:
    body = (
        b"<html amp4email><style amp4email-boilerplate>body{visibility:hidden}</style>"
        b"<body><p class=secret>words</p>"
    )
    tokens = texts(header(b"From: anna@example.com", b"Content-Type: text/x-amp-html", body=body))
    assert "words" in tokens
    assert not tokens & {"visibility", "secret", "amp4email"}
