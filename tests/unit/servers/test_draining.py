"""How the SMTP door drains."""

import asyncio
import socket

import pytest

from spamguard.config.options import DoorLimits
from spamguard.servers import listener, smtp_handler
from spamguard.smtp.envelope import Networks
from tests.support.waiting import PATIENCE
from tests.unit.servers.support import MESSAGE, ScriptedProxy, serving

pytestmark = pytest.mark.slow  # waits for seconds

GOODBYE = (421, "4.3.2 Shutting down, try again later")


def run(directory, proxy, talk):
    async def main():
        async with serving(directory, proxy) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


def soon(seconds):
    return asyncio.get_running_loop().time() + seconds


def test_idle_clients_get_a_421_soon_and_no_connection_is_accepted(tmp_path):
    async def talk(served):
        fresh, idle = await served.call(), await served.call()
        await fresh.code()
        await idle.code()
        await idle.say(b"EHLO me")
        await served.door.drain(soon(20))
        late = (
            await served.call()
        )  # the socket is not ours: it still takes what another process will serve
        heard = [await fresh.reply(), await idle.reply(), await idle.at_end()]
        try:
            await asyncio.wait_for(late.reader.readline(), 0.2)
        except TimeoutError:
            heard.append("nobody")
        return heard

    assert run(tmp_path, ScriptedProxy(), talk) == [GOODBYE, GOODBYE, True, "nobody"]


def test_a_client_that_has_just_begun_is_served(tmp_path):
    proxy = ScriptedProxy()

    async def talk(served):
        silent, caller = await served.call(), await served.call()
        connected = asyncio.create_task(served.door.drain(soon(20)))
        heard = await caller.codes(
            b"", b"EHLO me", b"MAIL FROM:<>", b"RCPT TO:<b@c>", b"DATA", MESSAGE + b"."
        )
        heard += [
            await caller.code(),
            await caller.reply(),
            await silent.code(),
            await silent.reply(),
        ]
        await connected
        return heard

    assert run(tmp_path, proxy, talk) == [220, 500, 250, 250, 250, 354, 250, GOODBYE, 220, GOODBYE]
    assert proxy.contents == [MESSAGE]


def test_a_served_client_gets_a_421_between_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(smtp_handler, "DRAIN_GRACE_SECONDS", 0.1)

    async def talk(served):
        caller = await served.call()
        await caller.begin()
        heard = await caller.codes(MESSAGE + b".")
        await served.door.drain(soon(3600))
        return heard, await caller.reply()

    assert run(tmp_path, ScriptedProxy(), talk) == ([250], GOODBYE)


def test_a_client_served_some_time_ago_gets_a_421_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(smtp_handler, "DRAIN_GRACE_SECONDS", 3600.0)

    async def talk(served):
        caller = await served.call()
        await caller.begin()
        heard = await caller.codes(MESSAGE + b".")
        (only,) = served.door._tasks
        only._handler.last_message_end -= 3600.0
        await served.door.drain(soon(7200))
        return heard, await caller.reply()

    assert run(tmp_path, ScriptedProxy(), talk) == ([250], GOODBYE)


def test_a_client_just_served_can_still_quit(tmp_path):
    """After a 421 here Python's smtplib takes the accepted message for refused, and the program
    would send it again.
    """

    async def talk(served):
        caller = await served.handing_on(proxy)
        drained = asyncio.create_task(served.door.drain(soon(20)))
        await asyncio.sleep(0)
        proxy.hold.set()
        heard = [await caller.code(), await caller.say(b"QUIT"), await caller.at_end()]
        await drained
        return heard

    proxy = ScriptedProxy()
    assert run(tmp_path, proxy, talk) == [250, (221, "2.0.0 Bye"), True]


