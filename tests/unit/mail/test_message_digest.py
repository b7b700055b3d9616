"""The digest: the same on every way that a message may travel, different for other messages."""

from __future__ import annotations

import base64
import quopri
from email import message_from_bytes, policy
from email.message import EmailMessage, Message

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from corpora.synthetic import generate
from spamguard.mail.message import DIGEST_SIZE, message_digest
from tests.unit.mail.support import KEY, header, messages, repeatable

MAIL = [raw for _, raw in generate(120, 31)]
mail = st.sampled_from(MAIL) | messages().map(lambda raw: raw.replace(b"\r\n", b"\n"))


def same(first: bytes, second: bytes) -> bool:
    return message_digest(first, KEY) == message_digest(second, KEY)


@repeatable
@given(mail)
def test_line_ends_do_not_matter(raw: bytes) -> None:
    assert same(raw, raw.replace(b"\n", b"\r\n"))


@repeatable
@given(st.sampled_from(MAIL))
def test_the_final_line_end_does_not_matter(raw: bytes) -> None:
    assert same(raw, raw + b"\n")
    assert same(raw, raw.rstrip(b"\n"))


ADDED = (
    b"Received: from a by b; Mon, 1 Jan 2024 10:00:00 +0000",
    b"Return-Path: <x@example.com>",
    b"X-Spam-Status: Yes, score=9\n\trequired=5",
    b"X-Spamguard: spam",
    b"Status: RO",
    b"X-Mozilla-Status: 0001",
    b"List-Id: <list.example.com>",
    b"DKIM-Signature: v=1; a=rsa-sha256",
)


@pytest.mark.slow
@repeatable
@given(mail, st.lists(st.sampled_from(ADDED), min_size=1))
def test_fields_put_on_top_do_not_matter(raw: bytes, fields: list[bytes]) -> None:
    assert same(raw, b"\n".join(fields) + b"\n" + raw)


@repeatable
@given(mail)
def test_an_envelope_line_does_not_matter(raw: bytes) -> None:
    assert same(raw, b"From anna@example.com Mon Jan  1 10:00:00 2024\n" + raw)


@pytest.mark.parametrize("name", ["Subject", "From", "Date", "Message-ID"])
def test_folding_does_not_matter(name: str) -> None:
    value = b"one two <three@example.com>"
    folded = value.replace(b" ", b"\n\t ")
    assert same(header(name.encode() + b": " + value), header(name.encode() + b":\n " + folded))


def test_encoded_words_do_not_matter() -> None:
    raw = header("Subject: grün und gut".encode())
    assert same(raw, header(b"Subject: =?utf-8?q?gr=C3=BCn_und_gut?="))
    assert same(raw, header(b"Subject: =?iso-8859-1?q?gr=FCn?=\n =?utf-8?b?IHVuZCBndXQ=?="))
    assert same(header(b'From: "Anna B" <a@b.c>'), header(b"From: Anna B <a@b.c>"))


@pytest.mark.slow
@repeatable
@given(mail, st.sampled_from(("base64", "quoted-printable")))
def test_re_encoding_does_not_matter(raw: bytes, encoding: str) -> None:
    message = message_from_bytes(raw)
    for part in message.walk():
        if not part.is_multipart():
            re_encode(part, encoding)
    assert same(raw, message.as_bytes(policy=policy.compat32.clone(max_line_length=60)))


def re_encode(part: Message, encoding: str) -> None:
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)
    encoded = base64.encodebytes(data) if encoding == "base64" else quopri.encodestring(data)
    del part["Content-Transfer-Encoding"]
    part["Content-Transfer-Encoding"] = encoding
    part.set_payload(encoded.decode("ascii"))


