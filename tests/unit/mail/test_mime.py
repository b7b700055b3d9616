"""The parser: equal to the standard library on sound mail, within its limits on damaged mail."""

from __future__ import annotations

from base64 import encodebytes
from email import message_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.headers import parse_header
from spamguard.mail.mime import (
    DEFAULT_LIMITS,
    ParseLimits,
    normalise_line_ends,
    parse_content_type,
    parse_disposition,
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


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_made_up_mail_has_the_leaves_that_the_standard_library_finds(line_end: bytes) -> None:
    for _, raw in generate(300, 5):
        sent = raw.replace(b"\n", line_end)
        assert split_leaves(parse_message(sent, DEFAULT_LIMITS)) == oracle_leaves(sent)


def test_made_up_mail_has_the_fields_that_the_standard_library_finds() -> None:
    for _, raw in generate(200, 6):
        expected = [
            (name.lower(), str(value).lstrip(" \t"))
            for name, value in message_from_bytes(raw).items()
        ]
        fields = parse_message(raw, DEFAULT_LIMITS).fields
        assert [
            (name.decode(), value.decode("ascii", "replace")) for name, value in fields
        ] == expected


@pytest.mark.parametrize(
    ("text", "fields", "body", "defects"),
    [
        (b"A: 1\nB: 2\n\nbody", [(b"a", b"1"), (b"b", b"2")], b"body", []),
        (b"A: 1\n\t2\n 3\n\nbody", [(b"a", b"1\n\t2\n 3")], b"body", []),
        (b"A:\n 1\n\nbody", [(b"a", b"\n 1")], b"body", []),
        (b"A:1\nB :2\n\n", [(b"a", b"1"), (b"b", b"2")], b"", []),
        (b"A: 1", [(b"a", b"1")], b"", []),
        (
            b"A: 1\nno field\nB: 2\n\nbody",
            [(b"a", b"1")],
            b"no field\nB: 2\n\nbody",
            [b"header-line"],
        ),
        (b" folded\nA: 1\n\nbody", [], b" folded\nA: 1\n\nbody", [b"header-line"]),
        (b"\nbody", [], b"body", []),
        (b"", [], b"", []),
    ],
)
def test_a_header_block_ends_where_it_should(
    text: bytes, fields: list[tuple[bytes, bytes]], body: bytes, defects: list[bytes]
) -> None:
    parsed, start, names = parse_header(text, 1000, 500)
    assert (parsed, text[start:], names) == (fields, body, defects)


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


@pytest.mark.parametrize(
    "junk", [b"X-A: 1\n" * 600, b"To: a\n" * 600, b"X-B: " + b"x" * 70_000 + b"\n"]
)
def test_fields_that_readers_act_upon_are_found_behind_any_others(junk: bytes) -> None:
    raw = junk + header(
        b"Subject: y",
        b"CONTENT-TYPE : text/html;\n charset=utf-8",
        b"subject: z",
        b"Content-Transfer-Encoding: base64",
    )
    message = parse_message(raw, DEFAULT_LIMITS)
    assert (
        message.first_values[b"subject"],
        message.leaves[0].content_type.media,
        message.leaves[0].encoding,
    ) == (
        b"y",
        b"text/html",
        b"base64",
    )
    assert message.body == b"hello there\n"
    assert len(message.fields) < 510


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (b"Attention: all who have a telephone", 0),
        (b"Attention: all who\nhave: a telephone\nat home\n", 0),
        (b"Attention: all\n\nwho have a telephone", 1),
        (b"Subject: attention\nall who have a telephone", 1),
        (b"X-Mailer: telephone\n", 1),
    ],
)
def test_a_text_without_a_header_is_all_text(text: bytes, fields: int) -> None:
    message = parse_message(text, DEFAULT_LIMITS)
    assert len(message.fields) == fields
    assert (message.body == text) == (fields == 0)


