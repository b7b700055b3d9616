"""A message whose handing on is cut off as the daemon stops: nobody knows whether the next hop has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spamguard.spool import Content
from spamguard.wire.values import Client, Reply, Sender
from tests.support.waiting import PATIENCE
from tests.unit.proxy.exchanged import RAW, Case, FakeHop, FakeTransaction


@dataclass
class SilentHop(FakeHop):
    """Takes a message and never says what became of it."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def transaction(self, client: Client) -> FakeTransaction:
        self.made.append(SilentTransaction(self))
        return self.made[-1]


class SilentTransaction(FakeTransaction):
    async def send(self, content: Content) -> Sequence[Reply]:
        assert isinstance(self.hop, SilentHop)
        self.hop.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_it_is_told_and_remembered(tmp_path: Path) -> None:
    """It may come a second time: whoever asks why finds the first."""
    hop = SilentHop()
    case = Case(tmp_path, hop)

    async def run() -> None:
        sending = asyncio.create_task(case._send(RAW, ("b@example.net",), Sender("a@example.org")))
        await asyncio.wait_for(hop.asked.wait(), PATIENCE)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(run())
    (entry,) = case.entries
    assert 'reply="421 4.3.2 Cut off, nobody knows whether the next hop has it"' in str(entry)
    assert "verdict=spam" in str(entry)
