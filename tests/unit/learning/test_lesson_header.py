"""The first line of a lesson: written, read, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.users import (
    MAX_LESSON_BYTES,
    LessonHeader,
    is_class_name,
    is_user_name,
    parse_lesson_header,
)


@pytest.mark.parametrize(
    "header",
    [
        LessonHeader("spam", 5),
        LessonHeader("ham", MAX_LESSON_BYTES, "anna@example.org"),
        LessonHeader("news-2", 1, "jürgen"),
        LessonHeader("", 5),
        LessonHeader("", 5, "anna"),
        LessonHeader("spam", 5, "CORP\\anna von  b"),
        LessonHeader("", 5, "anna b"),
    ],
)
def test_a_header_is_read_as_it_was_written(header):
    assert parse_lesson_header(header.encode()) == header


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"TEACH spam 5", "expected TEACH"),
        (b"\n", "expected TEACH"),
        (b"LEARN spam 5\n", "expected TEACH"),
        (b"TEACH spam\n", "expected TEACH"),
        (b"TEACH spam \n", "expected TEACH"),
        (b"TEACH 5\n", "expected TEACH"),
        (b"FORGET\n", "expected TEACH"),
        (b"FORGET spam 5\n", "expected TEACH"),
        (b"FORGET \n", "expected TEACH"),
        (b"FORGET 5 \n", "expected TEACH"),
        (b"TEACH Spam 5\n", "expected TEACH"),
        (b"TEACH  5\n", "expected TEACH"),
        (b"TEACH unsure 5\n", "expected TEACH"),
        (b"TEACH not-scanned 5\n", "expected TEACH"),
        (b"TEACH any 5\n", "expected TEACH"),
        (b"TEACH spam 0\n", "expected TEACH"),
        (b"TEACH spam -5\n", "expected TEACH"),
        (b"TEACH spam 67108865\n", "expected TEACH"),
        ("TEACH spam ٥\n".encode(), "expected TEACH"),
        (b"TEACH spam 5 \n", "expected TEACH"),
        (b"TEACH spam 5  a\n", "expected TEACH"),
        (b"TEACH spam 5 a \n", "expected TEACH"),
        (b"TEACH spam 5 a\x01\n", "expected TEACH"),
        (b"TEACH spam 5 " + b"a" * 256 + b"\n", "expected TEACH"),
        (b"TEACH spam 5 \xff\n", "utf-8"),
    ],
)
def test_damaged_headers_are_refused_with_a_reason(line, told):
    with pytest.raises(ValueError, match=told):
        parse_lesson_header(line)


@given(st.binary(max_size=60))
def test_nothing_else_is_raised(line):
    try:
        header = parse_lesson_header(line)
    except ValueError:
        return
    assert not header.label or is_class_name(header.label)
    assert not header.user or is_user_name(header.user)


def test_names_of_users():
    assert is_user_name("anna+x@example.org")
    assert is_user_name("anna b")
    assert not any(
        map(is_user_name, ("", " ", " a", "a ", "a\xa0b", "a\tb", "a\nb", "\ud800", "ä" * 128))
    )
