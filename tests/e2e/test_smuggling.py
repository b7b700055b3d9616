"""Nothing can be smuggled, neither in the data of a message nor in commands and their arguments."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.passing import MESSAGE, POSITIONS, ProxySite, body, heard
from tests.e2e.peers import ANY_END
from tests.unit.smtp.smuggling import ENDS

REFUSING = ("before-queue", "standalone")


def pieces(blob: bytes, around: bytes) -> Iterator[list[bytes]]:
    """The blob cut in two at every position in or beside the odd bytes, and there into single
    bytes.
    """
    start = blob.index(around)
    for at in range(start - 1, start + len(around) + 2):
        yield [blob[:at], blob[at:]]
    middle = blob[start - 1 : start + len(around) + 1]
    yield [
        blob[: start - 1],
        *[bytes([message]) for message in middle],
        blob[start + len(around) + 1 :],
    ]


@pytest.mark.parametrize("odd", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("position", POSITIONS)
def test_nothing_but_the_end_is_an_end(place: ProxySite, position: str, odd: bytes) -> None:
    smuggled = (
        b"MAIL FROM:<evil@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\nSubject: evil\r\n"
        b"\r\nevil\r\n"
    )
    blob = b"Subject: x\r\n\r\nhello" + odd + smuggled + b".\r\n"
    sent = 0
    with place.client(position) as client:
        for cut in pieces(blob, odd):
            client.begin()
            assert client.ask(b"DATA").startswith(b"354")
            for piece in cut:
                client.send(piece)
                time.sleep(0.002)
            reply = client.reply()
            sent += 1
            assert reply.startswith(b"554 5.6.0" if position in REFUSING else b"250"), (cut, reply)
            assert client.ask(b"NOOP").startswith(b"250"), cut
    if position in REFUSING:
        assert place.hop.messages == []
        return
    heard(place.hop, sent)
    for session in place.hop.sessions:
        for message in session.messages:
            assert not ANY_END.search(message.replace(b"\0", b"")[:-2]), message
            assert b"\0" not in message
            assert message.count(b"\r") == message.count(b"\n") == message.count(b"\r\n")
    assert len({body(message) for message in place.hop.messages}) == 1
    assert all(line.startswith(b"MAIL FROM:<a@example.org>") for line in place.hop.lines(b"MAIL"))


COMMANDS = [
    b"MAIL FROM:<a\r@example.org>",
    b"MAIL FROM:<a\n@example.org>",
    b"MAIL FROM:<a\0@example.org>",
    b'MAIL FROM:<"a\rb"@example.org>',
    b'MAIL FROM:<"a\\\rb"@example.org>',
    b'MAIL FROM:<"a\nRCPT TO:<evil@example.net>"@example.org>',
    b'MAIL FROM:<"a@example.org>',
    b"MAIL FROM:<a@b",
    b"MAIL FROM:<a@b>>",
    b"MAIL FROM:<<a@b>",
    b"MAIL FROM:a@b>",
    b"MAIL FROM:<a@b> SIZE=1\rX",
    b"MAIL FROM:<a@b> SIZE=1\nRCPT TO:<c@d>",
    b"MAIL FROM:<a@b> SIZE=-1",
    b"MAIL FROM:<a@b> SIZE=1 SIZE=2",
    b"MAIL FROM:<a@b> BODY=8BITMIME\0",
    b"MAIL FROM:<a@b> ENVID=a\tb",
    b"MAIL FROM:<a@b>SIZE=1",
    b"MAIL FROM:<a b@example.org>",
    b"MAIL FROM:<a@example.org\x85>",
    b"MAIL FROM:<a@exa\xff.org>",
    b"MAIL FROM:<gr\xc3\xbcn\xe2\x80\xa8@example.org> SMTPUTF8",
    b"MAIL FROM:<a\x7f@example.org>",
    b"MAIL FROM:<" + b"a" * 600 + b"@example.org>",
    b"MAIL FROM: <> RET=MAYBE",
    b"EHLO a\rb",
    b"EHLO a b",
    b"EHLO a\0",
    b"EHLO " + b"a" * 300,
    b"XFORWARD NAME=a\rb",
    b"XFORWARD NAME=a\nMAIL",
    b"XFORWARD NAME",
    b"XFORWARD EVIL=1",
    b"XFORWARD ADDR=999.1.1.1",
    b"XFORWARD PORT=evil",
    b"\x00",
    b"\xff\xfe",
    b"A" * 70000,
]


@pytest.mark.parametrize("line", COMMANDS, ids=range(len(COMMANDS)))
def test_odd_commands_are_refused_and_never_passed_on(place: ProxySite, line: bytes) -> None:
    with place.client() as client:
        assert client.ask(line)[:1] == b"5"
        assert client.ask(b"NOOP") == b"250 2.0.0 Ok\r\n"
        client.begin()
    assert place.hop.lines(b"MAIL") == [b"MAIL FROM:<a@example.org>"]
    assert [
        line for session in place.hop.sessions for line in session.lines if b"evil" in line
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        b"<>",
        b"",
        b"<@>",
        b"<b@c",
        b'<"b\r"@c>',
        b"<b@c>\r",
        b"<b\n@c>",
        b"<b@c> NOTIFY=NEVER,SUCCESS",
        b"<b@c> ORCPT=x",
        b"<b@[]>",
    ],
)
def test_odd_recipients_are_refused_and_never_passed_on(place: ProxySite, line: bytes) -> None:
    with place.client() as client:
        client.begin()
        assert client.ask(b"RCPT TO:" + line)[:1] == b"5"
        assert client.data(MESSAGE).startswith(b"250")
    assert place.hop.lines(b"RCPT") == [b"RCPT TO:<b@example.net>"]
