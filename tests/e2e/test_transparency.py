"""Commands of the client reach the next hop unchanged, and replies of the next hop reach the client
unchanged.
"""

from __future__ import annotations

import time

import pytest

from tests.e2e.passing import MESSAGE, POSITIONS, ProxySite, body, heard
from tests.e2e.peers import USUAL

# ---- what the next hop says

REFUSALS = {
    "one line": b"550 5.1.1 <b@example.net>: User unknown\r\n",
    "several lines": (
        b"450-4.2.0 not now\r\n450-4.2.0\r\n450 4.2.0 see https://example.org/?a=b\r\n"
    ),
    "8-bit": b"554 5.7.1 gr\xc3\xbc\xc3\x9fe \xff\xe9\r\n",
    "no enhanced code": b"552 too much\r\n",
    "many lines": b"".join(b"550-5.0.0 line %d\r\n" % at for at in range(99))
    + b"550 5.0.0 end\r\n",
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "dot"])
@pytest.mark.parametrize("position", POSITIONS)
def test_refusals_come_back_byte_for_byte(
    place: ProxySite, position: str, step: str, refusal: bytes
) -> None:
    place.hop.answers[step] = refusal
    with place.client(position) as client:
        replies = {"MAIL": client.ask(b"MAIL FROM:<a@example.org>")}
        if step != "MAIL":
            replies["RCPT"] = client.ask(b"RCPT TO:<b@example.net>")
        if step in ("DATA", "dot"):
            replies[step] = client.data(MESSAGE)
        assert replies[step] == refusal
        place.hop.answers[step] = USUAL.get(step, b"250 2.0.0 ok\r\n")
        assert client.ask(b"RSET").startswith(b"250")
        assert client.begin().data(MESSAGE).startswith(b"250")


@pytest.mark.parametrize(
    "text",
    [b"250 2.1.5 fine, wherever\r\n", b"251 2.1.5 forwarded\r\n", b"250-a\r\n250 b \xff\r\n"],
)
def test_agreement_comes_back_byte_for_byte(place: ProxySite, text: bytes) -> None:
    place.hop.answers |= {"MAIL": text, "RCPT": text, "dot": text}
    with place.client() as client:
        assert client.ask(b"MAIL FROM:<a@example.org>") == text
        assert client.ask(b"RCPT TO:<b@example.net>") == text
        assert client.data(MESSAGE) == text


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "DATA", "dot", "greeting"])
def test_a_421_ends_its_session_and_not_ours(place: ProxySite, step: str) -> None:
    place.hop.answers["QUIT"] = None
    place.hop.answers["dot"] = b"450 4.0.0 no\r\n"  # so that no session is kept
    with place.client() as client:
        client.begin().data(MESSAGE)
    place.hop.answers["dot"] = b"250 ok\r\n"
    place.hop.answers[step] = b"421 4.3.2 hop goes down\r\n"
    with place.client() as client:
        replies = [client.ask(b"MAIL FROM:<a@example.org>"), client.ask(b"RCPT TO:<b@example.net>")]
        if step in ("DATA", "dot"):
            replies.append(client.data(MESSAGE))
        wanted = {"MAIL": 0, "greeting": 0, "RCPT": 1}.get(step, 2)
        assert replies[wanted].startswith(b"451 4.")
        assert client.ask(b"NOOP").startswith(b"250")


@pytest.mark.parametrize("step", ["MAIL", "RCPT", "dot"])
def test_a_hop_that_sends_every_reply_twice(place: ProxySite, step: str) -> None:
    usual = b"250 2.0.0 ok\r\n"
    place.hop.answers[step] = usual + b"550 5.0.0 what\r\n"
    with place.client() as client:
        first = client.ask(b"MAIL FROM:<a@example.org>")
        second = client.ask(b"RCPT TO:<b@example.net>")
        third = client.data(MESSAGE) if second.startswith(b"250") else b""
        client.ask(b"RSET")
        place.hop.answers[step] = usual
        time.sleep(0.05)
        assert client.begin().data(MESSAGE) == usual
    assert first.startswith(b"250")
    if step == "dot":
        assert third == usual
        assert len(place.hop.messages) == 2
    else:
        assert b"451 4.4.2" in second + third
        assert len(place.hop.messages) == 1


# ---- recipients


def mixed(heard: object, line: bytes) -> bytes:
    number = int(line.partition(b"<r")[2].partition(b"@")[0])
    return [b"250 2.1.5 ok\r\n", b"550 5.1.1 no such\r\n", b"450 4.2.0 later\r\n"][number % 3]


