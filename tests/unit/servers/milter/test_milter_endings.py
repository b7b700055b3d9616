"""How connections at the milter door end: the door closes, or the server leaves."""

import asyncio
import socket
import struct

from spamguard.servers.milter import MilterCommand
from tests.support.waiting import until
from tests.unit.servers.milter.support import RAW, ScriptedService, run


def test_a_door_that_closes_serves_its_connections_to_their_end(tmp_path):
    service = ScriptedService()

    async def talk(served):
        server = await served.ready()
        draining = asyncio.create_task(served.door.drain(asyncio.get_running_loop().time() + 30))
        await asyncio.sleep(0.05)
        replies = [(await server.message(RAW))[0].letters() for _ in range(2)]
        assert not draining.done()
        server.send(MilterCommand.QUIT)
        await draining
        return replies

    assert run(tmp_path, service, talk) == [b"iii", b"iii"]


def test_a_reset_is_no_fault(tmp_path, caplog):
    async def talk(served):
        service.hold = asyncio.Event()
        for end in (MilterCommand.MACROS, MilterCommand.END_OF_MESSAGE):
            server = await served.ready()
            await server.envelope()
            await server.content(RAW)
            server.send(end, b"E")
            await (
                service.holding.wait()
                if end is MilterCommand.END_OF_MESSAGE
                else asyncio.sleep(0.05)
            )
            server.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            server.writer.transport.abort()
        await asyncio.sleep(0.05)
        service.hold.set()
        await until(lambda: not served.door.connections)

    service = ScriptedService()
    with caplog.at_level("INFO"):
        run(tmp_path, service, talk)
    assert "connection lost" in caplog.text
    assert "fault" not in caplog.text


def test_a_server_that_goes_in_the_middle_takes_nothing_with_it(tmp_path):
    service = ScriptedService()

    async def talk(served):
        for length in range(1, 40, 3):
            server = await served.ready()
            await server.envelope()
            server.writer.write(b"\0\0\0\x24LSubject\0" + b"x" * length)
            await server.close()
        await until(lambda: not served.door.connections)
        return (await (await served.ready()).message(RAW))[0].reply

    assert run(tmp_path, service, talk) == b"c"
    assert len(service.questions) == 1
