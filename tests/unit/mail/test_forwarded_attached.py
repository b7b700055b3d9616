"""Messages attached to a forwarded mail or a report come out whole, and nothing is guessed."""

from __future__ import annotations

from email.message import EmailMessage
from email.policy import SMTP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.message import extract_attached

ONE = (
    b"Message-ID: <1@x.example>\r\nSubject: one\r\nContent-Type: multipart/mixed; boundary=b\r\n"
    b"\r\n--b\r\n\r\nbuy\r\n--b--\r\n"
)
TWO = b"Message-ID: <2@x.example>\nSubject: two\n\nhello\n"


def forward(*originals: bytes, boundary: bytes = b"outer") -> bytes:
    lines = [
        b"From: a@x.example",
        b"Content-Type: multipart/mixed; boundary=" + boundary,
        b"",
        b"--" + boundary,
        b"",
        b"please look",
    ]
    for original in originals:
        lines += [b"--" + boundary, b"Content-Type: message/rfc822", b"", original]
    return b"\r\n".join([*lines, b"--" + boundary + b"--", b""])


def test_each_attached_message_comes_out():
    assert extract_attached(forward(ONE, TWO)) == [ONE.replace(b"\r\n", b"\n"), TWO]


def test_a_message_within_an_attached_one_is_not_another():
    (message,) = extract_attached(forward(forward(TWO, boundary=b"inner")))
    assert message.startswith(b"From: a@x.example\n")
    assert TWO in message


def test_deep_in_a_multipart_and_in_base64():
    inner = EmailMessage(SMTP)
    inner.set_content("look")
    inner.add_attachment(TWO, maintype="application", subtype="octet-stream")
    outer = EmailMessage(SMTP)
    outer.set_content("see")
    outer.add_attachment(inner)
    raw = inner.as_bytes().replace(b"application/octet-stream", b"message/rfc822")
    assert extract_attached(raw) == [TWO]


@pytest.mark.parametrize("kind", ["application/octet-stream", "text/plain", "application/x-eml"])
def test_a_message_as_a_file(kind):
    outer = EmailMessage(SMTP)
    outer.set_content("see")
    main, _, sub = kind.partition("/")
    for name, content in (
        ("Prize.EML", TWO),
        ("pr\xeds.eml", ONE),
        ("notes.eml", b"no header\n"),
        ("prize.txt", TWO),
    ):
        outer.add_attachment(content, maintype="x", subtype="y", filename=name)
        outer.get_payload()[-1].replace_header("Content-Type", f"{main}/{sub}")
    assert extract_attached(outer.as_bytes()) == [TWO, ONE]


def test_a_digest():
    raw = (
        b"Content-Type: multipart/digest; boundary=b\n\n--b\n\n"
        + TWO
        + b"\n--b\n\n"
        + TWO
        + b"\n--b--\n"
    )
    assert extract_attached(raw) == [TWO, TWO]


def test_the_message_may_be_all_there_is():
    assert extract_attached(b"Content-Type: message/rfc822\r\n\r\n" + TWO) == [TWO]


def test_abuse_reports():
    raw = (
        b"Content-Type: multipart/report; report-type=feedback-report; boundary=b\n\n"
        b"--b\n\nThis is an abuse report\n"
        b"--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\n"
        b"--b\nContent-Type: message/rfc822\n\nMessage-ID: <1@x.example>\nSubject: one\n\n--b--\n"
    )
    (message,) = extract_attached(raw)
    assert message.strip() == b"Message-ID: <1@x.example>\nSubject: one"


@pytest.mark.parametrize(
    "raw",
    [
        TWO,
        b"",
        b"Subject: Fwd\n\n-----Original Message-----\nFrom: x\nSubject: y\n\nbuy\n",
        b"Content-Type: text/rfc822-headers\n\nSubject: x\n",  # of a bounce
        forward(b""),
    ],
)
def test_nothing_is_guessed(raw):
    assert extract_attached(raw) == []


@given(st.binary(max_size=300))
def test_nothing_is_raised(raw):
    extract_attached(raw)
    extract_attached(forward(raw))
