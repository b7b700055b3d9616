"""The first line of a lesson: written, read, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.users import (
    is_class_name,
    is_user_name,
    parse_lesson_header,
)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"TEACH spam 5", "expected TEACH"),
        (b"LEARN spam 5\n", "expected TEACH"),
        (b"TEACH spam\n", "expected TEACH"),
        (b"FORGET\n", "expected TEACH"),
        (b"FORGET spam 5\n", "expected TEACH"),
        (b"FORGET 5 \n", "expected TEACH"),
        (b"TEACH Spam 5\n", "expected TEACH"),
        (b"TEACH  5\n", "expected TEACH"),
        (b"TEACH unsure 5\n", "expected TEACH"),
        (b"TEACH spam 0\n", "expected TEACH"),
        (b"TEACH spam 67108865\n", "expected TEACH"),
        ("TEACH spam ٥\n".encode(), "expected TEACH"),
        (b"TEACH spam 5 \n", "expected TEACH"),
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