def test_a_transaction_is_finished_first_however_slowly(tmp_path, monkeypatch):
    monkeypatch.setattr(smtp_handler, "DRAIN_GRACE_SECONDS", 0.01)
    proxy = ScriptedProxy()

    async def talk(served):
        caller, other = await served.call(), await served.call()
        await caller.begin()
        assert await other.code() == 220
        assert await other.codes(b"EHLO me", b"MAIL FROM:<>") == [250, 250]
        drained = asyncio.create_task(served.door.drain(soon(20)))
        await asyncio.sleep(0.05)
        heard = [await caller.say(MESSAGE + b"."), await caller.reply()]
        heard.append(await other.say(b"RCPT TO:<b@c>"))
        await asyncio.sleep(0.05)
        heard += [await other.codes(b"DATA", MESSAGE + b"."), await other.reply()]
        await drained
        return heard

    fine = (250, "2.1.5 fine by the next hop")
    assert run(tmp_path, proxy, talk) == [fine, GOODBYE, fine, [354, 250], GOODBYE]
    assert proxy.contents == [MESSAGE, MESSAGE]


def test_no_new_message_begins_though_it_is_already_there(tmp_path):
    async def talk(served):
        caller = await served.handing_on(proxy, b"MAIL FROM:<>\r\nRCPT TO:<b@c>\r\n")
        drained = asyncio.create_task(served.door.drain(soon(20)))
        await asyncio.sleep(0.05)
        proxy.hold.set()
        await drained
        return await caller.code(), await caller.reply(), await caller.at_end()

    proxy = ScriptedProxy()
    assert run(tmp_path, proxy, talk) == (250, GOODBYE, True)
    assert len(proxy.passed) == 1


def test_at_the_deadline_the_rest_is_cut(tmp_path):
    async def talk(served):
        proxy.hold = asyncio.Event()
        handing, sending, thinking = [await served.call() for _ in range(3)]
        for caller in (handing, sending):
            await caller.begin()
        await thinking.code()
        await thinking.codes(b"EHLO me", b"MAIL FROM:<>")
        handing.send(MESSAGE + b".\r\n")
        sending.send(MESSAGE)
        await proxy.holding.wait()
        await served.door.drain(soon(0.2))
        return [
            await caller.reply() for caller in (handing, sending, thinking)
        ], served.door.connections

    proxy = ScriptedProxy()
    assert run(tmp_path, proxy, talk) == ([GOODBYE] * 3, 0)
    assert [
        (transaction.cancelled, transaction.ended, transaction.content)
        for transaction in proxy.passed
    ] == [
        (True, 1, None),
        (False, 1, None),
        (False, 1, None),
    ]


def test_connections_are_counted(tmp_path):
    async def talk(served):
        callers = [await served.call() for _ in range(3)]
        for caller in callers:
            await caller.code()
        counted = [served.door.connections]
        await callers[0].say(b"QUIT")
        await callers[0].at_end()
        counted.append(served.door.connections)
        return counted

    assert run(tmp_path, ScriptedProxy(), talk) == [3, 2]


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
        await served.door.drain(soon(0.1))
        assert cancelled
        let_go.set()

    begun, let_go, cancelled = asyncio.Event(), asyncio.Event(), []
    run(tmp_path, Stubborn(), talk)


@pytest.mark.parametrize("moment", range(5))
def test_a_client_that_connects_at_that_moment_cuts_nobody_off(tmp_path, moment):
    async def talk(served):
        busy = await served.handing_on(proxy)
        with socket.create_connection(("127.0.0.1", served.port)):
            for _ in range(moment):
                await asyncio.sleep(0)
            drained = asyncio.ensure_future(served.door.drain(soon(20)))
            await asyncio.sleep(0.05)
            proxy.hold.set()
            heard = await busy.code()
            await drained
        return heard

    proxy = ScriptedProxy()
    assert run(tmp_path, proxy, talk) == 250


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
        limits = DoorLimits(connections=2)
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()),
            socket.create_connection(listening.getsockname()) as client,
        ):
            door = listener.Door(
                lambda *_: sessions.pop(0), [listening], Networks(("127.0.0.1",)), limits
            )
            await door.start()
            while sessions:
                await asyncio.sleep(0.01)
            drained = asyncio.ensure_future(door.drain(soon(0.3)))
            await asyncio.sleep(0.05)
            work.set()
            await drained
            return client.recv(99), door.connections

    assert asyncio.run(main()) == (b"250 done", 0)
