"""Hostile servers at the milter door: nonsense, out of order, too slow, too many."""

import asyncio
from contextlib import suppress

import pytest

from spamguard.config.options import ScannerLimits
from spamguard.servers.milter_protocol import TRANSITIONS, MilterCommand, MilterState
from tests.support.scanners import in_transactions
from tests.support.waiting import PATIENCE, until
from tests.unit.servers.milter.mta import ALL, OLD
from tests.unit.servers.milter.support import RAW, ScriptedService, run

pytestmark = pytest.mark.slow  # waits for seconds


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0\0\0\1C",  # a client before anything is agreed on
        b"\0\0\0\5O\0\0\0\6",  # an offer cut short
        b"\0\0\0\x0dO\0\0\0\1\0\0\0\xff\0\0\0\xff",  # version 1
        b"\0\0\0\x0dO\0\0\0\6\0\0\0\x20\0\0\0\xff",  # no header field can be added
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
    ],
)
def test_a_client_that_is_no_mail_server_is_disconnected(tmp_path, said, caplog):
    async def talk(served):
        server = await served.connect()
        server.writer.write(said + b"more of it")
        return await server.hung_up()

    assert run(tmp_path, ScriptedService(), talk)
    assert "hanging up" in caplog.text


@pytest.mark.parametrize(
    "commands",
    [
        [(MilterCommand.OFFER, ALL)],
        [(MilterCommand.FIELD, b"a\0b\0")],
        [(MilterCommand.END_OF_MESSAGE, b"")],
        [(MilterCommand.SENDER, b"no end")],
        [(MilterCommand.MACROS, b"Ci\0x")],
        [(MilterCommand.SENDER, b"<a@b>\0"), (MilterCommand.FIELD, b"no end")],
        [(MilterCommand.SENDER, b"<a@b>\0"), (MilterCommand.BODY, b"x")],
    ],
)
def test_what_is_out_of_order_or_makes_no_sense_ends_the_connection(tmp_path, commands):
    async def talk(served):
        server = await served.ready()
        for command, data in commands:
            server.send(command, data)
        return await server.hung_up()

    service = ScriptedService()
    assert run(tmp_path, service, talk)
    assert service.questions == []


STEPS = {
    MilterState.NEW: [],
    MilterState.READY: [(MilterCommand.OFFER, ALL)],
    MilterState.CLIENT: [(MilterCommand.CONNECT, b"x\0U")],
    MilterState.ENVELOPE: [(MilterCommand.SENDER, b"<a@b>\0")],
    MilterState.HEADER: [(MilterCommand.FIELD, b"a\0b\0")],
    MilterState.BODY: [(MilterCommand.END_OF_HEADER, b"")],
}


def test_whatever_is_not_in_the_table_ends_the_connection(tmp_path):
    service = ScriptedService()
    illegal = [
        (state, command)
        for state in MilterState
        for command in MilterCommand
        if (state, command) not in TRANSITIONS
    ]

    async def talk(served):
        for state, command in illegal:
            server = await served.connect()
            for step in list(STEPS)[: list(STEPS).index(state) + 1]:
                for said in STEPS[step]:
                    server.send(*said)
            server.send(command, b"x\0")
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                assert (await server.heard())[0] == b"O", (state, command)
                assert await server.hung_up(), (state, command)

    run(tmp_path, service, talk)
    assert len(illegal) > 30
    assert service.questions == []


def test_odd_words_do_no_harm(tmp_path):
    service = ScriptedService()

    async def talk(served):
        server = await served.connect()
        await server.agree()
        await server.say(MilterCommand.CONNECT, b"\xff\0U", 0x1000)
        await server.say(MilterCommand.HELLO, b"\0", 0x2000)
        await server.say(MilterCommand.UNKNOWN, b"XYZZY\0", 0x20000)
        await server.say(MilterCommand.SENDER, b"\0", 0x4000)
        for number in range(6000):
            await server.say(MilterCommand.RECIPIENT, b"<" + b"r" * 600 + b"%d>\0" % number, 0x8000)
        await server.say(MilterCommand.FIELD, b"\0\0", 0x80)
        await server.say(MilterCommand.END_OF_HEADER, b"ignored", 0x40000)
        return await server.end()

    assert run(tmp_path, service, talk).reply == b"c"
    (question,) = service.questions
    assert (question.sender, question.client.helo, question.client.address) == ("", "", "")
    assert len(question.recipients) == 5000
    assert {len(recipient) for recipient in question.recipients} == {512}
    assert service.raws == [b":\r\n\r\n"]


def test_a_packet_that_begins_must_come_to_its_end(tmp_path, caplog):
    limits = ScannerLimits(data_timeout=0.3)

    async def talk(served):
        server = await served.ready()
        hung_up = asyncio.create_task(server.hung_up())
        for letter in b"\0\0\1\0" + b"M" * 250:
            server.writer.write(bytes([letter]))
            await asyncio.sleep(0.01)
            if hung_up.done():
                break
        return await hung_up

    assert run(tmp_path, ScriptedService(limits=limits), talk)
    assert "silent for too long" in caplog.text


@pytest.mark.parametrize(
    "limits", [ScannerLimits(data_timeout=0.8), ScannerLimits(message_timeout=0.8)]
)
def test_content_must_come_in_time_but_before_it_the_server_may_wait(tmp_path, limits):
    async def talk(served):
        server = await served.ready()
        await asyncio.sleep(1)
        await server.envelope()
        await asyncio.sleep(1)
        await server.content(RAW)
        assert (await server.end()).reply == b"c"
        await server.envelope()
        server.send(MilterCommand.FIELD, b"a\0b\0")
        return await server.hung_up()

    assert run(tmp_path, ScriptedService(limits=limits), talk)


def test_a_server_that_does_not_read_is_cut_off(tmp_path):
    async def talk(served):
        server = await served.ready(offer=OLD)
        await server.envelope()
        server.writer.transport.pause_reading()
        try:
            for _ in range(3000):
                server.writer.write(b"\0\0\0\4La\0\0" * 2000)
                await asyncio.wait_for(server.writer.drain(), PATIENCE)
        except ConnectionError:
            return True
        return False

    assert run(
        tmp_path,
        ScriptedService(limits=ScannerLimits(data_timeout=0.5)),
        talk,
        path=tmp_path / "m.sock",
    )


def test_only_listed_servers_and_only_so_many(tmp_path, caplog):
    async def talk(served):
        server = await served.connect()
        return await server.hung_up()

    assert run(tmp_path, ScriptedService(clients=("192.0.2.0/24",)), talk)
    assert "not_listed" in caplog.text

    async def talk_much(served):
        servers = [await served.ready() for _ in range(2)]
        for server in servers:
            await server.envelope()
        await until(lambda: in_transactions(served.door) == 2)
        third = await served.connect()
        gone = await third.hung_up()
        await servers[0].close()
        await until(lambda: served.door.connections <= 1)
        await served.ready()
        return gone

    assert run(tmp_path, ScriptedService(limits=ScannerLimits(connections_per_client=2)), talk_much)


def test_a_socket_in_the_file_system(tmp_path):
    service = ScriptedService(clients=())

    async def talk(served):
        return (await (await served.ready()).message(RAW))[0].letters()

    assert run(tmp_path, service, talk, path=tmp_path / "m.sock") == b"iii"
    assert service.questions[0].peer == ""
