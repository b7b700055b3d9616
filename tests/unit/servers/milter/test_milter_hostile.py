"""Hostile servers at the milter door: nonsense, out of order, too slow, too many."""

import pytest

from spamguard.servers.milter import MilterCommand
from tests.unit.servers.milter.mta import ALL
from tests.unit.servers.milter.support import ScriptedService, run

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
    assert {len(recipient) for recipient in question.recipients} == {511}  # 512 with <
    assert service.raws == [b":\r\n\r\n"]