def test_an_envelope_line_and_line_ends_are_no_part_of_the_message() -> None:
    assert parse_message(b"From anna Mon\nA: 1\n\nx", DEFAULT_LIMITS).fields == [(b"a", b"1")]
    assert parse_message(b">From anna Mon\nA: 1\n\nx", DEFAULT_LIMITS).fields == [(b"a", b"1")]
    assert normalise_line_ends(b"a\r\nb\n") == (b"a\nb\n", [])
    assert normalise_line_ends(b"a\r\n\r\nb\r\n") == (b"a\n\nb\n", [])
    assert normalise_line_ends(b"a\rb\r\n") == (b"a\nb\n", [b"bare-cr"])
    assert normalise_line_ends(b"\r\n\r\r\n\n\r") == (b"\n\n\n\n", [b"bare-cr"])


def test_line_ends_made_twice_are_line_ends() -> None:
    message = parse_message(
        b"Subject: a\r\r\nContent-Type: text/html\r\r\n\r\r\ntext\r\r\n", DEFAULT_LIMITS
    )
    assert (message.first_values[b"subject"], message.content_type.media, message.body) == (
        b"a",
        b"text/html",
        b"text\n",
    )


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
    content_type = parse_content_type(value)
    assert (content_type.media, content_type.parameters) == (media, parameters)


def test_a_disposition_is_read_alike() -> None:
    disposition = parse_disposition(b'Attachment; filename="a.exe"')
    assert (disposition.media, disposition.parameters) == (b"attachment", {b"filename": b"a.exe"})


def multipart(body: bytes, boundary: bytes = b"b") -> bytes:
    return header(b"Content-Type: multipart/mixed; boundary=" + boundary, body=body)


@pytest.mark.parametrize(
    ("body", "bodies", "defects"),
    [
        (b"preamble\n--b\n\none\n--b\n\ntwo\n--b--\nepilogue", [b"one", b"two"], []),
        (b"--b\n\none\n--b--", [b"one"], []),
        (b"--b  \n\none\n--b--\t\n", [b"one"], []),
        (b"--b\n\none\n--bb\ntwo\n--b-- more\n--b--", [b"one\n--bb\ntwo\n--b-- more"], []),
        (b"--b\n\none\n", [b"one\n"], [b"boundary-open"]),
        (b"--b\n--b\n\none\n--b--", [b"", b"one"], []),
        (b"--b\n\n\n--b--", [b""], []),
        (b"nothing of the kind", [b"nothing of the kind"], [b"boundary-missing"]),
        (b"--b--\n", [b"--b--\n"], [b"boundary-missing"]),
    ],
)
def test_delimiter_lines(body: bytes, bodies: list[bytes], defects: list[bytes]) -> None:
    message = parse_message(multipart(body), DEFAULT_LIMITS)
    assert ([leaf.body for leaf in message.leaves], message.defects) == (bodies, defects)


@pytest.mark.parametrize("junk", [b"no field\n", b"name=a.txt\nand more\n"])
def test_lines_that_are_no_fields_do_not_end_a_header(junk: bytes) -> None:
    part = (
        b"Content-Disposition: inline\n"
        + junk
        + b"Content-Type: text/html\ncontent-transfer-encoding: base64\n\nbody"
    )
    message = parse_message(multipart(b"--b\n" + part + b"\n--b--"), DEFAULT_LIMITS)
    assert [(leaf.content_type.media, leaf.encoding, leaf.body) for leaf in message.leaves] == [
        (b"text/html", b"base64", b"body")
    ]
    assert message.defects == [b"header-line"]
    whole = parse_message(b"Subject: x\n" + part, DEFAULT_LIMITS)
    assert ([(leaf.encoding, leaf.body) for leaf in whole.leaves], whole.defects) == (
        [(b"base64", b"body")],
        [b"header-line"],
    )
    for text in (junk + b"\nContent-Type: text/html\n", b"--c\nContent-Type: text/html\n"):
        assert (
            parse_message(multipart(b"--b\n" + text + b"\n--b--"), DEFAULT_LIMITS).leaves[0].body
            == text
        )


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