@repeatable
@given(
    st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=200),
    st.sampled_from(("quoted-printable", "base64", "8bit")),
)
def test_the_standard_library_may_write_a_text_as_it_likes(text: str, encoding: str) -> None:
    def written(encoding: str, line_end: str) -> bytes:
        message = EmailMessage(policy=policy.SMTP.clone(linesep=line_end, cte_type="8bit"))
        message["Subject"] = "one " * 40 + "ä"
        message["Message-ID"] = "<1@example.com>"
        message.set_content(text, cte=encoding)
        return message.as_bytes()

    assert same(written(encoding, "\n"), written("base64", "\r\n"))


def test_a_charset_does_not_matter() -> None:
    def written(charset: str) -> bytes:
        return header(
            b"Content-Type: text/plain; charset=" + charset.encode(),
            body="привет, мир".encode(charset),
        )

    assert same(written("utf-8"), written("koi8-r"))
    assert same(written("utf-8"), written("windows-1251"))


@repeatable
@given(st.sampled_from(MAIL), st.sampled_from(MAIL))
def test_different_messages_differ(first: bytes, second: bytes) -> None:
    assume(first != second)
    assert not same(first, second)


@pytest.mark.parametrize("name", [b"Message-ID", b"Subject", b"From", b"Date"])
def test_each_field_matters(name: bytes) -> None:
    assert not same(header(name + b": one"), header(name + b": two"))
    assert not same(header(name + b": one"), header(b"X: one"))


def test_lines_without_any_header_differ() -> None:
    assert not same(b"Attention: all who have a telephone\n", b"Finally: after fifteen years\n")


def test_text_type_of_damage_and_attachment_matter() -> None:
    assert not same(header(b"A: 1", body=b"one"), header(b"A: 1", body=b"two"))

    def attached(data: bytes) -> bytes:
        part = (
            b"--b\n\ntext\n--b\nContent-Type: image/png\nContent-Transfer-Encoding: base64\n\n"
            + base64.encodebytes(data)
            + b"--b--\n"
        )
        return header(b"Content-Type: multipart/mixed; boundary=b", body=part)

    assert not same(attached(b"one"), attached(b"two"))
    assert same(attached(b"one"), attached(b"one"))


def test_components_do_not_run_into_one_another() -> None:
    def mail(message_id: bytes, date: bytes, sender: bytes, subject: bytes) -> bytes:
        return header(
            b"Message-ID: " + message_id,
            b"Date: " + date,
            b"From: " + sender,
            b"Subject: " + subject,
        )

    splits = {
        message_digest(
            mail(b"abcd"[:i] or b"-", b"abcd"[i:j] or b"-", b"abcd"[j:] or b"-", b"x"), KEY
        )
        for i in range(5)
        for j in range(i, 5)
    }
    assert len(splits) == 15
    two = b"--b\n\none\n--b\n\ntwo\n--b--"
    one = b"--b\n\nonetwo\n--b--"
    kind = b"Content-Type: multipart/mixed; boundary=b"
    assert not same(header(kind, body=two), header(kind, body=one))


@pytest.mark.slow
def test_the_key_matters_and_so_does_every_byte_of_a_large_message() -> None:
    raw = header(b"Subject: x", body=b"a" * (40 << 20))
    assert len(message_digest(raw, KEY)) == DIGEST_SIZE
    assert message_digest(MAIL[0], b"one") != message_digest(MAIL[0], b"other")
    assert not same(raw, raw[:-1] + b"b")
    assert same(raw, raw + b"\n")


def test_bytes_beyond_the_limits_change_the_digest() -> None:
    kind = b"Content-Type: multipart/mixed; boundary=b"
    many = header(kind, body=b"--b\n\nx\n" * 3000 + b"--b\n\nlast\n--b--")
    assert not same(many, many.replace(b"last", b"lost"))
    deep = b"Content-Type: message/rfc822\n\n" * 100
    assert not same(deep + b"last", deep + b"lost")


@repeatable
@given(st.binary(max_size=1000))
def test_any_bytes_have_an_identity(raw: bytes) -> None:
    assert len(message_digest(raw, KEY)) == DIGEST_SIZE
