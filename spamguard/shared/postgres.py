"""The shared log in PostgreSQL, as one node talks to it.

Each call is one statement and one transaction, so a node that dies leaves neither a lock nor half a
change. A call may be repeated whenever its outcome is unknown: the functions in schema.sql see to
that.

Of several hosts, the first one that takes writes counts, unless it is an old primary: a standby
that is promoted begins a new timeline, and who has seen that never goes back to a lower one.

Every exchange has a deadline (`connection`). After an UnavailableError this object is of no more
use: close it, and connect again a little later. Any other SharedError stays until somebody mends
its cause, so try again each minute.

Must never be used by a process on the path of mail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spamguard.config.options import SharedSettings
from spamguard.errors import SharedError, UnavailableError
from spamguard.ledger.events import MAX_BODY_BYTES, LogRow, Server, SharedEvent
from spamguard.shared.connection import DatabaseConnection, connection_string, each_host
from spamguard.shared.mac import RowMac

SCHEMA_VERSION = 3
_PAGE_BYTES = 4 << 20  # of bodies
COMPACT_POSITIONS = 5_000  # in one transaction

# ---- what the database says


class ClusterRow(NamedTuple):
    """What all nodes have in common.

    name: of this database; another one has another name. fingerprint: of the key. changes: the
    number of the last change of credentials.
    """

    name: str
    schema_version: int
    min_writer: int
    fingerprint: str
    bits: int
    changes: int


class LogHead(NamedTuple):
    """The end of the log. compacted: up to this position events may be missing."""

    last: int
    chain: bytes
    compacted: int


class NodeRow(NamedTuple):
    """What a node last said of itself. settled: the last position that its settled tables hold,
    and tables: their hash. seen: when, by this machine's clock, seconds since 1970.
    """

    node: str
    name: str
    url: str
    program: str
    extractor: int
    learner: int
    position: int
    chain: bytes
    waiting: int
    settings: bytes
    settled: int
    tables: bytes
    seen: float = 0.0


class CredentialRow(NamedTuple):
    """A token, link or session, as in access.sqlite. ended: seconds since 1970; 0: it is valid.
    is_ours: whether a node has made it.
    """

    id: str
    kind: str
    digest: bytes
    name: str
    person: str
    operator: bool
    created: int
    expires: int
    seen: int
    ended: int = 0
    changed: int = 0
    is_ours: bool = True


# ---- statements

# The control file tells of a new timeline only after the next checkpoint, the log's file at once.
_SERVER = """
SELECT system_identifier, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()"""
_CLUSTER = """
SELECT name::text, schema_version, min_writer, fingerprint, bits, changes FROM spamguard.cluster"""
# As a value: it stands in no text of a statement, which others could see.
_SHOW_KEY = "SELECT set_config('spamguard.secret', %s, false) IS NULL"
_HEAD = "SELECT last, chain, compacted FROM spamguard.log"
_CHAINS = "SELECT position, chain FROM spamguard.events WHERE position = ANY(%b::bigint[])"
# The sizes of bodies are known without reading them.
_PAGE = """
SELECT position, chain, subject, clock, node, content, time,
    CASE WHEN octet_length(body) <= %b THEN body ELSE ''::bytea END, mac
FROM (
    SELECT *, sum(least(octet_length(body), %b)) OVER (ORDER BY position) AS total
    FROM spamguard.events WHERE position > %b ORDER BY position LIMIT %b) AS page
WHERE total - octet_length(body) < %b ORDER BY position"""
_APPEND = """
SELECT place FROM spamguard.append(%b::bytea[], %b::bigint[], %b::text[], %b::bytea[],
    %b::bigint[], %b::bytea[], %b::bytea[]) ORDER BY ordinal"""
_NODES = """
SELECT node, name, url, program, extractor, learner, position, chain, waiting, settings,
    settled, tables, extract(epoch FROM clock_timestamp() - seen)::float8, mac
