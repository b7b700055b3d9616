"""Commands of the client reach the next hop unchanged, and replies of the next hop reach the client
unchanged.
"""

from __future__ import annotations

import pytest

from tests.e2e.passing import MESSAGE, POSITIONS, ProxySite, heard
from tests.e2e.peers import USUAL

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
