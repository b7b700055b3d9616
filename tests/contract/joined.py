"""Ledgers that share a log in a real PostgreSQL by a real courier, for the tests of ledgers."""

from __future__ import annotations

import asyncio
import shutil
import threading
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

from spamguard.ledger.events import Server
from spamguard.ledger.shared import COURIER_SOCKET
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.shared.courier import Courier
from spamguard.shared.postgres import SharedDatabase
from tests.support.postgres import MAC, PostgresServer, TestDatabase
from tests.support.waiting import PATIENCE

_MAX_COURIERS = 8  # of ledgers that were made by `new`
_EMPTY = (
    "TRUNCATE spamguard.events; "
    "UPDATE spamguard.log SET last = 0, chain = '\\x00', compacted = 0, events = 0, clock = 0"
)


class CourierThread:
    """The courier of one ledger, in a thread of this process."""

    def __init__(self, path: Path, database: TestDatabase) -> None:
        self._path = path
        self._database = database
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def end(self) -> TestDatabase:
        """Stop, and return the database, which is of no more use to the ledger."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(PATIENCE)
        return self._database

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._serve())
        self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
        self._loop.close()

    async def _serve(self) -> None:
        with closing(SqliteLedger.open(self._path, "key", durable=False)) as ledger:

            async def connect(known: Server | None) -> SharedDatabase:
                settings = self._database.settings(tls=False)
                return await SharedDatabase.connect(settings, ledger.node, MAC, known)

            with closing(Courier(ledger, connect, lambda: None)) as courier:

                async def turn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    with closing(writer):
                        await reader.readline()
                        await courier.next_turn()

                await courier.take_turn()
                place = self._path.with_name(COURIER_SOCKET)
                async with await asyncio.start_unix_server(turn, place):
                    self._ready.set()
                    await courier.run()


class PostgresShelf:
    """Where such ledgers stand, each with a database of its own. start: as of `SqliteShelf`."""

    start = 0

    def __init__(self, directory: Path, server: PostgresServer) -> None:
        self._directory = directory
        self._server = server
        self._stack = ExitStack()
        self._couriers: dict[str, CourierThread] = {}
        self._free: list[TestDatabase] = []
        self._opened: list[SqliteLedger] = []
        self._numbers = count()

    def new(self) -> SqliteLedger:
        """An empty ledger, quickly: a copy of the first, its node's name included."""
        first = self._path("empty")
        if not first.exists():
            self._make(first)
        made = [name for name in self._couriers if name.isdigit()]
        if len(made) >= _MAX_COURIERS:
            self._end(made[0])
        name = str(next(self._numbers))
        self._path(name).parent.mkdir()
        shutil.copy(first, self._path(name))
        return self.open(name)

    def open(self, name: str, fingerprint: str = "key") -> SqliteLedger:
        self._prepare(name)
        ledger = SqliteLedger.open(self._path(name), fingerprint, durable=False)
        self._opened.append(ledger)
        return ledger

    def code(self, name: str) -> str:
        """Python that opens this ledger in another process, as `ledger`."""
        self._prepare(name)
        path = str(self._path(name))
        return (
            "from spamguard.ledger.sqlite import *; from pathlib import Path; ledger = "
            f"SqliteLedger.open(Path({path!r}), 'key')"
        )

    def close(self) -> None:
        for ledger in self._opened:
            ledger.close()
        for name in list(self._couriers):
            self._end(name)
        self._stack.close()

    def _path(self, name: str) -> Path:
        return self._directory / name / "ledger.sqlite"

    def _make(self, path: Path) -> None:
        path.parent.mkdir()
        with closing(SqliteLedger.open(path, "key", durable=False)) as ledger:
            ledger.join()

    def _prepare(self, name: str) -> None:
        """Make the ledger if there is none, and have a courier behind it."""
        if not self._path(name).exists():
            self._make(self._path(name))
        if name not in self._couriers:
            if not self._free:
                self._free.append(self._stack.enter_context(self._server.database()))
            self._couriers[name] = CourierThread(self._path(name), self._free.pop())

    def _end(self, name: str) -> None:
        database = self._couriers.pop(name).end()
        database.query(_EMPTY)
        self._free.append(database)
