"""Settled tables on their way between nodes: one node settles and publishes, the others fetch.

A snapshot travels as its file, in chunks of 1 MiB, each compressed. Its name is the SHA-256 of the
file, which is its lineage too (`engine.snapshot`), so all nodes that settle at one position publish
the same name. Another hash for the same position is a fault, and an alarm. What good mail looked
like before it was taught travels beside it.

Tables and log have to fit. A node that is far behind in the log, or joins it, gets a *hold*: its
tables stand still, as of the snapshot, until its copy of the log reaches up to there. So it judges
as the others do within seconds. Where the log goes on otherwise before the snapshot, the old tables
stay in force until there is another snapshot (`keep_tables`).

Must never give a file its name before all of its bytes are proven, never map a file whose layout is
not that of tables, and never keep more of a snapshot in memory than a chunk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import zstandard

from spamguard.bayes.training import LEARNER_VERSION
from spamguard.engine import store
from spamguard.engine.snapshot import SNAPSHOT_KEY, SnapshotStamp, check_layout
from spamguard.errors import LedgerError, SharedError, TableError
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.shared import SharedLog
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.records import EXTRACTOR
from spamguard.shared.postgres import SharedDatabase, SharedSnapshot
from spamguard.storage import create_atomically, sync_directory

_log = logging.getLogger("spamguard.shared")

CHUNK_BYTES = 1 << 20  # as `publish_snapshot` in schema.sql counts them
MAX_BEHIND = 2000
"""Events that stores fold on a message's path, in about 0.3 s."""
_MAX_CLOCK_SKEW = 3600  # seconds between two nodes
_MAX_WINDOW_BYTES = 8 << 20  # of zstd; memory
_RETRY_SECONDS = 600.0  # before a refused snapshot is tried again
_COPYING = "the log is being copied; until then mail is judged by "
_MENDED = "the log has changed; until there are new tables mail is judged by those of before"


class SnapshotAlarmError(SharedError):
    """A snapshot is refused: somebody has to look at it."""


