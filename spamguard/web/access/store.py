"""Tokens, one-time links and sessions: a file of its own in the state directory, shared by the commands and the process that serves.

What is shown or sent is never kept: of each secret there is a hash. A secret is found by its public half and its hash compared in
constant time. Must never grow without bound, and never let a link be used twice: whoever deletes it first has it.
"""

from __future__ import annotations

import hmac
import re
import secrets
import sqlite3
from base64 import b32hexencode
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

from spamguard.errors import AccessError
from spamguard.files import make_once
from spamguard.sqlitefile import cache_explained, connect, transaction
from spamguard.web.service.values import Person

FILE = "access.sqlite"
SECRET_BYTES = 32
LINK_SECONDS = 600
SESSION_SECONDS = 30 * 86_400
IDLE_SECONDS = 7 * 86_400  # after which a session that nobody uses ends
SEEN_SECONDS = 300  # between two notes of when something was used
NEVER = 0  # of what does not end by itself

_BUSY_SECONDS = 2.0
_VERSION = 1
_MOST_TOKENS = 1000
_SCHEMA = """
CREATE TABLE credentials (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, digest BLOB NOT NULL, name TEXT NOT NULL, person TEXT NOT NULL, operator INTEGER NOT NULL,
    created INTEGER NOT NULL, expires INTEGER NOT NULL, seen INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX names ON credentials (name) WHERE kind = 'token';
CREATE TABLE own (key BLOB NOT NULL);
"""
_TEXT = re.compile(r"([0-9a-v]{16})\.([A-Za-z0-9_-]{43})")
_COLUMNS = "id, kind, name, person, operator, created, expires, seen"
# A link that ends later than any can was made while the clock was ahead: it is to be one that does not last, whatever clocks do.
_VALID = """(expires = 0 OR expires > :now) AND (kind != 'session' OR seen > :now - :idle)
    AND (kind != 'link' OR expires <= :now + :link)"""


class Kind(StrEnum):
    """What a secret is for."""

    TOKEN = "token"  # noqa: S105  # of a program; has a name
    LINK = "link"  # of a person, once
    SESSION = "session"  # of a browser


_MOST = {Kind.LINK: (5, 500), Kind.SESSION: (20, 5000)}  # of one person, and of all: the oldest go


@dataclass(frozen=True, slots=True)
class Credential:
    """What is known of a secret. id: its public half. name: a token's, else "". Times in seconds since 1970; expires: 0 for never."""

    id: str
    kind: Kind
    name: str
    person: Person
    created: int
    expires: int
    seen: int


