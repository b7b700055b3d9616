"""Commands of a session on a real socket."""

import asyncio
import logging

import pytest

from spamguard.config.options import DoorLimits, Position, Protocol
from spamguard.servers import smtp_handler
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import MESSAGE, NO, ScriptedProxy, serving


def run(directory, talk, proxy=None, **options):
    async def main():
        async with serving(directory, proxy or ScriptedProxy(), **options) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


def test_the_greeting_tells_the_protocol(tmp_path):
    async def talk(served):
        return await (await served.call()).reply()

    assert run(tmp_path, talk) == (220, "mx.example ESMTP")
    assert run(tmp_path, talk, protocol=Protocol.LMTP) == (220, "mx.example LMTP")


def test_what_is_announced(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        return (await caller.say(b"EHLO me"))[1].split("\n")

    ours = ["mx.example", "PIPELINING", "SIZE 1000", "ENHANCEDSTATUSCODES"]
    limits = DoorLimits(message_size=1000)
    assert run(tmp_path, talk, limits=limits, trusted=()) == ours
    trusted = run(
        tmp_path, talk, ScriptedProxy(extensions={"8BITMIME": "", "DSN": ""}), limits=limits
    )
    assert trusted[:6] == [*ours, "8BITMIME", "DSN"]
    assert [line.split()[0] for line in trusted[6:]] == ["XFORWARD", "XCLIENT"]
    assert "AUTH" not in " ".join(trusted)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"EHLO", 501),
        (b"EHLO a b", 501),
        (b"HELO \xff", 501),
        (b"VRFY", 252),
        (b"RSET x", 501),
        (b"QUIT x", 501),
        (b"NOOP anything", 250),
        (b"HELP", 250),
        (b"HELP me", 501),
        (b"VRFY root", 252),
        (b"EXPN root", 502),
        (b"AUTH PLAIN AGEAYg==", 500),
        (b"BDAT 5 LAST", 500),
        (b"STARTTLS", 454),
        (b"", 500),
        (b"NOOP \r x", 500),
        (b"NOOP \n x", 500),
        (b"NOOP \0", 500),
        (b"\xff\xfe", 500),
        (b"NOOP " + b"x" * 20000, 500),
        (b"MAIL FROM:a@b", 250),
        (b"MAIL FROM:a@b>", 501),
        (b"MAIL FROM:<a@b", 501),
        (b'MAIL FROM:<"a\rb"@c>', 500),
        (b"MAIL FROM:<a@b> XYZZY=1", 555),
        (b"MAIL FROM:<a@b> SIZE=99999999999999999999", 552),
        (b"RCPT TO:<a@b>", 503),
        (b"DATA", 503),
    ],
)
def test_single_commands(tmp_path, line, code):
    async def talk(served):
        caller = await served.call()
        assert await caller.codes(b"EHLO me") == [220]
        assert await caller.code() == 250
        return await caller.codes(line, b"NOOP")

    assert run(tmp_path, talk) == [code, 250]


@pytest.mark.parametrize("method", [b"POST", b"put"])
def test_browsers_are_sent_away_with_the_mail_that_a_page_has_them_bring(tmp_path, method):
    proxy = ScriptedProxy()
    mail = b"EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n" + MESSAGE + b".\r\n"

    async def talk(served):
        caller = await served.call()
        assert await caller.code() == 220
        caller.send(
            method
            + b" / HTTP/1.1\r\nHost: 127.0.0.1:10025\r\nContent-Type: text/plain\r\n\r\n"
            + mail
        )
        return await caller.code(), await caller.at_end()

    assert run(tmp_path, talk, proxy) == (421, True)
    assert proxy.passed == []


@pytest.mark.parametrize(
    "line", [b"RCPT TO:<>", b"RCPT TO:<a@b", b"RCPT TO:<a\nb@c>", b"RCPT TO:<a@b> NOTIFY=SOMETIMES"]
)
def test_recipients_are_checked_before_they_are_used(tmp_path, line):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        return await caller.codes(b"EHLO me", b"MAIL FROM:<>", line)

    assert run(tmp_path, talk, proxy)[-1] in (500, 501)
    assert proxy.passed[0].recipients == []


