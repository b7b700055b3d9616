"""Addresses and parameters: what is accepted, what is refused, and never two commands."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.smtp.commands import MAX_PATH_BYTES, parse_mail, parse_rcpt, write_command
from spamguard.smtp.envelope import EsmtpParameter, Recipient, RefusedError, Replies, Reply, Sender

repeatable = settings(derandomize=True, deadline=None, max_examples=500, database=None)


def refusal(parse: Callable[..., object], argument: bytes, **options: bool) -> Reply:
    with pytest.raises(RefusedError) as refused:
        parse(argument, **options)
    return refused.value.reply


@pytest.mark.parametrize(
    "words",
    [
        "SIZE",
        "SIZE=",
        "SIZE=-1",
        "SIZE=1x",
        "SIZE=123456789012345678901",
        "BODY=BINARYMIME",
        "BODY",
        "SMTPUTF8=1",
        "RET=NONE",
        "ENVID=a+b",
        "ENVID=" + "a" * 101,
        "SIZE=1 size=2",
        "=1",
        "-A=1",
        "A_B",
        "SIZE=١",
    ],
)
def test_bad_parameters_of_mail(words: str) -> None:
    assert refusal(parse_mail, f"FROM:<a@b> {words}".encode()) == Replies.BAD_ARGUMENT


def test_addresses_beyond_ascii() -> None:
    refused = Reply.from_text(553, "5.6.7 Address is not ASCII, and SMTPUTF8 was not given")
    path = "<jürgen@exämple.org>".encode()
    assert refusal(parse_mail, b"FROM:" + path) == refusal(parse_rcpt, b"TO:" + path) == refused
    assert parse_mail(b"FROM:" + path + b" SMTPUTF8") == Sender(
        "jürgen@exämple.org", (EsmtpParameter("SMTPUTF8", None),)
    )
    assert parse_mail(b"FROM:" + path, smtputf8=True) == Sender("jürgen@exämple.org")
    assert parse_rcpt(b"TO:" + path, smtputf8=True) == Recipient("jürgen@exämple.org")
    assert refusal(parse_mail, b"FROM:<j\xfcrgen@b> SMTPUTF8") == refused
    assert refusal(parse_rcpt, b"TO:<\xed\xa0\x80@b>", smtputf8=True) == refused
    assert refusal(parse_rcpt, "TO:<a@b> ORCPT=utf-8;ä@b".encode()) == refused
    given_orcpt = (EsmtpParameter("ORCPT", "utf-8;ä@b"),)
    assert parse_rcpt("TO:<a@b> ORCPT=utf-8;ä@b".encode(), smtputf8=True) == Recipient(
        "a@b", given_orcpt
    )


PIECES = [
    b"FROM:",
    b"TO:",
    b"<",
    b">",
    b"a",
    b"@",
    b"b",
    b'"',
    b"\\",
    b" ",
    b"=",
    b",",
    b":",
    b"SIZE=1",
    b"SMTPUTF8",
    b"\r",
    b"\n",
    b"\0",
    b"[",
    b"]",
]
arguments = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from([*PIECES, b"\xc3\xa4", b"\xff"]), max_size=14).map(b"".join),
)
ONE_LINE = re.compile(
    rb"(?:MAIL FROM|RCPT TO):<[^\x00-\x1f\x7f]*>(?: [A-Z0-9]+(?:=[^\x00- \x7f]+)?)*\r\n"
)


@pytest.mark.slow
@repeatable
@given(arguments)
def test_anything_is_refused_or_can_be_passed_on_as_it_was_understood(argument: bytes) -> None:
    for prefix in (b"", b"FROM:<", b"FROM:<a@b> "):
        try:
            sender = parse_mail(prefix + argument)
        except RefusedError:
            continue
        line = write_command(sender)
        assert ONE_LINE.fullmatch(line)
        assert parse_mail(line[5:-2]) == sender
    for prefix in (b"", b"TO:<", b"TO:<a@b> "):
        try:
            recipient = parse_rcpt(prefix + argument, smtputf8=True)
        except RefusedError:
            continue
        line = write_command(recipient)
        assert ONE_LINE.fullmatch(line)
        assert parse_rcpt(line[5:-2], smtputf8=True) == recipient


@pytest.mark.parametrize("odd", ["\r\n", "\n", "\0", "\x85"])
def test_what_would_be_two_commands_is_never_written(odd: str) -> None:
    with pytest.raises(ValueError, match="control"):
        write_command(Recipient(f"a{odd}b"))
    with pytest.raises(ValueError, match="control"):
        write_command(Sender("a", (EsmtpParameter("ENVID", odd),)))


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("<a@b>", "a@b"),
        (" <a@b>", "a@b"),
        ("<A.b+C=d/e@Example.ORG>", "A.b+C=d/e@Example.ORG"),
        ("<a..b.@docomo.example>", "a..b.@docomo.example"),
        ("<Postmaster>", "Postmaster"),
        ('<"a b"@c>', '"a b"@c'),
        ('<"a\\"b@<>"@c>', '"a\\"b@<>"@c'),
        ('<""@c>', '""@c'),
        ('<a."b".c@d>', 'a."b".c@d'),
        ("<a@[127.0.0.1]>", "a@[127.0.0.1]"),
        ("<a@[IPv6:::1]>", "a@[IPv6:::1]"),
        ("<@a:b@c>", "b@c"),
        ("a@b", "a@b"),  # as programs write it that never heard of brackets
        (' "a b"@c', '"a b"@c'),
        ("Postmaster", "Postmaster"),
        ("<@a,@[1.2.3.4]:b@c>", "b@c"),
        ("<" + "a" * (MAX_PATH_BYTES - 4) + "@b>", "a" * (MAX_PATH_BYTES - 4) + "@b"),
    ],
)
def test_addresses(path: str, address: str) -> None:
    assert parse_mail(f"FROM:{path}".encode()) == Sender(address)
    assert parse_rcpt(f"To:{path}".encode()) == Recipient(address)
    assert parse_mail(f"from:{path} ".encode()) == Sender(address)