@pytest.mark.parametrize("name", ["before-queue", "lmtp", "lmtp-to-smtp"])
def test_very_many_recipients_each_with_its_answer(place: ProxySite, name: str) -> None:
    hop = place.each if name == "lmtp" else place.hop
    hop.answers["RCPT"] = mixed

    def accept_every_second(_: object, number: bytes) -> bytes:
        return (b"250 2.0.0 r%s\r\n" if int(number) % 2 else b"452 4.2.2 full %s\r\n") % number

    hop.answers["dot"] = accept_every_second if name == "lmtp" else b"250 2.0.0 all\r\n"
    count = 1500
    with place.client(name) as client:
        lines = [b"RCPT TO:<r%d@example.net>\r\n" % at for at in range(count)]
        client.send(b"MAIL FROM:<>\r\n" + b"".join(lines) + b"DATA\r\n")
        assert client.reply().startswith(b"250")
        assert [client.reply() for _ in range(count)] == [mixed(None, line) for line in lines]
        assert client.reply().startswith(b"354")
        client.send(MESSAGE + b".\r\n")
        accepted = len([at for at in range(count) if at % 3 == 0])
        replies = [client.reply() for _ in range(accepted if name.startswith("lmtp") else 1)]
        if name == "lmtp":
            assert replies == [
                (b"250 2.0.0 r%d\r\n" if at % 2 else b"452 4.2.2 full %d\r\n") % at
                for at in range(accepted)
            ]
        else:
            assert set(replies) == {b"250 2.0.0 all\r\n"}
        assert client.ask(b"NOOP").startswith(b"250")
    assert hop.lines(b"MAIL")[-1] == b"MAIL FROM:<>"
    assert len(hop.messages) == 1


def test_lmtp_without_recipients_gives_no_replies(place: ProxySite) -> None:
    place.each.answers["RCPT"] = b"550 5.1.1 no\r\n"
    with place.client("lmtp") as client:
        client.send(b"MAIL FROM:<>\r\nRCPT TO:<b@example.net>\r\nDATA\r\nNOOP\r\n")
        assert [client.reply()[:3] for _ in range(4)] == [b"250", b"550", b"503", b"250"]


# ---- sessions


def test_whole_transactions_in_one_segment(place: ProxySite) -> None:
    one = (
        b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\nSubject: %d\r\n\r\n"
        b"..text %d\r\n.\r\n"
    )
    with place.client() as client:
        client.send(b"".join(one % (at, at) for at in range(20)) + b"QUIT\r\n")
        assert [client.reply()[:3] for _ in range(81)] == [b"250", b"250", b"354", b"250"] * 20 + [
            b"221"
        ]
        assert client.reply() == b""
    assert [body(raw) for raw in place.hop.messages] == [b".text %d\r\n" % at for at in range(20)]


def test_a_reset_in_the_middle_forgets_everything(place: ProxySite) -> None:
    with place.client() as client:
        client.begin(b"<forgotten@example.net>")
        assert client.ask(b"RSET").startswith(b"250")
        assert client.ask(b"RCPT TO:<b@example.net>").startswith(b"503")
        assert client.ask(b"DATA").startswith(b"503")
        client.begin(b"<c@example.net>", sender=b"<>")
        assert client.ask(b"EHLO again.example").startswith(b"250")
        assert client.ask(b"DATA").startswith(b"503")
        assert client.begin(b"<d@example.net>").data(MESSAGE).startswith(b"250")
    taken = next(session for session in place.hop.sessions if session.messages)
    assert taken.said(b"RCPT") == [b"RCPT TO:<d@example.net>"]


def test_parameters_arrive_as_they_were_written(place: ProxySite) -> None:
    sender = b"<A.b@Example.ORG> SIZE=1234 BODY=8BITMIME RET=HDRS ENVID=QQ314159+2Bx"
    recipient = b"<b@example.net> NOTIFY=SUCCESS,Failure ORCPT=rfc822;Bob@Example.Net"
    with place.client() as client:
        assert client.begin(recipient, sender=sender).data(MESSAGE).startswith(b"250")
        wide = b"<gr\xc3\xbcn@example.org> SMTPUTF8 BODY=8BITMIME"
        assert (
            client.begin("<müller@exämple.net>".encode(), sender=wide)
            .data(MESSAGE)
            .startswith(b"250")
        )
    assert place.hop.lines(b"MAIL") == [b"MAIL FROM:" + sender, b"MAIL FROM:" + wide]
    assert place.hop.lines(b"RCPT") == [
        b"RCPT TO:" + recipient,
        b"RCPT TO:" + "<müller@exämple.net>".encode(),
    ]


