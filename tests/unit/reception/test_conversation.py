"""A door that closes while a client lets its time pass."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from spamguard.settings import Protocol, ScannerLimits
from tests.support.scanners import serving

SILENT_SECONDS = 0.2


@pytest.mark.parametrize("turns", range(4))
def test_a_door_may_close_at_the_moment_at_which_a_client_is_late(tmp_path: Path, turns: int) -> None:
    """Before the clock rings, when it has rung and the client's conversation has not heard it yet, and afterwards."""

    async def main() -> None:
        async with serving(tmp_path, Protocol.SPAMD, limits=ScannerLimits(command_seconds=SILENT_SECONDS)) as served:
            await served.connect()
            while not served.door.connections:
                await asyncio.sleep(0)
            await asyncio.sleep(SILENT_SECONDS / 4)
            time.sleep(SILENT_SECONDS)  # the loop is busy: all that is due happens in its next turns
            for _ in range(turns):
                await asyncio.sleep(0)
            await served.door.drain(asyncio.get_running_loop().time() + 5)
            assert served.door.connections == 0

    asyncio.run(main())
