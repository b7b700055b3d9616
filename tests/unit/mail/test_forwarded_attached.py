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


def test_abuse_reports():
    raw = (
        b"Content-Type: multipart/report; report-type=feedback-report; boundary=b\n\n"
        b"--b\n\nThis is an abuse report\n"
        b"--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\n"
        b"--b\nContent-Type: message/rfc822\n\nMessage-ID: <1@x.example>\nSubject: one\n\n--b--\n"
    )
    (message,) = extract_attached(raw)
    assert message.strip() == b"Message-ID: <1@x.example>\nSubject: one"


@given(st.binary(max_size=300))
def test_nothing_is_raised(raw):
    extract_attached(raw)
    extract_attached(forward(raw))
