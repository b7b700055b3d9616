"""Clients that are slow, gone, deaf or flooding harm no other client and no mail."""

import asyncio
import contextlib
import socket

import pytest

from spamguard.config.options import DoorLimits
from spamguard.servers import listener, smtp
from tests.support.waiting import PATIENCE, drain, until
from tests.unit.servers import support
from tests.unit.servers.support import MESSAGE, ScriptedProxy, serving

pytestmark = pytest.mark.slow  # waits for seconds

LATE = (421, "4.4.2 Timeout, closing connection")


def run(directory, talk, proxy=None, **options):
    async def main():
        async with serving(directory, proxy or ScriptedProxy(), **options) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())


async def dripping(caller, drop):
    """What is said while this goes on and on."""
    answered = asyncio.create_task(caller.reply())
    while not answered.done():
        caller.send(drop)
        await asyncio.sleep(0.01)
    return await answered


def test_a_line_that_comes_letter_by_letter_has_the_same_time(tmp_path):
    async def talk(served):
        caller = await served.call()
        await caller.code()
        return await dripping(caller, b"x")

    assert run(tmp_path, talk, limits=DoorLimits(command_timeout=0.3)) == LATE


def test_a_pipeline_is_worked_off_though_its_sender_closed_its_side(tmp_path):
    async def talk(served):
        caller = await served.call()
        caller.send(
            b"EHLO me\r\nMAIL FROM:<>\r\nRCPT TO:<b@c>\r\nDATA\r\n" + MESSAGE + b".\r\nQUIT\r\n"
        )
        caller.writer.write_eof()
        return [await caller.code() for _ in range(7)]

    assert run(tmp_path, talk) == [220, 250, 250, 250, 354, 250, 221]


@pytest.mark.parametrize("leave", ["reset", "close"])
def test_half_a_message_is_none(tmp_path, leave):
    async def talk(served):
        caller = await served.call()
        await caller.begin()
        caller.send(MESSAGE + b"\r\n.\r")
        await caller.writer.drain()
        await asyncio.sleep(0.05)
        if leave == "reset":
            caller.reset()
        else:
            caller.writer.close()
        await until(lambda: served.door.connections == 0)

    proxy = ScriptedProxy()
    run(tmp_path, talk, proxy)
    assert (proxy.contents, proxy.passed[0].ended) == ([], 1)


def flood(port, times=200_000):
    """A connection that sends commands and reads nothing."""
    deaf = socket.create_connection(("127.0.0.1", port))
    deaf.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        deaf.send(b"HELP\r\n" * times)
    return deaf


def test_a_client_that_never_reads_is_not_read_from_and_dropped(tmp_path):
    async def talk(served):
        deaf = flood(served.port)
        try:
            await until(lambda: sessions(served) and unsent(sessions(served)[0]) > 1 << 16)
            (session,) = sessions(served)
            buffered = len(session.reader._buffer) + len(session._unsent) + unsent(session)
            await until(lambda: served.door.connections == 0)
            return buffered
        finally:
            deaf.close()

    buffered = run(tmp_path, talk, limits=DoorLimits(command_timeout=0.3, idle_commands=10**9))
    # asyncio reads 256 KiB at once, and pauses at twice its limit.
    assert 0 < buffered < 2 * smtp.BUFFER_BYTES + (256 << 10) + (128 << 10)


def sessions(served):
    return list(served.door._tasks)


def unsent(session):
    return session.writer.transport.get_write_buffer_size() if session.writer else 0


def test_a_descriptor_less_process_goes_on_when_it_has_some_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(listener, "_ACCEPT_RETRY_SECONDS", 0.05)
    tried = []

    class Stingy:
        """A listening socket that fails once."""

        def __init__(self, real):
            self.real, self.fileno, self.setblocking = real, real.fileno, real.setblocking

        def accept(self):
            tried.append(1)
            if len(tried) == 1:
                raise OSError(24, "Too many open files")
            return self.real.accept()

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as real:
            door = support.make_door(tmp_path, ScriptedProxy(), Stingy(real))
            door.open()
            reader, writer = await asyncio.open_connection(*real.getsockname())
            greeting = await asyncio.wait_for(reader.readline(), PATIENCE)
            writer.close()
            await drain(door, 1)
            return greeting

    assert asyncio.run(main()).startswith(b"220 ")
    assert "Too many open files" in caplog.text
