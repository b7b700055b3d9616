"""Addresses and parameters: what is accepted, what is refused, and never two commands."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.smtp.commands import (
    MAX_PATH_BYTES,
    mail_command,
    parse_mail,
    parse_rcpt,
    rcpt_command,
)
from spamguard.smtp.envelope import EsmtpParameter, Recipient, Replies, Reply, Sender
from tests.unit.mail.support import seconds
from tests.unit.smtp.smuggling import ENDS

repeatable = settings(derandomize=True, deadline=None, max_examples=500, database=None)
CONTROLS = [*[bytes([code]) for code in range(32)], b"\x7f", "\x85".encode(), "\u2028".encode()]


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


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"<",
        b">",
        b"<a@b",
        b"a@b>",
        b"a@b<c@d>",
        b"a@b,c@d",
        b"Joe<a@b>",
        b"@a:b@c",
        b"a" * MAX_PATH_BYTES + b"@b",
        b"<<a@b>",
        b"<a@b>>",
        b"<a@b>x",
        b"<a@b><c@d>",
        b"<a b@c>",
        b"< a@b>",
        b"<a@b >",
        b"<a@>",
        b"<@b>",
        b"<@a:>",
        b"<@a,b:c@d>",
        b"<a@b@c>",
        b"<a@b,c@d>",
        b'<"a@b>',
        b'<a"@b>',
        b'<"a\\"@b>',
        b'<"a"@"b">',
        b"<a@[1.2.3.4>",
        b"<a@[]>",
        b"<a@[b c]>",
        b"<a(c)@b>",
        b"<a;b@c>",
        b"<a\\b@c>",
        b"<" + b"a" * (MAX_PATH_BYTES - 3) + b"@b>",
    ],
)
def test_what_is_no_address(path: bytes) -> None:
    assert parse_mail(b"FROM:" + path) == Replies.BAD_ARGUMENT
    assert parse_rcpt(b"TO:" + path) == Replies.BAD_ARGUMENT


def test_the_null_sender_is_no_recipient() -> None:
    assert parse_mail(b"FROM:<> BODY=7BIT") == Sender("", (EsmtpParameter("BODY", "7BIT"),))
    assert parse_mail(b"FROM:<>x") == Replies.BAD_ARGUMENT
    assert parse_rcpt(b"TO:<>") == Replies.BAD_ARGUMENT


@pytest.mark.parametrize(
    "argument", [b"", b"<a@b>", b"FROM", b"FROM <a@b>", b"FORM:<a@b>", b" FROM:<a@b>"]
)
def test_what_is_no_argument(argument: bytes) -> None:
    for reply in (parse_mail(argument), parse_rcpt(argument)):
        assert isinstance(reply, Reply)
        assert reply == Replies.BAD_ARGUMENT


@pytest.mark.parametrize("odd", [*CONTROLS, *ENDS.values()], ids=repr)
def test_nothing_that_could_end_a_command(odd: bytes) -> None:
    shapes = [
        b"<a%b@c>",
        b'<"a%b"@c>',
        b'<"a\\%b"@c>',
        b"<a@b%c>",
        b"<a@[b%c]>",
        b"<@a%b:c@d>",
        b"<a@b>%",
        b"<a@b> SIZE=1%",
        b"<a@b> %SIZE=1",
    ]
    shapes += [
        b"%<a@b>",
        b"<a@b> ENVID=a%b",
        b"<a@b> AUTH=%",
        b"<a@b> SMTPUTF8%",
        b"<a@b> ORCPT=utf-8;a%b",
        b"<a@b> NOTIFY=NEVER%",
    ]
    for shape in shapes:
        path = shape.replace(b"%", odd)
        assert isinstance(parse_mail(b"FROM:" + path), Reply)
        assert isinstance(parse_mail(b"FROM:" + path + b" SMTPUTF8"), Reply)
        assert isinstance(parse_rcpt(b"TO:" + path, smtputf8=True), Reply)


@pytest.mark.parametrize(
    "words",
    [
        "SIZE=0",
        "SIZE=12345678901234567890",
        "BODY=8BITMIME",
        "body=7bit",
        "SMTPUTF8",
        "RET=HDRS",
        "ret=Full",
        "ENVID=QQ314159+2B",
        "AUTH=<>",
        "AUTH=e+3Dmc2@example.com",
        "ENVID=cGFkZGVk==",
        "SIZE=1 BODY=8BITMIME SMTPUTF8 RET=FULL ENVID=a AUTH=<>",
    ],
)
def test_parameters_of_mail(words: str) -> None:
    pairs = [word.partition("=") for word in words.split()]
    expected = tuple(
        EsmtpParameter(keyword.upper(), value if equals else None)
        for keyword, equals, value in pairs
    )
    assert parse_mail(f"FROM:<a@b> {words}".encode()) == Sender("a@b", expected)
    assert parse_mail(f"FROM:<a@b>  {words.replace(' ', '   ')} ".encode()) == Sender(
        "a@b", expected
    )


@pytest.mark.parametrize(
    "words",
    [
        "NOTIFY=NEVER",
        "NOTIFY=success,Failure,DELAY",
        "ORCPT=rfc822;Bob@ent.example+2Ecom",
        "ORCPT=utf-8;a\\x{e4}@b",
        "NOTIFY=DELAY ORCPT=x;y",
        "ORCPT=x_y.z;x",
        "ORCPT=rfc822;SRS0=aB=cD=a.example=b@c.example",
        "ORCPT=rfc822;",
    ],
)
def test_parameters_of_rcpt(words: str) -> None:
    expected = tuple(EsmtpParameter(*word.split("=", 1)) for word in words.split())
    assert parse_rcpt(f"TO:<a@b> {words}".encode()) == Recipient("a@b", expected)


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
    assert parse_mail(f"FROM:<a@b> {words}".encode()) == Replies.BAD_ARGUMENT


@pytest.mark.parametrize(
    "words",
    [
        "NOTIFY=NEVER,DELAY",
        "NOTIFY=",
        "NOTIFY=x",
        "ORCPT=a@b",
        "ORCPT=;a",
        "ORCPT=rfc822;a+",
        "ORCPT=",
        "ORCPT",
    ],
)
def test_bad_parameters_of_rcpt(words: str) -> None:
    assert parse_rcpt(f"TO:<a@b> {words}".encode()) == Replies.BAD_ARGUMENT


def test_unknown_parameters() -> None:
    unknown = Reply.from_text(555, "5.5.4 Unknown parameter")
    assert parse_mail(b"FROM:<a@b> X-FOO=1") == parse_mail(b"FROM:<a@b> NOTIFY=NEVER") == unknown
    assert parse_rcpt(b"TO:<a@b> SIZE=1") == parse_rcpt(b"TO:<a@b> FOO") == unknown


def test_addresses_beyond_ascii() -> None:
    refused = Reply.from_text(553, "5.6.7 Address is not ASCII, and SMTPUTF8 was not given")
    path = "<jürgen@exämple.org>".encode()
    assert parse_mail(b"FROM:" + path) == parse_rcpt(b"TO:" + path) == refused
    assert parse_mail(b"FROM:" + path + b" SMTPUTF8") == Sender(
        "jürgen@exämple.org", (EsmtpParameter("SMTPUTF8", None),)
    )
    assert parse_mail(b"FROM:" + path, smtputf8=True) == Sender("jürgen@exämple.org")
    assert parse_rcpt(b"TO:" + path, smtputf8=True) == Recipient("jürgen@exämple.org")
    assert (
        parse_mail(b"FROM:<j\xfcrgen@b> SMTPUTF8")
        == parse_rcpt(b"TO:<\xed\xa0\x80@b>", smtputf8=True)
        == refused
    )
    assert parse_rcpt("TO:<a@b> ORCPT=utf-8;ä@b".encode()) == refused
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
        sender = parse_mail(prefix + argument)
        if isinstance(sender, Sender):
            line = mail_command(sender)
            assert ONE_LINE.fullmatch(line)
            assert parse_mail(line[5:-2]) == sender
    for prefix in (b"", b"TO:<", b"TO:<a@b> "):
        recipient = parse_rcpt(prefix + argument, smtputf8=True)
        if isinstance(recipient, Recipient):
            line = rcpt_command(recipient)
            assert ONE_LINE.fullmatch(line)
            assert parse_rcpt(line[5:-2], smtputf8=True) == recipient


def test_commands_are_written() -> None:
    sender = Sender("ä@b", (EsmtpParameter("SIZE", "3"), EsmtpParameter("SMTPUTF8", None)))
    assert mail_command(sender) == "MAIL FROM:<ä@b> SIZE=3 SMTPUTF8\r\n".encode()
    assert mail_command(Sender("")) == b"MAIL FROM:<>\r\n"
    assert (
        rcpt_command(Recipient("a@b", (EsmtpParameter("NOTIFY", "NEVER"),)))
        == b"RCPT TO:<a@b> NOTIFY=NEVER\r\n"
    )


@pytest.mark.parametrize("odd", ["\r\n", "\n", "\0", "\x85"])
def test_what_would_be_two_commands_is_never_written(odd: str) -> None:
    with pytest.raises(ValueError, match="control"):
        rcpt_command(Recipient(f"a{odd}b"))
    with pytest.raises(ValueError, match="control"):
        mail_command(Sender("a", (EsmtpParameter("ENVID", odd),)))


def test_hostile_arguments_take_no_time() -> None:
    size = 200_000
    for argument in (
        b"<" + b"@a," * size,
        b'<"' + b"\\a" * size,
        b'<""' * size,
        b"<a@b>" + b" A=1" * size,
        b"<" + b'""' * size,
        b" " * size,
    ):
        assert seconds(lambda text=argument: parse_mail(b"FROM:" + text), 1) < 1
        assert seconds(lambda text=argument: parse_rcpt(b"TO:" + text), 1) < 1
