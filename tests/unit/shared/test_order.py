"""The order of the log: many processes append, are killed and go on; followers miss nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from spamguard.ledger.events import LogRow, next_chain
from spamguard.shared.postgres import SharedDatabase
from tests.support.postgres import MAC, TestDatabase, needs_postgres
from tests.unit.shared.appender import events_of

pytestmark = needs_postgres
PROCESSES = 8
EVENTS = int(os.environ.get("SPAMGUARD_ORDER_EVENTS", "250"))  # of each process
KILLS = 25


class Appender(threading.Thread):
    """A process, started again whenever it was killed."""

    def __init__(self, place: TestDatabase, node: str, seed: int) -> None:
        super().__init__()
        self.node = node
        self.kills = 0
        self._place = place
        self._random = random.Random(seed)
        self._process: subprocess.Popen[str] | None = None
        self.is_done = False
        self.failure = ""

    def run(self) -> None:
        """Run it until it has appended everything."""
        known = 0
        while not self.is_done and not self.failure:
            # It may have appended more than it could tell, and it may remember less.
            start = max(0, known - self._random.randint(0, 20))
            settings = self._place.settings()
            assert settings.tls.ca is not None
            line = [
                sys.executable, "-m", "tests.unit.shared.appender", settings.database,
                str(settings.password_file), str(settings.tls.ca), self.node, str(EVENTS),
                str(start), str(self._random.random()),
            ]  # fmt: skip
            with subprocess.Popen(
                line,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[3],
            ) as self._process:
                output, errors = self._process.communicate()
            known = max([known, *map(int, output.split("\n")[:-1])])
            self.is_done = self._process.returncode == 0
            if self._process.returncode not in (0, -signal.SIGKILL):
                self.failure = errors

    def kill(self) -> None:
        """Kill the process as `kill -9` does, if it runs."""
        process = self._process
        if process is not None and process.poll() is None:
            self.kills += 1
            process.kill()


def test_positions_have_no_hole_and_no_event_two(shared_database: TestDatabase) -> None:
    appenders = [
        Appender(shared_database, f"{number + 1:016x}", number) for number in range(PROCESSES)
    ]
    for each in appenders:
        each.start()
    rows = asyncio.run(_follow_and_kill(shared_database, appenders))
    for each in appenders:
        each.join()
    assert [each.failure for each in appenders if each.failure] == []
    assert sum(each.kills for each in appenders) >= KILLS

    expected = {event for each in appenders for event in events_of(each.node, EVENTS)}
    assert [row.position for row in rows] == list(range(1, len(expected) + 1))
    assert {row.event for row in rows} == expected
    own_order = [[row.event for row in rows if row.event.node == each.node] for each in appenders]
    for each, order in zip(appenders, own_order, strict=True):
        assert order == [event for event in events_of(each.node, EVENTS) if event.node == each.node]
    head = shared_database.query("SELECT last, chain, events FROM spamguard.log")
    assert head == [(len(rows), rows[-1].chain, len(rows))]


async def _follow_and_kill(place: TestDatabase, appenders: list[Appender]) -> list[LogRow]:
    """Follow the log to its end. What was read is not looked at again: it must have been right."""
    database = await SharedDatabase.connect(place.settings(), "f" * 16, MAC)
    choose = random.Random(5)
    rows: list[LogRow] = []
    chain, kills = b"\0", 0
    while True:
        are_done = not any(each.is_alive() for each in appenders)
        head = await database.head()
        page = await database.read_page(len(rows), choose.randint(1, 64))
        for row in page:
            chain = next_chain(chain, row.event)
            assert (row.position, row.chain) == (len(rows) + 1, chain)
            rows.append(row)
        if 0 < head.last <= len(rows):
            assert head.chain == rows[head.last - 1].chain
        if not page and are_done:
            break
        if not page:
            await asyncio.sleep(0.05)
        # Spread over the log, whatever the speed of the machine.
        if kills < KILLS and len(rows) > kills * PROCESSES * EVENTS * 0.8 / KILLS:
            before = sum(each.kills for each in appenders)
            choose.choice(appenders).kill()
            kills += sum(each.kills for each in appenders) - before
    database.close()
    return rows