FROM spamguard.nodes ORDER BY name, node LIMIT 1000"""
# Each turn changes the state of a session, but a connection that was cut may stay for hours.
_TWINS = """
SELECT DISTINCT coalesce(host(client_addr), 'this machine') FROM pg_stat_activity
WHERE split_part(application_name, ' ', 2) = split_part(current_setting('application_name'), ' ', 2)
    AND application_name <> current_setting('application_name')
    AND state_change > clock_timestamp() - interval '10 seconds' ORDER BY 1 LIMIT 9"""
_CREDENTIALS = """
SELECT id, kind, digest, name, person, operator, created, expires, seen, ended, changed, mac
FROM spamguard.credentials WHERE changed > %b ORDER BY changed LIMIT 1000"""


@dataclass
class SharedDatabase:
    """An open connection: use `connect`. It belongs to one event loop; several tasks may call."""

    _place: str
    _work: DatabaseConnection
    _mac: RowMac
    server: Server
    refused: str = ""

    @classmethod
    async def connect(
        cls, settings: SharedSettings, node: str, mac: RowMac, known: Server | None = None
    ) -> SharedDatabase:
        """Connect to the server that takes writes, and check that the database is of use.

        mac: of this installation's key. known: the server that this node had last; None: any will
        do. `refused` says what is wrong with hosts before the one that was taken, but for those
        that are away.
        """
        _, conninfo = connection_string(settings, node)
        problems = list[SharedError]()
        for place, own in each_host(conninfo):
            try:
                database = await cls._connect(place, own, mac, known)
            except SharedError as error:
                problems.append(error)
            else:
                refused = [each for each in problems if not isinstance(each, UnavailableError)]
                database.refused = "; ".join(map(str, refused))
                return database
        away = [each for each in problems if isinstance(each, UnavailableError)]
        kind = UnavailableError if away else SharedError  # what is away may come back
        raise kind("; ".join(map(str, problems))) from problems[-1]

    @classmethod
    async def _connect(
        cls, place: str, conninfo: str, mac: RowMac, known: Server | None
    ) -> SharedDatabase:
        database = cls(place, await DatabaseConnection.open(place, conninfo), mac, Server(0, 0))
        try:
            ((system, file),) = await database._work.query(_SERVER)
            database.server = Server(system, int(file[:8], 16))
            if problem := _find_problem(database.server, known, await database.cluster(), mac):
                raise SharedError(f"{place}: {problem}")
            await database._work.query(_SHOW_KEY, mac.secret)
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        self._work.close()

    # ---- the log

    async def cluster(self) -> ClusterRow:
        (row,) = await self._work.query(_CLUSTER)
        return ClusterRow(*row)

    async def head(self) -> LogHead:
        (row,) = await self._work.query(_HEAD)
        return LogHead(*row)

    async def chains(self, positions: Collection[int]) -> dict[int, bytes]:
        """Return the chain at each of the positions that are there."""
        return dict(await self._work.query(_CHAINS, list(positions)))

    async def read_page(self, after: int, limit: int) -> list[LogRow]:
        """Read the events behind a position in their order.

        There may be fewer than the limit although more follow, as a page has a limit in bytes too;
        it is empty only at the end. A body that is too long comes as b"".
        """
        values = (MAX_BODY_BYTES, MAX_BODY_BYTES, after, limit, _PAGE_BYTES)
        return [
            LogRow(position, chain, SharedEvent(*columns), self._mac.is_ours("vote", columns, mac))
            for position, chain, *columns, mac in await self._work.query(_PAGE, *values)
        ]

    async def append(self, events: Sequence[SharedEvent]) -> list[int]:
        """Append events, 1 to 1,000, and return their positions.

        What is in the log already keeps its position. After an error it is not known whether the
        events were appended: call again.
        """
        signed = [(*event, self._mac.sign("vote", event)) for event in events]
        columns = zip(*signed, strict=True)
        rows = await self._work.query(_APPEND, *map(list, columns))
        return [position for (position,) in rows]

    async def compact(self, upto: int, before: int) -> int:
        """Drop superseded events, and return how many.

        upto: a position up to which tables are settled. before: seconds since 1970; votes that
        supersede must be older than this, and than 30 days.
        """
        dropped = 0
        for start in range(1, upto + 1, COMPACT_POSITIONS):
            end = min(start + COMPACT_POSITIONS - 1, upto)
            began = time.monotonic()
            ((number,),) = await self._work.query(
                "SELECT spamguard.compact(%s, %s, %s, %s)", start, end, upto, before
            )
            dropped += number
            # Nobody can append meanwhile: leave as much time to the turns of all nodes.
            await asyncio.sleep(max(0.1, time.monotonic() - began))
        return dropped

    # ---- nodes

    async def note_node(self, row: NodeRow) -> None:
        """Say how this node is; the database notes the time."""
        await self._work.query(
            "SELECT spamguard.note_node(%s, %s, %s, %s, %s, %s, %s, %b, %s, %b, %s, %b, %b)",
            *row[:-1],
            self._mac.sign("node", row[:-1]),
        )

    async def forget_node(self, node: str) -> None:
        """Drop what a node said of itself, until it says it again."""
        await self._work.query("SELECT spamguard.forget_node(%s)", node)

    async def twins(self) -> list[str]:
        """List the addresses of other machines that now have the id of this node."""
        return [address for (address,) in await self._work.query(_TWINS)]

    async def nodes(self) -> list[NodeRow]:
        """List the nodes that were here within 30 days, by name."""
        now = time.time()
        return [
            NodeRow._make((*row, now - age))
            for *row, age, mac in await self._work.query(_NODES)
            if self._mac.is_ours("node", row, mac)
        ]

    # ---- credentials

    async def put_credential(self, row: CredentialRow) -> None:
        """Make a credential known to all nodes, or its last use. One that has ended stays so."""
        await self._work.query(
            "SELECT spamguard.put_credential(%s, %s, %b, %s, %s, %s, %s, %s, %s, %b)",
            *row[:9],
            self._mac.sign("credential", row[:8]),
        )

    async def end_credential(self, identity: str) -> bool:
        """End a credential on all nodes; False if there was none that is valid."""
        ((ended,),) = await self._work.query("SELECT spamguard.end_credential(%s)", identity)
        return bool(ended)

    async def burn_link(self, identity: str) -> bool:
        """Use up a link. Of all callers on all nodes, one gets True."""
        ((burnt,),) = await self._work.query("SELECT spamguard.burn_link(%s)", identity)
        return bool(burnt)

    async def changed_credentials(self, since: int) -> list[CredentialRow]:
        """List what changed after this number, at most 1,000 rows: ask again from the last one.

        Where `ClusterRow.changes` is lower than what was seen, or the cluster's name is another,
        the database has lost changes: put all credentials again and ask from 0 on.
        """
        return [
            CredentialRow._make((*row, self._mac.is_ours("credential", row[:8], mac)))
            for *row, mac in await self._work.query(_CREDENTIALS, since)
        ]


def _find_problem(server: Server, known: Server | None, cluster: ClusterRow, mac: RowMac) -> str:
    """Why a database is of no use, with the remedy; "": it is."""
    advice = "if it is to count from now on, run `spamguard shared join` again on every node"
    if known is not None and server.system != known.system:
        return f"it is another server than before; {advice}"
    if known is not None and server.timeline < known.timeline:
        return (
            f"an old primary: stop it: it has timeline {server.timeline}, and this node knows one "
            f"with {known.timeline}; {advice}"
        )
    version = cluster.schema_version
    if version < SCHEMA_VERSION:
        return (
            f"its tables are of version {version}, this program needs {SCHEMA_VERSION}: "
            "run `spamguard shared upgrade`"
        )
    if cluster.min_writer > SCHEMA_VERSION:
        return (
            f"its tables are of version {version}, which this program does not know: "
            "update spamguard on this node"
        )
    if cluster.fingerprint != mac.fingerprint:
        return (
            f"it belongs to the key {cluster.fingerprint}, this installation has "
            f"{mac.fingerprint}: copy the key of another node, or name another database"
        )
    return ""
