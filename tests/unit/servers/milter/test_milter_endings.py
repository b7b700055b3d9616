"""How connections at the milter door end: the door closes, or the server leaves."""

import asyncio

from spamguard.servers.milter import MilterCommand
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
