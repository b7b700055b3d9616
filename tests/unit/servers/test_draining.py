"""How the SMTP door drains."""

import asyncio
import socket

import pytest

from spamguard.config.options import DoorLimits
from spamguard.servers import listener
from tests.support.waiting import PATIENCE, drain
from tests.unit.servers.support import MESSAGE, ScriptedProxy, serving
from tests.unit.servers.support import listener as door_settings
from tests.unit.servers.test_clients_from_hell import dripping

pytestmark = pytest.mark.slow  # waits for seconds

GOODBYE = (421, "4.3.2 Shutting down, try again later")


def run(directory, proxy, talk):
    async def main():
        async with serving(directory, proxy) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


def test_no_new_message_begins_though_it_is_already_there(tmp_path):
    async def talk(served):
        caller = await served.handing_on(proxy, b"MAIL FROM:<>\r\nRCPT TO:<b@c>\r\n")
        drained = asyncio.create_task(drain(served.door, 20))
        await asyncio.sleep(0.05)
        proxy.hold.set()
        await drained
        return await caller.code(), await caller.reply(), await caller.at_end()

    proxy = ScriptedProxy()
    assert run(tmp_path, proxy, talk) == (250, GOODBYE, True)
    assert len(proxy.passed) == 1


def test_a_line_that_comes_letter_by_letter_does_not_keep_the_door_open(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        answered = asyncio.create_task(dripping(caller, b"x"))
        await asyncio.sleep(0.05)
        await drain(served.door, 3600)
        return await answered

    assert run(tmp_path, ScriptedProxy(), talk) == GOODBYE


def test_a_hand_over_that_does_not_end_does_not_keep_the_door_open(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "_CANCEL_TIMEOUT", 0.1)

    class Stubborn(ScriptedProxy):
        def message(self, client):
            message = super().message(client)
            message.data = self.go_on
            return message

        async def go_on(self, spool, oddities):
            begun.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    cancelled.append(1)

    async def talk(served):
        caller = await served.call()
        await caller.begin()
        caller.send(MESSAGE + b".\r\n")
        await begun.wait()
        await drain(served.door, 0.1)
        assert cancelled
        let_go.set()

    begun, let_go, cancelled = asyncio.Event(), asyncio.Event(), []
    run(tmp_path, Stubborn(), talk)


class Faulty:
    """A session that fails whatever it is told."""

    evictable_from = 0.0

    async def serve(self, connected, refused):
        with connected:
            await asyncio.Event().wait()

    def drain(self, *_):
        raise RuntimeError

    cancel = abort = drain


class Working(Faulty):
    """One that ends when its work is done."""

    evictable_from = None

    def __init__(self, work):
        self.work = work

    async def serve(self, connected, refused):
        with connected:
            await self.work.wait()
            await asyncio.get_running_loop().sock_sendall(connected, b"250 done")

    def drain(self):
        pass


def test_the_fault_of_one_session_ends_no_other(monkeypatch):
    monkeypatch.setattr(listener, "_CANCEL_TIMEOUT", 0.1)

    async def main():
        work = asyncio.Event()
        sessions = [Faulty(), Working(work)]
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()),
            socket.create_connection(listening.getsockname()) as client,
        ):
            settings = door_settings(limits=DoorLimits(connections=2))
            door = listener.Door(lambda *_: sessions.pop(0), listening, settings)
            door.open()
            while sessions:
                await asyncio.sleep(0.01)
            drained = asyncio.ensure_future(drain(door, 0.3))
            await asyncio.sleep(0.05)
            work.set()
            await drained
            return client.recv(99), door.connections

    assert asyncio.run(main()) == (b"250 done", 0)