def test_a_hop_without_extensions(place: ProxySite) -> None:
    """Wishes it does not know are dropped, but internationalised mail is refused (RFC 6531, section
    3.5).
    """
    with place.client("poor") as client:
        offered = client.ask(b"EHLO client.example")
        assert not any(word in offered for word in (b"8BITMIME", b"SMTPUTF8", b"DSN", b"CHUNKING"))
        sender = b"<a@example.org> SIZE=12 BODY=8BITMIME RET=HDRS ENVID=x"
        assert (
            client.begin(b"<b@example.net> NOTIFY=NEVER", sender=sender)
            .data(MESSAGE + b"\xff\r\n")
            .startswith(b"250")
        )
        assert client.ask(b"MAIL FROM:<a@example.org> SMTPUTF8").startswith(b"553 5.6.7")
    assert place.poor.lines(b"MAIL") == [b"MAIL FROM:<a@example.org>"]
    assert place.poor.lines(b"RCPT") == [b"RCPT TO:<b@example.net>"]
    assert body(place.poor.messages[0]) == b"some text\r\n\xff\r\n"


def test_the_offered_extensions(place: ProxySite) -> None:
    with place.client() as client:
        offered = client.ask(b"EHLO client.example")
        assert {line[4:].split(b" ")[0].strip() for line in offered.splitlines()[1:]} >= {
            b"PIPELINING",
            b"SIZE",
            b"8BITMIME",
            b"SMTPUTF8",
            b"DSN",
        }
        assert client.ask(b"MAIL FROM:<a@b> SIZE=999999999999").startswith(b"552 5.3.4")
        assert client.ask(b"VRFY postmaster").startswith(b"252")
        assert client.ask(b"BDAT 5 LAST").startswith(b"502")
    assert place.hop.lines(b"MAIL") == []


HARD = {
    "empty": b"",
    "only an empty line": b"\r\n",
    "no body": b"Subject: x\r\n",
    "no header": b"\r\njust text\r\n",
    "begins with a blank": b" folded?\r\nSubject: x\r\n\r\ntext\r\n",
    "begins with a tab": b"\tfolded?\r\n\r\ntext\r\n",
    "begins with From": b"From a@b Thu Jan 1\r\nSubject: x\r\n\r\ntext\r\n",
    "dots": b"Subject: x\r\n\r\n.\r\n..\r\n.dot\r\n...\r\nend.\r\n",
    "first line is a dot": b".\r\n",
    "first line begins with a dot": b".a: b\r\n\r\n.\r\n",
    "long lines": b"Subject: x\r\n\r\n" + b"y" * 200_000 + b"\r\n" + b"." * 70_000 + b"\r\n",
    "8-bit": b"Subject: gr\xc3\xbc\xff\r\n\r\n"
    + bytes(one for one in range(256) if one not in (0, 10, 13))
    + b"\r\n",
    "not a header": b"this is no header\r\nat all\r\n\r\nbody\r\n",
    "a field without name": b": x\r\nSubject: y\r\n\r\nbody\r\n",
    "big": b"Subject: big\r\n\r\n" + b"line of text\r\n.dotted\r\n" * 60_000,
}


@pytest.mark.parametrize("message", HARD.values(), ids=HARD)
@pytest.mark.parametrize("name", ["before-queue", "after-queue", "lmtp"])
def test_the_bytes_below_our_fields_are_those_that_came(
    place: ProxySite, name: str, message: bytes
) -> None:
    with place.client(name) as client:
        stuffed = (b"\r\n" + message).replace(b"\r\n.", b"\r\n..")[2:]
        assert client.begin().data(stuffed).startswith(b"250")
    (raw,) = heard(place.each if name == "lmtp" else place.hop)
    top = raw.index(b"X-Spam")
    end = raw.index(b"\r\n", raw.index(b"X-Spamguard: ")) + 2
    gap = b"\r\n" if message[:1] in (b" ", b"\t") else b""
    assert raw[:top] + raw[end:] == raw[:top] + gap + message[top:]
    assert raw[:top] == message[:top]
    assert top == 0 or message.startswith(b"From ")


def test_xforward_is_passed_on_without_its_odd_bytes(place: ProxySite) -> None:
    place.hop.answers["EHLO"] = (
        b"250-hop\r\n250-PIPELINING\r\n250 XFORWARD NAME ADDR PORT PROTO HELO IDENT SOURCE\r\n"
    )
    place.hop.answers["DATA"] = None  # the sessions of before are to go
    with place.client() as client:
        client.begin().data(MESSAGE)
    place.hop.answers["DATA"] = USUAL["DATA"]
    place.hop.forget()
    with place.client() as client:
        assert client.ask(
            b"XFORWARD NAME=mail+0D+0AMAIL.example ADDR=192.0.2.7 HELO=a+00b+E2+80+A8"
        ).startswith(b"250")
        assert client.begin().data(MESSAGE).startswith(b"250")
        assert client.begin().data(MESSAGE).startswith(b"250")
    first, second = place.hop.lines(b"XFORWARD")
    assert first == (
        b"XFORWARD NAME=mail??MAIL.example ADDR=192.0.2.7 PORT=[UNAVAILABLE] "
        b"PROTO=[UNAVAILABLE] HELO=a?b? "
    ) + (b"IDENT=[UNAVAILABLE] SOURCE=[UNAVAILABLE]")
    assert b"192.0.2.7" not in second
