"""Tokens, links and sessions of all nodes: the local file and the database are made equal.

Each node checks credentials in its own file, so its page works while the database is away. Once a
second the courier sends what was made or ended here, and takes in what changed elsewhere. What the
database knows of is noted in the file itself: a credential that is noted there and gone was ended
here; one that is not noted was made here.

The time of use is sent once an hour, as it only keeps sessions from ending idle. Must never bring
back what was ended, and never let the row of another node stop all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from spamguard.database import Database
from spamguard.shared.connection import RefusedValueError
from spamguard.shared.postgres import CredentialRow, SharedDatabase
from spamguard.web.auth import (
    CREDENTIALS_FILE,
    CREDENTIALS_SCHEMA,
)

_SEEN_SECONDS = 3600  # between two times of use that are sent
_MAX_ROWS = 20_000  # more than the store keeps
_NOTES = """
CREATE TABLE IF NOT EXISTS replicated (id TEXT PRIMARY KEY, seen INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS replication (one INTEGER PRIMARY KEY CHECK (one = 1),
    cluster TEXT NOT NULL, changes INTEGER NOT NULL);
"""
_MADE = """SELECT id, kind, digest, name, person, operator, created, expires, seen
    FROM credentials c WHERE NOT EXISTS (
        SELECT 1 FROM replicated r WHERE r.id = c.id AND r.seen > c.seen - ?) LIMIT ?"""
_ENDED = """SELECT id FROM replicated WHERE id NOT IN (SELECT id FROM credentials) LIMIT ?"""
_INSERT = "INSERT OR IGNORE INTO credentials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM replicated WHERE id = ?"
_NOTE = "INSERT INTO replicated VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET seen = excluded.seen"


class CredentialReplica:
    """The file of credentials, as the courier sees it. It belongs to one thread. AccessError."""

    def __init__(self, state: Path) -> None:
        self._db = Database.open(state / CREDENTIALS_FILE, CREDENTIALS_SCHEMA)
        with self._db.transaction():
            for statement in filter(str.strip, _NOTES.split(";")):
                self._db.execute(statement)
            self._db.execute("INSERT OR IGNORE INTO replication VALUES (1, '', 0)")

    def close(self) -> None:
        self._db.close()

    def begin(self, cluster: str, changes: int) -> int:
        """Return the number of the last change that is known here.

        cluster: name of the database; changes: number of its last change. A database that has not
        all that it had, or is another one, gets everything again.
        """
        ((known_cluster, known),) = self._db.query("SELECT cluster, changes FROM replication")
        if known_cluster == cluster and known <= changes:
            return int(known)
        with self._db.transaction():
            self._db.execute("DELETE FROM replicated")
            self._db.execute("UPDATE replication SET cluster = ?, changes = 0", (cluster,))
        return 0

    def list_made(self) -> list[CredentialRow]:
        rows = self._db.query(_MADE, (_SEEN_SECONDS, _MAX_ROWS))
        return [CredentialRow(*row)._replace(operator=bool(row[5])) for row in rows]

    def list_ended(self) -> list[str]:
        return [identity for (identity,) in self._db.query(_ENDED, (_MAX_ROWS,))]

    def note(self, statement: str, *values: object) -> None:
        with self._db.transaction():
            self._db.execute(statement, values)

    def take_in(self, rows: Sequence[CredentialRow]) -> None:
        with self._db.transaction():
            for row in filter(lambda row: row.is_ours, rows):
                if row.ended:
                    self._db.execute("DELETE FROM credentials WHERE id = ?", (row.id,))
                    self._db.execute(_FORGET, (row.id,))
                    continue
                if self._db.execute("SELECT 1 FROM replicated WHERE id = ?", (row.id,)).fetchone():
                    update = "UPDATE credentials SET seen = max(seen, ?) WHERE id = ?"
                    self._db.execute(update, (row.seen, row.id))
                else:
                    # Two nodes may each have made a token of the same name.
                    for name in (row.name, f"{row.name} ({row.id})"):
                        who = (row.id, row.kind, row.digest, name, row.person, int(row.operator))
                        values = (*who, row.created, row.expires, row.seen)
                        if self._db.execute(_INSERT, values).rowcount:
                            break
                self._db.execute(_NOTE, (row.id, row.seen))
            self._db.execute("UPDATE replication SET changes = ?", (rows[-1].changed,))


async def replicate(database: SharedDatabase, replica: CredentialReplica) -> None:
    """Send credentials that were made or ended here, and take in those of other nodes."""
    cluster = await database.cluster()
    changes = replica.begin(cluster.name, cluster.changes)
    for row in replica.list_made():
        with suppress(RefusedValueError):  # it would be refused again; it stays valid here
            await database.put_credential(row)
        replica.note(_NOTE, row.id, row.seen)
    for identity in replica.list_ended():
        await database.end_credential(identity)
        replica.note(_FORGET, identity)
    while rows := await database.changed_credentials(changes):
        replica.take_in(rows)
        changes = rows[-1].changed
