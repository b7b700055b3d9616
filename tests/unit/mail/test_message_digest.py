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
from tests.unit.mail.support import KEY, messages, repeatable

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


@repeatable
@given(st.sampled_from(MAIL), st.sampled_from(MAIL))
def test_different_messages_differ(first: bytes, second: bytes) -> None:
    assume(first != second)
    assert not same(first, second)


@repeatable
@given(st.binary(max_size=1000))
def test_any_bytes_have_an_identity(raw: bytes) -> None:
    assert len(message_digest(raw, KEY)) == DIGEST_SIZE