def test_parameters_reach_the_proxy_with_their_case(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        mail = b"MAIL FROM:<A@x.Example> size=10 BODY=8BITMIME RET=HDRS ENVID=AbC SMTPUTF8"
        return await caller.codes(
            b"EHLO me", mail, "RCPT TO:<ä@x.example> NOTIFY=NEVER ORCPT=utf-8;ä@x.example".encode()
        )

    assert run(tmp_path, talk, proxy) == [250, 250, 250]
    (passed,) = proxy.passed
    assert passed.sender.address == "A@x.Example"
    assert [tuple(parameter) for parameter in passed.sender.parameters][-2:] == [
        ("ENVID", "AbC"),
        ("SMTPUTF8", None),
    ]
    assert passed.recipients[0].address == "ä@x.example"


@pytest.mark.parametrize(
    ("position", "code"), [("standalone", 553), ("before-queue", 250), ("after-queue", 250)]
)
def test_behind_a_server_addresses_beyond_ascii_are_its_business(tmp_path, position, code):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        wide, plain, to = (
            "MAIL FROM:<grün@x.example>".encode(),
            b"MAIL FROM:<a@x.example>",
            "RCPT TO:<grün@y.example>".encode(),
        )
        return await caller.codes(b"EHLO me", wide, b"RSET", plain, to)

    assert run(tmp_path, talk, position=Position(position)) == [250, code, 250, 250, code]


@pytest.mark.parametrize("line", [b"RSET", b"EHLO again", b"HELO again"])
def test_a_transaction_can_be_given_up(tmp_path, line):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        return await caller.codes(
            b"EHLO me", b"MAIL FROM:<>", b"RCPT TO:<b@c>", line, b"DATA", b"MAIL FROM:<>"
        )

    assert run(tmp_path, talk, proxy) == [250, 250, 250, 250, 503, 250]
    assert [transaction.ended for transaction in proxy.passed] == [1, 1]


def test_the_proxy_gets_the_client(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        await caller.codes(b"HELO one", b"MAIL FROM:<>", b"EHLO two", b"MAIL FROM:<>")
        return caller.writer.get_extra_info("sockname")[1]

    port = run(tmp_path, talk, proxy)
    clients = [
        (
            transaction.client.helo,
            transaction.client.protocol,
            transaction.client.address,
            transaction.client.peer,
            transaction.client.port,
        )
        for transaction in proxy.passed
    ]
    assert clients == [
        ("one", "SMTP", "127.0.0.1", "127.0.0.1", str(port)),
        ("two", "ESMTP", "127.0.0.1", "127.0.0.1", str(port)),
    ]


def test_strangers_are_sent_away(tmp_path):
    async def talk(served):
        caller = await served.call()
        return await caller.reply(), await caller.at_end()

    assert run(tmp_path, talk, clients=("10.0.0.0/8", "::1/128")) == (
        (554, "5.7.1 This server accepts no mail from you"),
        True,
    )


def test_xforward_is_believed_of_trusted_peers_only(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        return await caller.codes(b"EHLO me", b"XFORWARD ADDR=192.0.2.1", b"XCLIENT ADDR=192.0.2.1")

    assert run(tmp_path, talk, trusted=("10.0.0.0/8",)) == [250, 550, 550]


def test_xforward_holds_for_one_message(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        heard = await caller.codes(
            b"EHLO me",
            b"XFORWARD NAME=spike.example ADDR=IPV6:2001:db8::1 PORT=25 HELO=a+20b",
            b"XFORWARD PROTO=ESMTP SOURCE=REMOTE IDENT=ABC",
            b"MAIL FROM:<>",
            b"XFORWARD NAME=late.example",
            b"RCPT TO:<b@c>",
            b"DATA",
            MESSAGE + b".",
            b"MAIL FROM:<>",
        )
        return heard + await caller.codes(
            b"RSET",
            b"XFORWARD ADDR=nonsense",
            b"XFORWARD LOGIN=x",
            b"XFORWARD NAME=[UNAVAILABLE]",
            b"MAIL FROM:<>",
        )

    assert run(tmp_path, talk, proxy) == [
        250,
        250,
        250,
        250,
        503,
        250,
        354,
        250,
        250,
        250,
        501,
        501,
        250,
        250,
    ]
    first, second, third = [transaction.client for transaction in proxy.passed]
    assert (first.name, first.address, first.port, first.helo) == (
        "spike.example",
        "2001:db8::1",
        "25",
        "a b",
    )
    assert (first.protocol, first.source, first.ident, first.peer, first.forwarded) == (
        "ESMTP",
        "REMOTE",
        "ABC",
        "127.0.0.1",
        True,
    )
    assert (second.address, second.helo, second.forwarded) == ("127.0.0.1", "me", False)
    assert (third.address, third.name, third.helo, third.forwarded) == ("", "", "", True)


def test_xclient_restarts_the_session(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.code()
        heard = await caller.codes(
            b"EHLO me",
            b"XCLIENT ADDR=192.0.2.7 NAME=out.example LOGIN=anna",
            b"MAIL FROM:<>",
            b"EHLO out",
            b"MAIL FROM:<>",
        )
        heard += await caller.codes(b"XCLIENT ADDR=192.0.2.8", b"RSET", b"XCLIENT SOURCE=LOCAL")
        return heard + await caller.codes(b"XCLIENT PORT=26", b"EHLO out", b"MAIL FROM:<>")

    assert run(tmp_path, talk, proxy) == [250, 220, 503, 250, 250, 503, 250, 501, 220, 250, 250]
    client = proxy.passed[0].client
    assert (client.address, client.name, client.login, client.helo) == (
        "192.0.2.7",
        "out.example",
        "anna",
        "out",
    )
    assert (client.peer, client.port, client.forwarded) == (
        "127.0.0.1",
        "",
        True,
    )  # the port was the peer's
    assert (proxy.passed[1].client.address, proxy.passed[1].client.port) == ("192.0.2.7", "26")


def test_too_many_connections(tmp_path):
    async def talk(served):
        callers = [await served.call() for _ in range(2)]
        for caller in callers:
            assert await caller.code() == 220
            assert await caller.codes(b"EHLO me", b"MAIL FROM:<a@b>") == [250, 250]
        callers.append(await served.call())
        first = await callers[2].code()
        ended = await callers[2].at_end()
        await callers[0].say(b"QUIT")
        await callers[0].at_end()
        return first, ended, await (await served.call()).code()

    assert run(tmp_path, talk, limits=DoorLimits(connections=2)) == (421, True, 220)
    assert run(tmp_path, talk, limits=DoorLimits(connections_per_client=2)) == (421, True, 220)


def test_commands_that_lead_nowhere_do_not_keep_a_place(tmp_path):
    async def talk(served):
        first, second = await served.call(), await served.call()
        assert [await first.code(), await second.code()] == [220, 220]
        assert await first.codes(b"EHLO me", b"NOOP", b"VRFY x") == [250, 250, 252]
        third = await served.call()
        return await third.code(), await first.code(), await second.codes(b"NOOP")

    assert run(tmp_path, talk, limits=DoorLimits(connections=2)) == (220, 421, [250])


def test_a_client_just_served_can_still_quit_when_the_door_is_full(tmp_path, monkeypatch):
    """Programs that hear 421 in place of 221 send the message again."""

    async def talk(served):
        caller = await served.call()
        await caller.begin()
        heard = await caller.codes(MESSAGE + b".")
        refused = await (await served.call()).code()
        return [*heard, refused, *await caller.codes(b"QUIT")]

    async def talk_later(served):
        caller = await served.call()
        await caller.begin()
        heard = await caller.codes(MESSAGE + b".")
        return [*heard, await (await served.call()).code(), await caller.code()]

    monkeypatch.setattr(smtp_handler, "DRAIN_GRACE_SECONDS", 3600.0)
    assert run(tmp_path, talk, limits=DoorLimits(connections=1)) == [250, 421, 221]
    monkeypatch.setattr(smtp_handler, "DRAIN_GRACE_SECONDS", 0.0)
    assert run(tmp_path, talk_later, limits=DoorLimits(connections=1)) == [250, 220, 421]


def test_unlisted_clients_evict_nobody(tmp_path):
    async def talk(served):
        caller, stranger = await served.call(), await served.call(local_addr=("127.0.0.2", 0))
        return await caller.code(), await stranger.code(), await caller.codes(b"NOOP")

    limits = DoorLimits(connections=1)
    assert run(tmp_path, talk, clients=("127.0.0.1/32",), limits=limits) == (220, 554, [250])


def test_commands_that_lead_nowhere_are_counted(tmp_path):
    async def talk(served):
        caller = await served.call()
        caller.send(b"EHLO me\r\n" + b"NOOP\r\n" * 8)
        heard = [await caller.code() for _ in range(8)]
        return heard, await caller.at_end()

    assert run(tmp_path, talk, limits=DoorLimits(idle_commands=5)) == ([220, *[250] * 6, 421], True)


def test_wrong_commands_are_counted(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        return await caller.codes(*[b"XYZZY", b"NOOP \0"] * 2), (
            await caller.codes(b"XYZZY", b"XYZZY"),
            await caller.at_end(),
        )

    assert run(tmp_path, talk, limits=DoorLimits(wrong_commands=4)) == (
        [500] * 4,
        ([500, 421], True),
    )


def test_a_message_makes_up_for_them(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        heard = []
        for _ in range(5):
            heard += await caller.codes(
                b"EHLO me",
                b"XYZZY",
                b"NOOP",
                b"MAIL FROM:<>",
                b"RCPT TO:<b@c>",
                b"DATA",
                MESSAGE + b".",
            )
        return heard

    assert (
        run(tmp_path, talk, limits=DoorLimits(wrong_commands=1, idle_commands=2))
        == [250, 500, 250, 250, 250, 354, 250] * 5
    )


def test_a_trusted_peer_may_be_refused_as_often_as_its_clients(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        await caller.codes(b"EHLO me", b"MAIL FROM:<>")
        return await caller.codes(*[b"RCPT TO:<bad@x.example>"] * 4)

    limits = DoorLimits(wrong_commands=2)
    proxy = ScriptedProxy({"bad@x.example": NO})
    assert run(tmp_path, talk, proxy, limits=limits) == [550] * 4
    assert run(tmp_path, talk, proxy, limits=limits, trusted=()) == [550, 550, 550, 421]


def test_recipients_are_limited(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.begin(recipients=(b"b@c",) * 3)
        await caller.say(MESSAGE + b".")
        return await caller.codes(b"MAIL FROM:<>", *[b"RCPT TO:<b@c>"] * 8)

    assert run(tmp_path, talk, proxy, limits=DoorLimits(recipients=3, wrong_commands=1)) == [
        250,
        250,
        250,
        250,
        452,
        452,
        452,
        452,
        452,
    ]
    assert len(proxy.passed[1].recipients) == 3


def test_a_fault_in_ending_a_message_is_only_logged(tmp_path, caplog):
    class Faulty(ScriptedProxy):
        def message(self, client):
            message = super().message(client)
            message.end = self.fail
            return message

        async def fail(self):
            raise RuntimeError("at the end")

    async def talk(served):
        caller = await served.call()
        await caller.begin()
        return await caller.codes(MESSAGE + b".", b"NOOP")

    assert run(tmp_path, talk, Faulty()) == [250, 250]
    assert "at the end" in caplog.text


def test_nothing_is_logged_of_an_ordinary_session(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    async def talk(served):
        caller = await served.call()
        await caller.begin()
        return await caller.codes(MESSAGE + b".", b"QUIT")

    assert run(tmp_path, talk) == [250, 221]
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []
