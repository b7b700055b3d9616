"""The courier: the one process of a node that talks to the shared database.

The master starts it where `shared` is configured. Turns keep the node's copy of the log equal to
the database (`shared.courier`). Beside them, tasks write the status, tell the database of this node
and compare its settled tables with those of others, keep tokens and sessions equal on all nodes,
and drop from the log what was superseded long ago. At `courier.sock` in the state directory other
processes of the node ask for a turn when a lesson was cast, for burning a link and for forgetting a
node (`shared.client`).

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
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from operator import attrgetter

from spamguard import __version__, keys, process
from spamguard.bayes.training import LEARNER_VERSION
from spamguard.config.options import Settings, SharedSettings
from spamguard.daemon.children import Channel
from spamguard.engine.snapshot import SNAPSHOT_KEY
from spamguard.engine.store import parse_if_whole, undo_limit
from spamguard.errors import SpamguardError, UnavailableError
from spamguard.ledger.shared import COURIER_SOCKET, joined_log
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.log import WarnOnce, hostname, printable
from spamguard.records import EXTRACTOR
from spamguard.shared.courier import Courier
from spamguard.shared.mac import RowMac
from spamguard.shared.postgres import NodeRow, SharedDatabase
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

_TICK_SECONDS = 1.0
_COMPACT_SECONDS = 60.0


def main(settings: Settings, channel: Channel) -> int:
    """Serve until this process is ended."""
    channel.begin_service()
    if (shared := settings.shared) is None:
        return 1
    try:
        key = keys.load_key(settings.state / KEY_FILE, create=False)
        path, fingerprint = settings.state / LEDGER_FILE, keys.key_fingerprint(key)
        # What a power cut takes away from the copy is read from the log again: it need not wait for
        # the disk. Lessons are cast by others, who do.
        with SqliteLedger.open(path, fingerprint, durable=False) as ledger:
            asyncio.run(Node(settings, shared, ledger, key, channel.request_settling).run())
    except (SpamguardError, OSError) as error:
        _log.error("the shared log is not read: %s", error)
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
        connect = partial(SharedDatabase.connect, shared, ledger.node, self._mac)
        self._courier = Courier(ledger, connect, request_settling)
        self._replica: CredentialReplica | None = None
        self._replicating = asyncio.Lock()
        self._name, self._url = shared.name or hostname(), shared.url
        # Equal where nodes judge and learn alike.
        agreed = (settings.personal, settings.aliases, settings.authserv_ids, settings.keep)
        self._agreed = hashlib.sha256(repr(agreed).encode()).digest()[:8]
        self._nodes: tuple[NodeStatus, ...] = ()
        self._absent: tuple[str, ...] = ()  # names of nodes
        self._reported = self._back_at = 0.0
        self._written = SharedStatus()
        self._warnings = WarnOnce(_log)
        self._alarms: dict[str, WarnOnce] = {}  # of what runs beside the turns, by kind

    async def run(self) -> None:
        """Serve for ever."""
        with closing(self):
            listening = process.listen_at(self._settings.state / COURIER_SOCKET, 0o600)
            server = await asyncio.start_unix_server(self._serve, sock=listening)
            async with server, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._courier.run())
                tasks.create_task(self._keep_status())
                tasks.create_task(self._repeat(self._replicate, "credentials", _TICK_SECONDS))
                tasks.create_task(self._repeat(self._report, "nodes", BEAT_SECONDS))
                tasks.create_task(self._repeat(self._compact, "compacting", _COMPACT_SECONDS))

    def close(self) -> None:
        """Close what is open, but for the ledger."""
        self._courier.close()
        if self._replica is not None:
            self._replica.close()

    # ---- status

    async def _keep_status(self) -> None:
        while True:
            try:
                self._written = self._make_status()
                write_status(self._settings.state, self._written)
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
            joining=counts.joining,
            forged=self._mac.forged,
            alarms=(
                *courier.alarms.values(),
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
        stamp = parse_if_whole(self._ledger.get_meta(SNAPSHOT_KEY))
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
                stamp.settled,
                bytes.fromhex(stamp.lineage),
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
        self._set_alarms("tables", *_describe_differences(rows))
        twins = [
            f"{address} has the id of this node: a copy of its state directory: run "
            "`spamguard shared leave` and `join` on one of them"
            for address in await database.twins()
        ]
        self._set_alarms("twin", *twins)

    def _look_for_absent(self, rows: Sequence[NodeRow]) -> None:
        """Tell of the nodes that were not seen for a minute, if this node was there so long."""
        now = time.monotonic()
        if self._reported and now - self._reported > ABSENT_SECONDS:
            self._back_at = now  # after an absence of the database others come back too
        self._reported = now
        is_back = self._back_at and now - self._back_at < ABSENT_SECONDS
        before = 0.0 if is_back else time.time() - ABSENT_SECONDS
        self._absent = tuple(
            row.name for row in rows if row.seen < before and row.node != self._ledger.node
        )
        texts = [
            f"{printable(name)} was not seen for a minute or longer: it is away, or takes another "
            "server for the primary; if it does not come back, run `spamguard shared forget`"
            for name in self._absent
        ]
        self._set_alarms("absent", *texts)

    async def _compact(self, database: SharedDatabase) -> None:
        """Drop what was superseded long ago from the part of the log that is settled."""
        settled = parse_if_whole(self._ledger.get_meta(SNAPSHOT_KEY)).settled
        if self._written.is_first(time.time()) and (await database.head()).compacted < settled:
            await database.compact(settled, undo_limit(self._ledger))

    # ---- requests of other processes

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # it may have gone, or send what is no request
        with closing(writer), suppress(OSError, ValueError):
            while line := await reader.readline():
                request = json.loads(line)
                answer: dict[str, object] = {"ok": True}
                try:
                    match request["do"]:
                        case "turn":
                            await self._courier.next_turn()
                        case "burn":
                            answer = {"ok": await self._burn(request["id"])}
                        case "forget":
                            await self._database().forget_node(request["node"])
                            await self._report(self._database())
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


def _describe_differences(rows: Sequence[NodeRow]) -> Iterator[str]:
    """What is wrong where nodes have settled the same events, and not the same tables came out."""
    found = dict[tuple[int, int, int], dict[bytes, str]]()
    for row in filter(attrgetter("settled"), rows):
        names = found.setdefault((row.settled, row.extractor, row.learner), {})
        names.setdefault(row.tables, printable(row.name))
    for (position, _, _), names in found.items():
        if len(names) > 1:
            yield (
                f"the tables settled at position {position} of the shared log differ between "
                f"{' and '.join(names.values())}: please report this fault; `spamguard rebuild` "
                "takes away damage of a node"
            )