def test_a_multipart_without_boundary_is_one_leaf() -> None:
    message = parse_message(header(b"Content-Type: multipart/mixed"), DEFAULT_LIMITS)
    assert ([leaf.content_type.media for leaf in message.leaves], message.defects) == (
        [b"multipart/mixed"],
        [b"no-boundary"],
    )


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
    assert (len(large.body), large.defects) == (94, [b"message-size"])


@pytest.mark.parametrize(
    "before",
    [
        b"--b\n\n\n" * 500,
        b"--b\n\n\n" * 30_000,
        b"--b\nContent-Type: multipart/mixed; boundary=c\n\n" + b"--c\n\n\n" * 90,
    ],
)
def test_where_there_are_too_many_parts_the_largest_are_read(before: bytes) -> None:
    """Mail programs show them all: empty parts must not hide those behind them."""
    filled = (
        b"--b\n\n\n--b\n\none one\n--b\n\n\n"
        b"--b\nContent-Type: multipart/mixed; boundary=d\n\n--d\n\ntwo\n--d--\n"
        + b"--b\n\n\n"
        * 100
    )
    message = parse_message(multipart(before * 2 + filled + b"--b--"), DEFAULT_LIMITS)
    assert [leaf.body for leaf in message.leaves if leaf.body] == [b"one one", b"two"]
    assert (len(message.leaves), message.structure[0], message.defects.count(b"part-count")) == (
        DEFAULT_LIMITS.parts,
        b"multipart/mixed",
        1,
    )


@pytest.mark.parametrize("kind", [b"message/rfc822", b"message/global"])
def test_a_message_within_may_be_encoded(kind: bytes) -> None:
    inner = b"Subject: inside\r\nContent-Type: text/html\r\n\r\n<p>hello</p>\r\n"
    fields = b"Content-Type: " + kind, b"Content-Transfer-Encoding: base64"
    for body in (
        encodebytes(inner),
        inner.replace(b"\r\n", b"\n"),
    ):  # nor is every one encoded that says so
        message = parse_message(header(*fields, body=body), DEFAULT_LIMITS)
        assert [
            (leaf.content_type.media, leaf.first_values[b"subject"], leaf.body)
            for leaf in message.leaves
        ] == [(b"text/html", b"inside", b"<p>hello</p>\n")]
        assert message.defects == []


@pytest.mark.parametrize(
    "envelope",
    [b"From anna@a.example Mon Jan  1 00:00:00 2024\n", b">From - Mon Jan  1 00:00:00 2024\n"],
)
@pytest.mark.parametrize("encoding", [b"7bit", b"base64"])
def test_a_message_within_may_stand_below_an_envelope_line(
    envelope: bytes, encoding: bytes
) -> None:
    inner = envelope + header(b"Subject: y", b"Content-Type: text/html", body=b"<p>hello")
    fields = b"Content-Type: message/rfc822", b"Content-Transfer-Encoding: " + encoding
    message = parse_message(
        header(*fields, body=encodebytes(inner) if encoding == b"base64" else inner), DEFAULT_LIMITS
    )
    assert [(leaf.content_type.media, leaf.body) for leaf in message.leaves] == [
        (b"text/html", b"<p>hello")
    ]


def test_a_digest_holds_messages_unless_it_says_otherwise() -> None:
    message = parse_message(
        header(
            b"Content-Type: multipart/digest; boundary=b", body=b"--b\n\nSubject: x\n\none\n--b--"
        ),
        DEFAULT_LIMITS,
    )
    assert message.structure == [b"multipart/digest", b"message/rfc822"]
    assert message.leaves[0].first_values == {b"subject": b"x"}


@repeatable
@given(st.binary(max_size=2000))
def test_any_bytes_can_be_split(raw: bytes) -> None:
    assert parse_message(raw, DEFAULT_LIMITS).leaves