class SnapshotExchange:
    """A node's side of the exchange. For the courier; it belongs to its ledger's thread.

    alarms: why snapshots were refused, by hash.
    """

    def __init__(self, ledger: SqliteLedger, state: Path) -> None:
        self._ledger = ledger
        self._log = joined_log(ledger)
        self._state = state
        self._retry_at: dict[bytes, float] = {}
        self.alarms: dict[bytes, str] = {}

    # ---- publishing

    async def publish(self, database: SharedDatabase, token: int) -> None:
        """Publish the settled snapshot of this node, and compact the log below it.

        token: of the lease. SharedError: it is not published; SnapshotAlarmError: and never may be.
        """
        stamp = self._stamp()
        if not stamp.file or stamp.seq != stamp.settled:
            raise SharedError("there is no settled snapshot to publish: settle first")
        name = bytes.fromhex(stamp.lineage)
        path = self._state / stamp.file
        known = {row.hash for row in await database.read_snapshots() if _is_ours(row)}
        try:
            if name not in known:
                await self._send(database, path, name)
            size = path.stat().st_size
        except OSError as error:
            raise SharedError(f"{path}: cannot be read ({error.strerror}): settle again") from error
        mark = self._log.head()  # equal chains there are equal logs up to there
        if (await database.chains([mark.position])).get(mark.position) != mark.chain:
            raise SharedError("the shared log has changed: settle again")
        before = store.undo_limit(self._ledger)
        outcome = await database.publish_snapshot(
            stamp.seq, EXTRACTOR, LEARNER_VERSION, name, size, self._ledger.node,
            str(before), token,
        )  # fmt: skip
        if outcome == "different":
            self._note_alarm(name, _describe_difference(stamp.seq))
            raise SnapshotAlarmError(self.alarms[name])
        if outcome == "lost":
            raise SharedError("the lease of settling was lost: settle again")
        store.tidy_up(self._state, self._ledger, stamp.seq, before)
        await database.compact(stamp.seq, before, token)

    async def _send(self, database: SharedDatabase, path: Path, name: bytes) -> None:
        compressor = zstandard.ZstdCompressor(level=1)
        with path.open("rb") as file:
            for number, data in enumerate(iter(partial(file.read, CHUNK_BYTES), b"")):
                await database.put_chunk(name, number, compressor.compress(data))

    # ---- fetching

    async def fetch(self, database: SharedDatabase) -> bool:
        """Install the newest snapshot that is newer than ours; returns whether there was one.

        One beyond our copy of the log is installed while the tables are on hold. One that lacks
        most of what waits here does not replace the tables made of that. Errors of the database are
        passed on; what is wrong with a snapshot is logged once and kept in `alarms`.
        """
        # Read before the file is there: a process that changes the line later may remove the file.
        line, stamp = self._ledger.get_meta(SNAPSHOT_KEY), self._stamp()
        reach, least, names = self._log.head().position, 0, dict[str, str]()
        if self._ledger.get_meta("ledger.hold"):
            names = {node.node: node.name for node in await database.nodes()}
            reach, least = PROVISIONAL, self._log.waiting()[0] if _is_disowned(stamp) else 0
        for row in filter(_is_ours, await database.read_snapshots()):
            if row.position == stamp.settled and row.hash.hex() != stamp.lineage:
                self._note_alarm(row.hash, _describe_difference(row.position))
            if row.position <= stamp.settled:
                break
            if not least <= row.position <= reach or (
                time.monotonic() < self._retry_at.get(row.hash, 0.0)
            ):
                continue
            try:
                path = await self._download(database, row)
            except (SnapshotAlarmError, TableError) as error:
                self._note_alarm(row.hash, f"snapshot {row.position} of {row.node}: {error}")
            else:
                self.alarms.pop(row.hash, None)
                is_new = self._install(row, path, line)
                if is_new and self._ledger.get_meta("ledger.hold"):
                    self._log.hold(f"{_COPYING}the tables of {names.get(row.node, row.node)}")
                return is_new
        return False

    async def may_settle(self, database: SharedDatabase) -> bool:
        """Whether this node, which has the lease, should settle: no snapshot is newer than its own,
        or than its copy of the log. The newest is fetched first.
        """
        await self.fetch(database)
        ours = max(self._stamp().settled, self._log.head().position)
        return all(row.position <= ours for row in await database.read_snapshots() if _is_ours(row))

    async def _download(self, database: SharedDatabase, row: SharedSnapshot) -> Path:
        """Write the file of a snapshot and prove it. SnapshotAlarmError, TableError."""
        path = store.name_snapshot(self._state, row.position)
        digest = hashlib.sha256()
        with create_atomically(path) as file:
            async for data in _read_chunks(database, row):
                digest.update(data)
                file.write(data)
            if digest.digest() != row.hash:
                raise SnapshotAlarmError("its bytes are not those that were published")
        try:
            check_layout(path)
            sync_directory(self._state)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _install(self, row: SharedSnapshot, path: Path, line: str | None) -> bool:
        """Make a snapshot the one that counts, unless another process has settled meanwhile."""
        new = SnapshotStamp(path.name, row.position, row.position, row.hash.hex())
        if not store.install_snapshot(self._state, self._ledger, new, line, lambda: True):
            return False
        if self._log.head().position >= row.position:
            latest = int(time.time()) - store.UNDO_SECONDS + _MAX_CLOCK_SKEW
            store.tidy_up(self._state, self._ledger, row.position, min(int(row.notes), latest))
            self.update_hold(self._log.head().position)
        return True

    # ---- the hold

    def hold_before_cut(self, position: int) -> None:
        """Keep the tables in force if the log is about to be cut before their last event."""
        line = self._ledger.get_meta(SNAPSHOT_KEY)
        if line is not None and self._stamp().seq > position:
            keep_tables(self._ledger, line)

    def hold_while_copying(self) -> None:
        """Begin a hold: the log is to be copied."""
        own = "its own ones" if self._stamp().file else "none: it is unsure"
        self._log.hold(f"{_COPYING}{own}")

    def update_hold(self, last: int) -> bool:
        """Begin or end a hold; call it in each turn, before pulling and after it.

        last: position at which the log ends. Returns whether to start the process that settles: it
        ends a hold too, where that takes long.
        """
        stamp, position = self._stamp(), self._log.head().position
        if not self._ledger.get_meta("ledger.hold"):
            if last - position > MAX_BEHIND:
                self.hold_while_copying()
            return store.is_settling_wanted(self._ledger, stamp)
        to_fold = max(position - stamp.seq, self._log.waiting()[0], last - position)
        if not _is_disowned(stamp) and stamp.seq <= position and to_fold <= MAX_BEHIND:
            self._log.hold("")
            return False
        return True

    def _stamp(self) -> SnapshotStamp:
        """Our snapshot; without numbers where there is none, or a damaged note of it."""
        with suppress(TableError):
            return SnapshotStamp.parse(self._ledger.get_meta(SNAPSHOT_KEY) or "")
        return SnapshotStamp()

    # ---- alarms

    def _note_alarm(self, name: bytes, problem: str) -> None:
        self._retry_at[name] = time.monotonic() + _RETRY_SECONDS
        if self.alarms.get(name) != problem:
            self.alarms[name] = problem
            _log.error("%s", problem)


