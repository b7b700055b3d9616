"""Mail forwarded as text becomes a message again; other text is not taken for one."""

from __future__ import annotations

from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import SMTP
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.mail.message import extract_inline
from tests.unit.mail.support import seconds

THUNDERBIRD = """Look at this

-------- Forwarded Message --------
Subject: \tRoofs for you
Date: \tFri, 20 Nov 2026 10:11:12 +0100
From: \tSunny Roofs <hello@roofs.example>
To: \tanna@example.org


Dear neighbour,
your roof: a chance
"""
OUTLOOK = """________________________________
Von: Sonnendach <hallo@daecher.example>
Gesendet: Freitag, 20. November 2026 10:11
An: anna@example.org
Betreff: Dächer für alle

Liebe Nachbarn
"""
GMAIL = """---------- Forwarded message ---------
De : Toits <toits@roofs.example>
Date: ven. 20 nov. 2026 à 10:11
Subject: Un toit
 pour vous
To: <anna@example.org>

Chers voisins
"""
QUOTED = "> *From:* Roofs <a@roofs.example>\n> *Subject:* Hi\n>\n> one\n> > two\n"
JAPANESE = "差出人: 屋根 <a@roofs.example>\n件名: 屋根のご案内\n\nこんにちは\n"


def forwarded(text: str, subtype: str = "plain") -> bytes:
    message = EmailMessage(SMTP)
    message["From"], message["Subject"] = "anna@example.org", "Fwd: Roofs for you"
    message.set_content(text, subtype=subtype)
    return bytes(message)


@pytest.mark.parametrize(
    ("text", "sender", "subject", "body"),
    [
        (
            THUNDERBIRD,
            "Sunny Roofs <hello@roofs.example>",
            "Roofs for you",
            "Dear neighbour,\nyour roof: a chance\n",
        ),
        (OUTLOOK, "Sonnendach <hallo@daecher.example>", "Dächer für alle", "Liebe Nachbarn\n"),
        (GMAIL, "Toits <toits@roofs.example>", "Un toit pour vous", "Chers voisins\n"),
        (QUOTED, "Roofs <a@roofs.example>", "Hi", "one\n> two\n"),
        (JAPANESE, "屋根 <a@roofs.example>", "屋根のご案内", "こんにちは\n"),
    ],
)
def test_forwarded_text_of_many_mail_programs(
    text: str, sender: str, subject: str, body: str
) -> None:
    message = message_from_bytes(extract_inline(forwarded(text)) or b"")
    assert [str(make_header(decode_header(message[name]))) for name in ("From", "Subject")] == [
        sender,
        subject,
    ]
    assert message.get_payload(decode=True) == body.encode()
    assert not message.defects


def test_a_date_is_kept_where_it_is_one() -> None:
    assert b"\nDate: Fri, 20 Nov 2026 10:11:12 +0100\n" in (
        extract_inline(forwarded(THUNDERBIRD)) or b""
    )
    assert b"\nDate:" not in (extract_inline(forwarded(OUTLOOK)) or b"")


def test_markup_alone() -> None:
    rows = (
        "<tr><th>Subject: </th><td>Hi &amp; bye</td></tr>"
        "<tr><th>From: </th><td>a@roofs.example</td></tr>"
    )
    message = message_from_bytes(
        extract_inline(
            forwarded(f"<div>look</div><table>{rows}</table><br><p>Dear</p><p>you</p>", "html")
        )
        or b""
    )
    assert (message["From"], message["Subject"]) == ("a@roofs.example", "hi & bye")
    assert message.get_payload().split() == ["dear", "you"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "From: me\nabout: you\n\nSubject: nothing\n",
        "Subject: a list\nwith: colons\n\ntext",
        "From:\n" * 5000,
    ],
)
def test_other_text_is_no_message(text: str) -> None:
    assert extract_inline(forwarded(text)) is None


def test_a_field_cannot_smuggle_another_one() -> None:
    message = (
        extract_inline(
            forwarded("From: a@x.example\u2028X-Evil: 1\x0bEvil: 2\nSubject: b\x00\rc\n\ntext\n")
        )
        or b""
    )
    assert message_from_bytes(message).keys() == [
        "From",
        "Subject",
        "MIME-Version",
        "Content-Type",
        "Content-Transfer-Encoding",
    ]


@given(st.text(max_size=400), st.sampled_from(["plain", "html"]))
def test_no_text_breaks_it(text: str, subtype: str) -> None:
    body = f"From: a\nSubject: {text}\n\n{text}".encode("utf-8", "replace")
    message = extract_inline(
        b"Content-Type: text/" + subtype.encode() + b"; charset=utf-8\n\n" + body
    )
    assert message is None or message.startswith(b"From: ")


def test_long_runs_of_fields_cost_little() -> None:
    assert extract_inline(b"Content-Type: text/plain\n\n" + b"From: a\n" * 130_000) is None


@pytest.mark.parametrize("unit", [b" " * 1990 + b"\n", b">" * 1990 + b"\n", b" \t>" * 660 + b"\n"])
def test_lines_that_may_be_fields_cost_little_however_many_parts_hold_them(unit: bytes) -> None:
    part = b"--b\nContent-Type: text/plain\n\n" + unit * (200_000 // len(unit))
    raw = b"Content-Type: multipart/mixed; boundary=b\n\n" + part * 90
    assert seconds(partial(extract_inline, raw), 1) < 5


def test_parts_beyond_the_first_million_characters_are_not_looked_at() -> None:
    part = b"--b\nContent-Type: text/plain\n\n%b\n"
    raw = b"Content-Type: multipart/mixed; boundary=b\n\n" + part % (b"words\n" * 100_000)
    forwarded = part % b"From: a@b.example\nSubject: roofs\n\nHello"
    assert extract_inline(raw + forwarded) is not None
    assert extract_inline(raw + part % (b"words\n" * 100_000) + forwarded) is None


def test_so_many_lines_that_begin_like_a_block_are_looked_at() -> None:
    """A megabyte of such lines would take seconds, because the block below each is read."""
    forwarded = b"From: a@b.example\nSubject: roofs\n\nHello"
    assert (
        extract_inline(b"Content-Type: text/plain\n\n" + b"to: a\n" * 970 + b"\n" + forwarded)
        is not None
    )
    assert (
        extract_inline(b"Content-Type: text/plain\n\n" + b"to: a\n" * 1000 + b"\n" + forwarded)
        is None
    )