class Store:
    """The file, open. Belongs to one thread; any number of processes may have it open."""

    def __init__(self, path: Path, db: sqlite3.Connection, key: bytes) -> None:
        self._path = path
        self._db = db
        self.key = key

    @classmethod
    def open(cls, state: Path) -> Store:
        """The one in a state directory, made when new. key: 32 random bytes of it, to sign with. AccessError."""
        path = state / FILE
        with _explained(path):
            if not path.exists():
                make_once(path, _fill)
            db = connect(path, _BUSY_SECONDS)
            try:
                _check(db)
                return cls(path, db, db.execute("SELECT key FROM own").fetchone()[0])
            except BaseException:
                db.close()
                raise

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def make(self, kind: Kind, person: Person, now: int, *, name: str = "", expires: int = NEVER) -> str:
        """A new secret, which nobody can be shown again. AccessError: a token of that name is there, or too many."""
        identity, secret = _new_identity(), secrets.token_urlsafe(SECRET_BYTES)
        row = (identity, kind, _digest(secret), name, person.name, person.operator, now, expires, now)
        with self._change():
            self._db.execute(f"DELETE FROM credentials WHERE NOT ({_VALID})", _times(now))  # noqa: S608
            if kind is Kind.TOKEN:
                self._refuse_token(name)
            else:
                self._make_room(kind, person)
            self._db.execute("INSERT INTO credentials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return f"{identity}.{secret}"

    def find(self, kind: Kind, text: str, now: int) -> Credential | None:
        """Whose secret this is; None: nobody's, or not any more."""
        identity, secret = _halves(text)
        with _explained(self._path):
            row = self._db.execute(
                f"SELECT digest, {_COLUMNS} FROM credentials WHERE id = :id AND kind = :kind AND {_VALID}",  # noqa: S608
                {"id": identity, "kind": kind, **_times(now)},
            ).fetchone()
        expected, *columns = row or (bytes(SECRET_BYTES),)
        same = hmac.compare_digest(_digest(secret), expected)  # of what is not there, too
        return _credential(columns) if row and same else None

    def burn(self, text: str, now: int) -> Credential | None:
        """The same for a link, which is gone afterwards: of two who come at once one has it."""
        found = self.find(Kind.LINK, text, now)
        return found if found is not None and self.end(found.id) else None

    def used(self, credential: Credential, now: int) -> None:
        """Note that it was used; not each time, and without waiting for whoever writes at the moment. AccessError: it cannot be noted."""
        if now - credential.seen >= SEEN_SECONDS:
            with self._hurrying(), self._change():
                self._db.execute("UPDATE credentials SET seen = ? WHERE id = ?", (now, credential.id))

    @contextmanager
    def _hurrying(self) -> Iterator[None]:
        self._db.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")

    def end(self, identity: str) -> bool:
        """Take one back, whatever it is; whether there was one."""
        with self._change():
            return self._db.execute("DELETE FROM credentials WHERE id = ?", (identity,)).rowcount > 0

    def revoke(self, name: str) -> bool:
        """Take the token of that name back; whether there was one."""
        with self._change():
            return self._db.execute("DELETE FROM credentials WHERE kind = 'token' AND name = ?", (name,)).rowcount > 0

    def send_away(self, person: str) -> int:
        """End all sessions and links of a person; how many."""
        with self._change():
            return self._db.execute("DELETE FROM credentials WHERE kind != 'token' AND person = ?", (person,)).rowcount

    def valid(self, now: int) -> list[Credential]:
        """All that are valid, by kind, person and name."""
        with _explained(self._path):
            found = self._db.execute(
                f"SELECT {_COLUMNS} FROM credentials WHERE {_VALID} ORDER BY kind, person, name, created",  # noqa: S608
                _times(now),
            ).fetchall()
            return [_credential(row) for row in found]

    def _refuse_token(self, name: str) -> None:
        known = self._db.execute("SELECT name FROM credentials WHERE kind = 'token'").fetchall()
        if (name,) in known:
            raise AccessError(f"there is a token {name!r} already: take another name, or revoke that one first")
        if len(known) >= _MOST_TOKENS:
            raise AccessError(f"there are {_MOST_TOKENS:,} tokens, more cannot be: revoke some first")

    def _make_room(self, kind: Kind, person: Person) -> None:
        """The oldest go where there would be too many, of one person or of all."""
        own, all_of_them = _MOST[kind]
        oldest = (
            "DELETE FROM credentials WHERE id IN (SELECT id FROM credentials WHERE {} ORDER BY created DESC, id DESC LIMIT -1 OFFSET ?)"
        )
        self._db.execute(oldest.format("kind = ? AND person = ?"), (kind, person.name, own - 1))
        self._db.execute(oldest.format("kind = ?"), (kind, all_of_them - 1))

    @contextmanager
    def _change(self) -> Iterator[None]:
        with _explained(self._path), transaction(self._db):
            yield


def _explained(path: Path) -> AbstractContextManager[None]:
    return cache_explained("tokens and sessions", path, AccessError)


def _fill(draft: Path) -> None:
    db = connect(draft, _BUSY_SECONDS)
    try:
        db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        db.execute("INSERT INTO own VALUES (?)", (secrets.token_bytes(SECRET_BYTES),))
    finally:
        db.close()


def _check(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version != _VERSION:
        raise ValueError(f"is of version {version}, this program knows {_VERSION}")


def _times(now: int) -> dict[str, int]:
    return {"now": now, "idle": IDLE_SECONDS, "link": LINK_SECONDS}


def _new_identity() -> str:
    return b32hexencode(secrets.token_bytes(10)).decode("ascii").lower()


def _halves(text: str) -> tuple[str, str]:
    match = _TEXT.fullmatch(text)
    return (match[1], match[2]) if match else ("", "")


def _digest(secret: str) -> bytes:
    return blake2b(secret.encode("ascii"), digest_size=SECRET_BYTES, person=b"access").digest()


def _credential(row: list[Any]) -> Credential:
    identity, kind, name, person, operator, *times = row
    return Credential(identity, Kind(kind), name, Person(person, bool(operator)), *times)