def keep_tables(ledger: SqliteLedger, line: str) -> None:
    """Have tables judge until there is a new snapshot, although their events have got, or will get,
    other positions. line: the note of their snapshot.
    """
    joined_log(ledger).hold(_MENDED)
    stamp = replace(SnapshotStamp.parse(line), seq=0, settled=0, lineage="")
    ledger.replace_meta(SNAPSHOT_KEY, ledger.get_meta(SNAPSHOT_KEY), json.dumps(asdict(stamp)))


def joined_log(ledger: SqliteLedger) -> SharedLog:
    """The ledger's copy of the shared log. LedgerError: it has none."""
    if ledger.shared is None:
        raise LedgerError(f"ledger {ledger.path}: it has not joined: run `spamguard shared join`")
    return ledger.shared


def _is_disowned(stamp: SnapshotStamp) -> bool:
    """Whether the events of these tables have other positions by now (`keep_tables`)."""
    return stamp.file != "" and stamp.seq == 0


def _is_ours(row: SharedSnapshot) -> bool:
    return (row.extractor, row.learner) == (EXTRACTOR, LEARNER_VERSION)


def _describe_difference(position: int) -> str:
    return (
        f"the tables settled here at position {position} of the shared log are not those of the "
        "other nodes: please report this fault; `spamguard rebuild` takes away damage of this node"
    )


async def _read_chunks(database: SharedDatabase, row: SharedSnapshot) -> AsyncIterator[bytes]:
    """The bytes of a snapshot, as many as it has, a chunk at a time. SnapshotAlarmError."""
    for number, start in enumerate(range(0, row.size, CHUNK_BYTES)):
        chunk = await database.read_chunk(row.hash, number)
        if chunk is None:
            raise SnapshotAlarmError("a part of it is missing")
        yield _decompress(chunk, min(CHUNK_BYTES, row.size - start))


def _decompress(chunk: bytes, size: int) -> bytes:
    """The bytes of a chunk. SnapshotAlarmError: they are not so many, or damaged."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(chunk) as reader:
            data = reader.read(size + 1)
    except zstandard.ZstdError as error:
        raise SnapshotAlarmError(f"a part of it is damaged ({error})") from error
    if len(data) != size:
        raise SnapshotAlarmError("a part of it has another size")
    return data
