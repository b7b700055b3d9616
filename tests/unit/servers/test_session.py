"""Commands of a session on a real socket."""

import asyncio
import socket

import pytest

from spamguard.config.options import DoorLimits, Position
from tests.support.waiting import PATIENCE, drain
from tests.unit.servers.support import MESSAGE, ScriptedProxy, make_door, serving


def run(directory, talk, proxy=None, **options):
    async def main():
        async with serving(directory, proxy or ScriptedProxy(), **options) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


@pytest.mark.parametrize("method", [b"POST", b"get"])
def test_browsers_are_sent_away_with_the_mail_that_a_page_has_them_bring(tmp_path, method):
    proxy = ScriptedProxy()
    head = b" / HTTP/1.1\r\nHost: 127.0.0.1:10025\r\nContent-Type: text/plain\r\n\r\n"
    mail = b"EHLO me\r\nMAIL FROM:<a@b>\r\nRCPT TO:<c@d>\r\nDATA\r\n" + MESSAGE + b".\r\n"

    async def talk(served):
        caller = await served.call()
        assert await caller.code() == 220
        caller.send(method + head + mail)
        return await caller.code(), await caller.at_end()

    assert run(tmp_path, talk, proxy) == (421, True)
    assert proxy.passed == []


@pytest.mark.parametrize(
    ("position", "code"), [("standalone", 553), ("before-queue", 250), ("after-queue", 250)]
)
def test_behind_a_server_addresses_beyond_ascii_are_its_business(tmp_path, position, code):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        wide, to = "MAIL FROM:<grün@x.example>".encode(), "RCPT TO:<grün@y.example>".encode()
        return await caller.codes(b"EHLO me", wide, b"RSET", b"MAIL FROM:<a@x.example>", to)

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

    codes = [250, 250, 250, 250, 503, 250, 354, 250, 250, 250, 501, 501, 250, 250]
    assert run(tmp_path, talk, proxy) == codes
    first, second, third = [transaction.client for transaction in proxy.passed]
    assert (first.name, first.address) == ("spike.example", "2001:db8::1")
    assert (first.port, first.helo, first.protocol) == ("25", "a b", "ESMTP")
    assert (first.source, first.ident) == ("REMOTE", "ABC")
    assert (first.peer, first.forwarded) == ("127.0.0.1", True)
    assert (second.address, second.helo, second.forwarded) == ("127.0.0.1", "me", False)
    assert (third.address, third.name, third.helo, third.forwarded) == ("", "", "", True)


def test_commands_that_lead_nowhere_are_counted(tmp_path):
    async def talk(served):
        caller = await served.call()
        caller.send(b"EHLO me\r\n" + b"NOOP\r\n" * 8)
        heard = [await caller.code() for _ in range(8)]
        return heard, await caller.at_end()

    assert run(tmp_path, talk, limits=DoorLimits(idle_commands=5)) == ([220, *[250] * 6, 421], True)


def test_recipients_are_limited(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        caller = await served.call()
        await caller.begin(recipients=(b"b@c",) * 3)
        await caller.say(MESSAGE + b".")
        return await caller.codes(b"MAIL FROM:<>", *[b"RCPT TO:<b@c>"] * 8)

    limits = DoorLimits(recipients=3, idle_commands=5)
    assert run(tmp_path, talk, proxy, limits=limits) == [250] * 4 + [452] * 5
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


# ---- limits on connections


def test_a_client_with_too_many_connections_evicts_its_own(tmp_path):
    async def main():
        limits = DoorLimits(connections=10, connections_per_client=2)
        async with serving(tmp_path, ScriptedProxy(), limits=limits) as served:
            sources = [(f"127.0.0.{number}", 0) for number in (2, 3, 3, 3)]
            other, *own = [await served.call(local_addr=source) for source in sources]
            greetings = [await caller.code() for caller in (other, *own)]
            return greetings, await own[0].code(), await other.codes(b"NOOP")

    assert asyncio.run(main()) == ([220] * 4, 421, [250])


def test_nobody_is_evicted_before_being_greeted(tmp_path):
    async def main(listening):
        limits = DoorLimits(connections=1)
        door = make_door(tmp_path, ScriptedProxy(), listening, limits=limits)
        clients = [await asyncio.open_connection(*listening.getsockname()) for _ in range(2)]
        door.open()  # which finds both at once
        heard = [await asyncio.wait_for(reader.readline(), PATIENCE) for reader, _ in clients]
        for _, writer in clients:
            writer.close()
        await drain(door, 1)
        return sorted(line[:3] for line in heard)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert asyncio.run(main(listening)) == [b"220", b"421"]
