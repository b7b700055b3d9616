"""Clues about messages with little text, and the words that stand for missing text."""

from __future__ import annotations

import pytest

from spamguard.mail import html
from spamguard.mail.extract import FeatureExtractor
from spamguard.mail.text import describe_makeup, handful_clues
from tests.unit.mail.support import KEY, header

LINK = b'<a href="http://shop.example/x"><center><img src="cid:p1"></center></a>'


def page(body: bytes) -> bytes:
    return header(
        b"From: a@b.example",
        b"Content-Type: text/html",
        body=b"<html><body>%b</body></html>\n" % body,
    )


def names(raw: bytes) -> set[str]:
    return set(FeatureExtractor(KEY).token_texts(raw).values())


@pytest.mark.parametrize(
    ("words", "pictures", "linked", "expected"),
    [
        (0, False, False, "leaves_html"),
        (31, True, True, "leaves_html"),
        (
            0,
            True,
            True,
            "leaves_html no_words_picture little_text_picture little_text_picture_link",
        ),
        (
            1,
            True,
            False,
            "leaves_html scarce_words_picture little_text_picture little_text_picture_alone",
        ),
        (
            3,
            True,
            False,
            "leaves_html scarce_words_picture little_text_picture little_text_picture_alone",
        ),
        (
            4,
            True,
            False,
            "leaves_html few_words_picture little_text_picture little_text_picture_alone",
        ),
        (
            10,
            True,
            False,
            "leaves_html few_words_picture little_text_picture little_text_picture_alone",
        ),
        (
            11,
            True,
            True,
            "leaves_html some_words_picture little_text_picture little_text_picture_link",
        ),
        (
            30,
            True,
            True,
            "leaves_html some_words_picture little_text_picture little_text_picture_link",
        ),
    ],
)
def test_clues(words: int, pictures: bool, linked: bool, expected: str) -> None:
    clues, _ = describe_makeup(b"a " * words, 0, [b"text/html"], pictures=pictures, linked=linked)
    assert b" ".join(clues).decode() == expected


@pytest.mark.parametrize(
    ("text", "letters", "subjects", "expected"),
    [
        (b"", 0, [], "few_text_0"),
        (
            b"f4b7ja\n",
            0,
            [b"6qcmcs"],
            "few_text_1 few_text_mixed_6 few_subject_1 few_subject_mixed_6",
        ),
        (
            b"hi 2024 don't \xc3\xa9t\xc3\xa9",
            0,
            [],
            "few_text_4 few_text_letters_2 few_text_digits_4 few_text_signs_5 few_text_letters_5",
        ),
        (b"a" * 16 + b" " + b"b" * 90, 0, [], "few_text_2 few_text_letters_16 few_text_letters_16"),
        (b"", 10, [], "few_text_10"),
        (b"x", 10, [b"a"], ""),
        (b"x " * 10, 0, [b"a " * 11], "few_text_10" + " few_text_letters_1" * 10),
        (b"x " * 11, 0, [b"a"], ""),
    ],
)
def test_how_a_handful_of_words_looks(
    text: bytes, letters: int, subjects: list[bytes], expected: str
) -> None:
    assert b" ".join(handful_clues(text, letters, subjects)).decode() == expected


def test_two_messages_of_words_that_come_only_once_have_their_looks_in_common() -> None:
    pairs = ((b"6qcmcs", b"27hbhg\n"), (b"2pwjmb", b"51kkhx\n"))
    first, second = (names(header(b"Subject: " + subject, body=body)) for subject, body in pairs)
    assert {"clue:few_text_mixed_6", "clue:few_subject_mixed_6"} <= first & second


def test_the_looks_of_more_words_are_no_evidence() -> None:
    assert not [name for name in names(header(b"Subject: a", body=b"word " * 11)) if "few_" in name]


@pytest.mark.parametrize(("words", "stands"), [(0, True), (3, True), (4, False)])
def test_a_linked_picture_counts_as_words_where_there_are_hardly_any(
    words: int, stands: bool
) -> None:
    clues, substitute_words = describe_makeup(
        b"a " * words, 0, [b"text/html"], pictures=True, linked=True
    )
    assert substitute_words == (b" ".join(clues).upper() if stands else b"")


def test_kinds_of_leaves_are_bounded_and_listed_once() -> None:
    leaves = [
        b"text/plain",
        b"image/png",
        b"image/gif",
        *[b"x%d/y" % number for number in range(50)],
    ]
    assert describe_makeup(b"a " * 99, 0, leaves, pictures=False, linked=False)[0] == [
        b"leaves_plain_image_x0_x1_x2_x3"
    ]


@pytest.mark.parametrize(
    ("markup", "linked"),
    [
        ("<a href=x><img src=y></a>", True),
        ("<a href=x><table><tr><td><img src=y>", True),
        ("<a href=x>more</a><img src=y>", False),
        ("<img src=y><a href=x>more</a>", False),
        ("<a href=x></a>", False),
        ("<a href=x><img src=y></a>" + "word " * 500, False),
    ],
)
def test_pictures_within_links(markup: str, linked: bool) -> None:
    assert html.parse_page(markup).linked_image is linked


def test_a_picture_with_a_link_counts_as_words_that_no_text_can_hold() -> None:
    assert {"LITTLE_TEXT_PICTURE_LINK", "clue:no_words_picture"} <= names(page(LINK))
    assert "LITTLE_TEXT_PICTURE_LINK" not in names(page(b"LITTLE_TEXT_PICTURE_LINK"))
    assert "LITTLE_TEXT_PICTURE_LINK" not in names(
        page(LINK + b"but here is what we wanted to say")
    )
    assert "clue:little_text_picture_alone" in names(page(b'<img src="cid:p1"> our cat'))


def test_text_of_a_script_without_blanks_is_text() -> None:
    thai = "".join(map(chr, range(0xE01, 0xE21)))
    assert not any("picture" in name.lower() for name in names(page(LINK + thai.encode())))


def test_substitute_words_do_not_count_as_text() -> None:
    extractor = FeatureExtractor(KEY)
    blank = page(LINK.replace(b"<a href", b"<b title").replace(b"</a>", b"</b>"))
    assert (
        extractor.features(page(LINK)).numbers[1] == extractor.features(blank).numbers[1]
    )  # length of the text
