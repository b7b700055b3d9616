"""The courier: the one process of a node that talks to the shared database (`python -m
spamguard.daemon.courier`).

The master starts it where `shared` is configured. Turns keep the node's copy of the log equal to
the database (`shared.courier`). Beside them, one task writes the status and tells the database of
this node, fetches settled tables and keeps tokens and sessions equal on all nodes. Other processes
of the node ask by two sockets in the state directory: `courier.nudge` hears that a lesson was cast,
`courier.sock` gives the lease of settling, publishes tables, burns links and forgets nodes
(`shared.client`).

SIGTERM or the end of the master end the process at once, at any moment: what it has not done yet is
in the ledger.

Must never be needed for mail to flow or for lessons to be learnt, and never keep a process waiting
that asks it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from functools import partial

from spamguard import __version__, keys, process
from spamguard.bayes.training import LEARNER_VERSION
from spamguard.config.options import Settings, SharedSettings
from spamguard.daemon.children import service_context
from spamguard.errors import SharedError, SpamguardError, UnavailableError
from spamguard.ledger.shared import NUDGE_SOCKET
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import WarnOnce, hostname, printable
from spamguard.records import EXTRACTOR
from spamguard.shared.client import COURIER_SOCKET
from spamguard.shared.courier import Courier
from spamguard.shared.mac import RowMac
from spamguard.shared.postgres import NodeRow, SharedDatabase
from spamguard.shared.snapshots import SnapshotExchange, joined_log
from spamguard.shared.status import (
    ABSENT_SECONDS,
    BEAT_SECONDS,
    NodeStatus,
    SharedStatus,
    write_status,
)
from spamguard.storage import KEY_FILE, LEDGER_FILE
from spamguard.web.replication import CredentialReplica, replicate

_log = logging.getLogger("spamguard.shared")

RETRY_SECONDS = 15.0  # while the ledger cannot be opened or has not joined
_TICK_SECONDS = 1.0
_LEASE_NAME = "settle"
_LEASE_SECONDS, _RENEW_SECONDS = 120, 30.0


def main(arguments: Sequence[str]) -> int:
    """Serve until this process is ended."""
    with service_context(arguments) as (settings, channel):
        if settings.shared is not None:
            errors = WarnOnce(_log, logging.ERROR)
            while True:
                try:
                    key = keys.load_key(settings.state / KEY_FILE, create=False)
                    path, fingerprint = settings.state / LEDGER_FILE, keys.key_fingerprint(key)
                    # What a power cut takes away from the copy is read from the log again: it need
                    # not wait for the disk. Lessons are cast by others, who do.
                    with SqliteLedger.open(path, fingerprint, durable=False) as ledger:
                        errors.clear()
                        settle = channel.request_settling
                        node = Node(settings, settings.shared, ledger, key, settle)
                        asyncio.run(node.run())
                except (SpamguardError, OSError) as error:
                    errors.report("the shared log is not read: %s", error)
                time.sleep(RETRY_SECONDS)
    return 1


class Node:
    """This node: the turns, and what runs beside them, in one thread, that of the ledger."""

    def __init__(
        self,
        settings: Settings,
        shared: SharedSettings,
        ledger: SqliteLedger,
        key: bytes,
        request_settling: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._mac = RowMac(key)
        self._log = joined_log(ledger)
        self._snapshots = SnapshotExchange(ledger, settings.state)
        self._courier = Courier(
            self._log,
            partial(SharedDatabase.connect, shared, ledger.node, self._mac),
            self._snapshots,
            request_settling,
        )
        self._replica: CredentialReplica | None = None
        self._replicating, self._exchanging = asyncio.Lock(), asyncio.Lock()
        self._name, self._url = shared.name or hostname(), shared.url
        self._agreed = _digest_settings(settings)
        self._nodes: tuple[NodeStatus, ...] = ()
        self._absent: tuple[str, ...] = ()  # names of nodes
        self._reported = self._back_at = 0.0
        self._written = SharedStatus()
        self._warnings = WarnOnce(_log)
        self._alarms: dict[str, WarnOnce] = {}  # of what runs beside the turns, by kind

    async def run(self) -> None:
        """Serve for ever."""
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with closing(self), socket.socket(socket.AF_UNIX, kind) as nudged:
            with process.short_path(self._settings.state) as directory:
                (directory / NUDGE_SOCKET).unlink(missing_ok=True)
                nudged.bind(str(directory / NUDGE_SOCKET))
                listening = process.listen_at(directory / COURIER_SOCKET, 0o600)
            asyncio.get_running_loop().add_reader(nudged, self._receive_nudge, nudged)
            server = await asyncio.start_unix_server(self._serve, sock=listening)
            async with server, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._courier.run())
                tasks.create_task(self._keep_status())
                tasks.create_task(self._repeat(self._replicate, "credentials", _TICK_SECONDS))
                tasks.create_task(self._repeat(self._report, "nodes", BEAT_SECONDS))
                tasks.create_task(self._repeat(self._fetch_tables, "tables", BEAT_SECONDS))

    def close(self) -> None:
        """Close what is open, but for the ledger."""
        self._courier.close()
        if self._replica is not None:
            self._replica.close()

    def _receive_nudge(self, nudged: socket.socket) -> None:
        nudged.recv(1)
        self._courier.nudge()

    # ---- status

    async def _keep_status(self) -> None:
        """Write the status when it has changed, at most once a second."""
        while True:
            try:
                status = self._make_status()
                last = self._written
                same = replace(status, written=last.written, contact=last.contact)
                if same != last or status.written - last.written >= BEAT_SECONDS:
                    write_status(self._settings.state, status)
                    self._written = status
            except (SpamguardError, OSError) as error:
                self._warnings.warn("status", "the courier's status is not written: %s", error)
            else:
                self._warnings.clear("status")
            await asyncio.sleep(_TICK_SECONDS)

    def _make_status(self) -> SharedStatus:
        courier, counts = self._courier, self._log.counts()
        return SharedStatus(
            node=self._ledger.node,
            written=time.time(),
            position=counts.position,
            last=max(courier.last, counts.position),
            contact=courier.contact,
            away_since=courier.away_since,
            problem=courier.problem,
            waiting=counts.waiting,
            waiting_since=float(counts.oldest),
            skipped=courier.skipped,
            hold=counts.hold,
            forged=self._mac.forged,
            alarms=(
                *courier.alarms.values(),
                *self._snapshots.alarms.values(),
                *self._mac.alarms(),
                *(str(text) for told in self._alarms.values() for text in told.standing()),
            ),
            absent=self._absent,
            nodes=self._nodes,
        )

    # ---- beside the turns

    async def _repeat(
        self, work: Callable[[SharedDatabase], Awaitable[None]], name: str, seconds: float
    ) -> None:
        """Do some work now and then while the database is there.

        Where it cannot be reached, the turns find that out, and report it.
        """
        while True:
            database = self._courier.database
            if database is None or not self._courier.contact:
                await asyncio.sleep(_TICK_SECONDS)
                continue
            try:
                await work(database)
            except UnavailableError:
                pass
            except (SpamguardError, OSError) as error:
                self._set_alarms(name, str(error))
            else:
                self._set_alarms(name)
            await asyncio.sleep(seconds)

    def _set_alarms(self, kind: str, *texts: str) -> None:
        """Say all of one kind that an operator must look at now."""
        told = self._alarms.setdefault(kind, WarnOnce(_log, logging.ERROR))
        told.clear(*(text for text in told.standing() if text not in texts))
        for text in texts:
            told.warn(text, "%s", text)

    async def _replicate(self, database: SharedDatabase) -> None:
        async with self._replicating:
            if self._replica is None:
                self._replica = CredentialReplica(self._settings.state)
            await replicate(database, self._replica)

    async def _report(self, database: SharedDatabase) -> None:
        """Tell the other nodes of this one, and read of them."""
        (waiting, _), head = self._log.waiting(), self._log.head()
        await database.note_node(
            NodeRow(
                self._ledger.node,
                self._name,
                self._url,
                __version__,
                EXTRACTOR,
                LEARNER_VERSION,
                head.position,
                head.chain,
                waiting,
                self._agreed,
            )
        )
        rows = await database.nodes()
        self._nodes = tuple(
            NodeStatus(
                row.node,
                row.name,
                row.url,
                row.program,
                row.position,
                row.waiting,
                row.seen,
                row.settings.hex(),
            )
            for row in rows
        )
        self._look_for_absent(rows)
        self._set_alarms("twin", *map(_describe_twin, await database.twins()))

    def _look_for_absent(self, rows: Sequence[NodeRow]) -> None:
        """Tell of the nodes that were not seen for a minute, if this node was there so long."""
        now = time.monotonic()
        if self._reported and now - self._reported > ABSENT_SECONDS:
            self._back_at = now  # after an absence of the database others come back too
        self._reported = now
        is_back = self._back_at and now - self._back_at < ABSENT_SECONDS
        before = time.time() - ABSENT_SECONDS
        self._absent = tuple(
            row.name
            for row in rows
            if row.seen < before and row.node != self._ledger.node and not is_back
        )
        self._set_alarms("absent", *map(_describe_absent, self._absent))

    async def _fetch_tables(self, database: SharedDatabase) -> None:
        async with self._exchanging:
            await self._snapshots.fetch(database)

    # ---- requests of other processes

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client, whose lease lasts as long as its connection."""
        # it may have gone, or send what is no request
        with closing(writer), suppress(OSError, ValueError):
            async with AsyncExitStack() as stack:
                await self._answer_all(reader, writer, stack)

    async def _answer_all(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stack: AsyncExitStack
    ) -> None:
        token: int | None = None
        while line := await reader.readline():
            request = json.loads(line)
            try:
                match request["do"]:
                    case "lease" if token is None:
                        token = await self._take_lease(stack)
                        answer: dict[str, object] = {"ok": token is not None}
                    case "publish" if token is not None:
                        async with self._exchanging:
                            await self._snapshots.publish(self._database(), token)
                        answer = {"ok": True}
                    case "burn":
                        answer = {"ok": await self._burn(request["id"])}
                    case "forget":
                        await self._database().forget_node(request["node"])
                        await self._report(self._database())
                        answer = {"ok": True}
                    case _:
                        return
            except (SpamguardError, OSError) as error:
                answer = {"error": str(error), "away": isinstance(error, UnavailableError)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    def _database(self) -> SharedDatabase:
        if self._courier.database is None or self._courier.away_since:
            raise UnavailableError("the shared log is away: try again")
        return self._courier.database

    async def _burn(self, identity: str) -> bool:
        """Use up a link, which may have been made here a moment ago."""
        database = self._database()
        await self._replicate(database)
        return await database.burn_link(identity)

    async def _take_lease(self, stack: AsyncExitStack) -> int | None:
        """Take the lease of settling until the stack ends, and return its token, which rises with
        each holder. None: somebody else has it.
        """
        holder = f"{self._ledger.node} {secrets.token_hex(4)}"
        token = await self._database().take_lease(_LEASE_NAME, holder, _LEASE_SECONDS)
        if token is not None:
            stack.push_async_callback(self._release_lease, token)
            stack.callback(asyncio.create_task(self._renew_lease(holder)).cancel)
            if not await self._snapshots.may_settle(self._database()):  # another has just done so
                return None
        return token

    async def _renew_lease(self, holder: str) -> None:
        """Renew the lease for ever. Publishing fails where it was lost."""
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with suppress(SharedError):
                await self._database().take_lease(_LEASE_NAME, holder, _LEASE_SECONDS)

    async def _release_lease(self, token: int) -> None:
        with suppress(SharedError):  # it ends by itself
            await self._database().release_lease(_LEASE_NAME, token)


def _describe_absent(name: str) -> str:
    return (
        f"{printable(name)} was not seen for a minute or longer: it is away, or takes another "
        "server for the primary; if it does not come back, run `spamguard shared forget`"
    )


def _describe_twin(address: str) -> str:
    return (
        f"{address} has the id of this node: a copy of its state directory: run "
        "`spamguard shared leave` and `join` on one of them"
    )


def _digest_settings(settings: Settings) -> bytes:
    """Equal where nodes judge and learn alike."""
    agreed = (settings.personal, settings.aliases, settings.authserv_ids, settings.keep)
    return hashlib.sha256(repr(agreed).encode()).digest()[:8]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
