"""No acknowledged message is lost, none is doubled by spamguard and no body changes, whatever the
next hop does and whenever the daemon is killed.

SPAMGUARD_CHAOS_MESSAGES says how many messages there are; the daemon is killed a dozen times
whatever their number. The full size is 10,000.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.e2e import chaos, daemon
from tests.e2e.ports import free_port

MESSAGES = int(os.environ.get("SPAMGUARD_CHAOS_MESSAGES", "1000"))
CONNECTIONS = 50
NEVER = 2 * MESSAGES
# most mail is small; one in 1,000 has 20 MB
SIZES = tuple(
    [
        20_000_000
        if at == 500
        else 1_000_000
        if at % 250 == 100
        else 60_000
        if at % 10 == 3
        else 500 + 13 * at
        for at in range(1000)
    ]
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return daemon.taught(tmp_path / "state", messages=60)


async def exchange(
    state: Path, *, messages: int, share: float, kill_after: int
) -> tuple[chaos.FaultyHop, chaos.Clients, int]:
    """All messages through the daemon; how often it was killed. kill_after: each time so many more
    were acknowledged, however long that takes here: after some seconds a busy machine has not even
    started all of it.
    """
    door, hop_port = free_port(), free_port()
    hop, clients = chaos.FaultyHop(share), chaos.Clients(door)
    arguments = daemon.one_listener(state, door, f"smtp://127.0.0.1:{hop_port}")
    kills = 0
    async with hop.serving(hop_port), asyncio.TaskGroup() as group:
        sending = group.create_task(clients.send_all(chaos.bodies(messages, SIZES), CONNECTIONS))
        while not sending.done():
            with await asyncio.to_thread(Started, state, arguments, door) as running:
                enough = len(clients.acknowledged) + kill_after
                while not sending.done() and len(clients.acknowledged) < enough:
                    await asyncio.wait([sending], timeout=0.05)
                if not sending.done():
                    running.process.kill()
                    await asyncio.to_thread(running.process.wait)
                    kills += 1
    return hop, clients, kills


class Started:
    """The daemon; unlike `daemon.running` it may be found dead at the end."""

    def __init__(self, state: Path, arguments: tuple[str, ...], door: int) -> None:
        self._context = daemon.running(state, *arguments, port=door)
        self._running = self._context.__enter__()

    def __enter__(self) -> daemon.Daemon:
        return self._running

    def __exit__(self, *error: object) -> None:
        if self._running.process.poll() is None:
            assert self._running.stop() == 0


def check(hop: chaos.FaultyHop, clients: chaos.Clients, messages: int) -> None:
    assert len(clients.acknowledged) == messages
    assert clients.acknowledged - set(hop.received) == set(), "acknowledged and lost"
    assert {name: times for name, times in hop.received.items() if times > 1} == {}, "doubled"
    assert hop.wrong == []


def test_a_next_hop_that_refuses_stalls_and_drops(state: Path) -> None:
    hop, clients, _ = asyncio.run(exchange(state, messages=MESSAGES, share=0.02, kill_after=NEVER))
    check(hop, clients, MESSAGES)
    assert len(hop.faults) > 15


def test_killed_again_and_again(state: Path) -> None:
    hop, clients, kills = asyncio.run(
        exchange(state, messages=MESSAGES, share=0.004, kill_after=MESSAGES // 12)
    )
    check(hop, clients, MESSAGES)
    assert kills > 3
    assert not list((state / "spool").iterdir())
    assert (state / "ledger.sqlite").exists()
