"""Clients that miss deadlines while the door closes, or lose their network."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path

import pytest

from spamguard.config.options import Protocol, ScannerLimits
from spamguard.servers import listener, rspamd, spamd
from spamguard.servers.scanner import Conversation
from tests.support.scanners import serving
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow  # waits for seconds

SILENT_SECONDS = 0.2


@pytest.mark.parametrize("turns", range(4))
def test_a_door_may_close_at_the_moment_at_which_a_client_is_late(
    tmp_path: Path, turns: int
) -> None:
    """Before the clock rings, when it has rung and the client's conversation has not heard it yet,
    and afterwards.
    """

    async def main() -> None:
        async with serving(
            tmp_path, Protocol.SPAMD, limits=ScannerLimits(command_timeout=SILENT_SECONDS)
        ) as served:
            await served.connect()
            while not served.door.connections:
                await asyncio.sleep(0)
            await asyncio.sleep(SILENT_SECONDS / 4)
            time.sleep(
                SILENT_SECONDS
            )  # the loop is busy: all that is due happens in its next turns
            for _ in range(turns):
                await asyncio.sleep(0)
            await served.door.drain(asyncio.get_running_loop().time() + 5)
            assert served.door.connections == 0

    asyncio.run(main())


@pytest.mark.parametrize("protocol", [Protocol.SPAMD, Protocol.RSPAMD])
@pytest.mark.parametrize("begun", [b"", b"CHECK SPAMC/1.5\r\n", b"POST /checkv2 HTTP/1.1\r\n"])
def test_a_lost_network_is_no_fault_of_ours(
    tmp_path: Path, protocol: Protocol, begun: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What the kernel says of it is not always that the connection was reset."""

    async def main() -> None:
        async with serving(tmp_path, protocol) as served:
            _, writer = await served.connect()
            writer.write(begun)
            await until(lambda: served.door.connections)
            await asyncio.sleep(0.1)  # until it waits for more
            (session,) = served.door._tasks
            assert isinstance(session, Conversation)
            session._reader.set_exception(
                OSError(errno.EHOSTUNREACH, "No route to host")
            )  # as the event loop does
            await until(lambda: not served.door.connections)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert "fault" not in caplog.text


@pytest.mark.parametrize("protocol", [Protocol.SPAMD, Protocol.RSPAMD])
def test_a_refused_client_that_is_sending_sees_the_end_of_the_answer(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for more of the answer for as long as we still hear it out."""
    monkeypatch.setattr(listener, "_DRAIN_INPUT_TIMEOUT", 3600.0)

    async def main() -> None:
        async with serving(tmp_path, protocol, clients=("192.0.2.0/24",)) as served:
            reader, writer = await served.connect()
            await asyncio.wait_for(reader.read(), PATIENCE)  # to its end
            writer.write(b"more of the request")
            writer.close()
            await until(lambda: not served.door.connections)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


@pytest.mark.parametrize("protocol", [Protocol.SPAMD, Protocol.RSPAMD])
def test_a_client_that_reads_no_answer_is_dropped_at_once(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not sent is not waited for once more, when the conversation ends."""
    monkeypatch.setattr(listener, "_CLOSE_TIMEOUT", 3600.0)
    large = b"x" * (64 << 20)
    monkeypatch.setattr(spamd.SpamdSession, "rejection", lambda *_: large)
    monkeypatch.setattr(rspamd.RspamdSession, "rejection", lambda *_: large)
    monkeypatch.setattr(listener, "_DRAIN_INPUT_TIMEOUT", 0.1)

    async def main() -> None:
        limits = ScannerLimits(data_timeout=0.2)
        async with serving(tmp_path, protocol, clients=("192.0.2.0/24",), limits=limits) as served:
            with socket.create_connection(served.address):
                await until(lambda: served.door.connections)
                await until(lambda: not served.door.connections)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
