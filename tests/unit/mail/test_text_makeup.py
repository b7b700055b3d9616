"""Clues about messages with little text, and the words that stand for missing text."""

from __future__ import annotations

from spamguard.mail.extract import FeatureExtractor
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


def test_two_messages_of_words_that_come_only_once_have_their_looks_in_common() -> None:
    pairs = ((b"6qcmcs", b"27hbhg\n"), (b"2pwjmb", b"51kkhx\n"))
    first, second = (names(header(b"Subject: " + subject, body=body)) for subject, body in pairs)
    assert {"clue:few_text_mixed_6", "clue:few_subject_mixed_6"} <= first & second


def test_substitute_words_do_not_count_as_text() -> None:
    extractor = FeatureExtractor(KEY)
    blank = page(LINK.replace(b"<a href", b"<b title").replace(b"</a>", b"</b>"))
    assert (
        extractor.features(page(LINK)).numbers[1] == extractor.features(blank).numbers[1]
    )  # length of the text
