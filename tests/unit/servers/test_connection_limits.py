"""Limits on connections, and who is evicted."""

import asyncio
import socket

from spamguard.config.options import DoorLimits
from spamguard.daemon.doors import open_door
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import ScriptedProxy, listener, serving


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
    async def main(sockets):
        door = open_door(
            listener(limits=DoorLimits(connections=1)),
            ScriptedProxy(),
            sockets,
            tmp_path,
            "mx.example",
            lambda _: None,
        )
        clients = [await asyncio.open_connection(*each.getsockname()) for each in sockets]
        await door.start()  # which finds both at once
        heard = [await asyncio.wait_for(reader.readline(), PATIENCE) for reader, _ in clients]
        for _, writer in clients:
            writer.close()
        await door.drain(asyncio.get_running_loop().time() + 1)
        return sorted(line[:3] for line in heard)

    address = ("127.0.0.1", 0)
    with socket.create_server(address) as one, socket.create_server(address) as other:
        assert asyncio.run(main([one, other])) == [b"220", b"421"]
