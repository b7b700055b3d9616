"""Clients that miss deadlines while the door closes, or lose their network."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from spamguard.config.options import Protocol, ScannerLimits
from spamguard.servers import listener, rspamd, spamd
from spamguard.servers.scanner import Conversation
from tests.support.scanners import serving
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow  # waits for seconds


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
            session.reader.set_exception(
                OSError(errno.EHOSTUNREACH, "No route to host")
            )  # as the event loop does
            await until(lambda: not served.door.connections)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert "fault" not in caplog.text


@pytest.mark.parametrize("protocol", [Protocol.SPAMD, Protocol.RSPAMD])
def test_a_client_that_reads_no_answer_is_dropped_at_once(
    tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not sent is not waited for once more, when the conversation ends."""

    monkeypatch.setattr(listener, "_CLOSE_TIMEOUT", 3600.0)

    async def refuse(session: Conversation, _: object) -> None:
        await session.send(b"x" * (64 << 20))

    monkeypatch.setattr(spamd.SpamdSession, "refuse", refuse)
    monkeypatch.setattr(rspamd.RspamdSession, "refuse", refuse)
    monkeypatch.setattr(listener, "_DRAIN_INPUT_TIMEOUT", 0.1)

    async def main() -> None:
        limits = ScannerLimits(data_timeout=0.2)
        async with serving(tmp_path, protocol, clients=("192.0.2.0/24",), limits=limits) as served:
            with socket.create_connection(served.address):
                await until(lambda: served.door.connections)
                await until(lambda: not served.door.connections)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
