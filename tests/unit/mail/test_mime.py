"""The parser: equal to the standard library on sound mail, within its limits on damaged mail."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.headers import parse_header
from spamguard.mail.mime import (
    DEFAULT_LIMITS,
    ParseLimits,
    parse_content_type,
    parse_message,
)
from tests.unit.mail.support import header, messages, oracle_leaves, repeatable, split_leaves


@pytest.mark.slow
@repeatable
@given(messages())
def test_a_generated_tree_has_the_leaves_that_the_standard_library_finds(raw: bytes) -> None:
    message = parse_message(raw, DEFAULT_LIMITS)
    assert split_leaves(message) == oracle_leaves(raw)
    assert message.defects == []


def test_header_blocks_are_bounded_in_bytes_and_fields() -> None:
    limits = (100, 5)
    assert parse_header(b"A: 1\n" * 6 + b"\nbody", *limits)[::2] == (
        [(b"a", b"1")] * 5,
        [b"header-count"],
    )
    assert parse_header(b"A: " + b"x" * 500 + b"\n\nbody", *limits)[2] == [b"header-size"]
    assert parse_header(b"A: " + b"x" * 92 + b"\nLong-Name: 1\n\nbody", *limits)[2] == [
        b"header-size"
    ]  # cut within the name
    assert parse_header(b"A: " + b"x" * 80 + b"\nno field, but text " + b"x" * 99, *limits)[2] == [
        b"header-line"
    ]
    assert parse_header(b"A: 1\n" * 5 + b"\nbody", *limits) == ([(b"a", b"1")] * 5, 26, [])


PIECES = (
    b"A", b"x-\xe4", b"\x7f", b":", b": ", b" :", b"\t:", b"\n", b"\n ", b"\n\t", b"\n\n", b"\0",
    b"\r", b"value", b"Name: value\n", b"Name: two\n lines\n", b"Name:\n",
)  # fmt: skip


@repeatable
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))
def test_a_header_ends_at_the_first_line_that_belongs_to_no_field(text: bytes) -> None:
    fields: list[tuple[bytes, bytes]] = []
    for line in text.split(b"\n"):
        name, colon, value = line.partition(b":")
        if line[:1] in (b" ", b"\t") and fields:
            fields[-1] = fields[-1][0], fields[-1][1] + b"\n" + line
        elif colon and name.strip(b" \t") and re.fullmatch(rb"[!-~]+[ \t]*", name):
            fields.append((name.strip(b" \t").lower(), value.lstrip(b" \t")))
        else:
            break
    assert parse_header(text, 1000, 1000)[0] == fields


@pytest.mark.parametrize(
    ("value", "media", "parameters"),
    [
        (b"Text/HTML; Charset=UTF-8", b"text/html", {b"charset": b"UTF-8"}),
        (
            b'text/plain; name="a;b=c"; charset=x',
            b"text/plain",
            {b"name": b"a;b=c", b"charset": b"x"},
        ),
        (b'text/plain; name="a\\"b\\\\c"', b"text/plain", {b"name": b'a"b\\c'}),
        (b"multipart/mixed;\n\tboundary=abc", b"multipart/mixed", {b"boundary": b"abc"}),
        (b'multipart/mixed; boundary="open', b"multipart/mixed", {b"boundary": b"open"}),
        (b"text; charset=x", b"text/plain", {b"charset": b"x"}),
        (b"", b"text/plain", {}),
        (b"a/b; x=1; X=2", b"a/b", {b"x": b"1"}),
        (b"a/b; name*0=one; name*1=two", b"a/b", {b"name": b"onetwo"}),
        (b"a/b; name*1=two; name*0=one", b"a/b", {b"name": b"onetwo"}),
        (b"a/b; name*=utf-8'en'%c3%a4%20b", b"a/b", {b"name": "ä b".encode()}),
        (b"a/b; name*=koi8-r'ru'%D3%DE%C5%D4.pdf", b"a/b", {b"name": "счет.pdf".encode()}),
        (
            b"a/b; name*0*=gb2312''%B7%A2; name*1*=%C6%B1; name*2=.doc",
            b"a/b",
            {b"name": "发票.doc".encode()},
        ),
        (b"a/b; name*=utf-8''Bob's%20bill.pdf", b"a/b", {b"name": b"Bob's bill.pdf"}),
        (b"a/b; name*0*=utf-8''%c3; name*1*=%a4; name*2=%20", b"a/b", {b"name": "ä%20".encode()}),
    ],
)
def test_content_types(value: bytes, media: bytes, parameters: dict[bytes, bytes]) -> None:
    assert parse_content_type(value) == (media, parameters)


def multipart(body: bytes, boundary: bytes = b"b") -> bytes:
    return header(b"Content-Type: multipart/mixed; boundary=" + boundary, body=body)


def test_a_boundary_may_stand_behind_any_other_parameters() -> None:
    kind = (
        b"Content-Type: multipart/mixed;\n "
        + b"".join(b"a%d=b;\n " % number for number in range(1000))
        + b"boundary=b"
    )
    assert [
        leaf.body
        for leaf in parse_message(header(kind, body=b"--b\n\none\n--b--"), DEFAULT_LIMITS).leaves
    ] == [b"one"]


def test_parts_depth_and_bytes_are_bounded() -> None:
    many = parse_message(multipart(b"--b\n\nx\n" * 50), ParseLimits(parts=10))
    assert len(many.leaves) == 10
    assert b"part-count" in many.defects
    exact = parse_message(multipart(b"--b\n\nx\n" * 10 + b"--b--"), ParseLimits(parts=10))
    assert (len(exact.leaves), exact.defects) == (10, [])
    deep = parse_message(b"Content-Type: message/rfc822\n\n" * 200, ParseLimits())
    assert (len(deep.structure), deep.defects) == (100, [b"part-depth"])
    slow = parse_message(
        b"Content-Type: message/rfc822\n\n" * 30 + b"x" * 1000,
        ParseLimits(depth=4, message_bytes=5000),
    )
    assert (len(slow.structure), slow.defects) == (6, [b"part-depth"])
    large = parse_message(header(b"A: 1", body=b"x" * 1000), ParseLimits(message_bytes=100))
    assert (len(large.root.body), large.defects) == (94, [b"message-size"])


@repeatable
@given(st.binary(max_size=2000))
def test_any_bytes_can_be_split(raw: bytes) -> None:
    assert parse_message(raw, DEFAULT_LIMITS).leaves
