"""Who makes a request: tokens, one-time links and sessions, and the visitors who have them.

The commands and the web process share a SQLite file of credentials. It holds a hash of each secret,
never the secret. A secret has a public half, by which it is found, and a private half, whose hash
is compared in constant time. `SessionManager` finds the visitor by token, by cookie or by the word
of a reverse proxy, and logs people in with one-time links. `app` calls it before any view or
operation runs.

The store must never grow without limit, and must never let a link be used twice: the caller who
deletes the link first has it. Must never import Starlette, because commands use this module too.

It is written by hand because sessions of Starlette are kept in the cookie, where nobody can revoke
them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from base64 import b32hexencode
from collections.abc import Callable, Sequence
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from spamguard.database import Database, Schema
from spamguard.errors import AccessError, SpamguardError

if TYPE_CHECKING:
    from spamguard.web.requests import RequestContext

_log = logging.getLogger("spamguard.web")


class Person(NamedTuple):
    """A person who uses the service.

    An operator sees and teaches everything, other people only their own mail. name: as `watch`
    names users, or an operator's own name.
    """

    name: str
    operator: bool = False

    @property
    def voter(self) -> str:
        """The user in whose name they teach; an operator teaches for the site ("")."""
        return "" if self.operator else self.name


# ---- credentials

CREDENTIALS_FILE = "access.sqlite"
SECRET_BYTES = 32
LINK_SECONDS = 600
SESSION_SECONDS = 30 * 86_400
IDLE_SECONDS = 7 * 86_400  # after which an unused session ends
SEEN_UPDATE_SECONDS = 300  # between two updates of the time of use
NEVER = 0  # an expiry time

CREDENTIALS_SCHEMA = Schema(
    kind="tokens and sessions",
    error=AccessError,
    application_id=0,
    version=1,
    wal=False,
    busy_seconds=2.0,
    tables="""
CREATE TABLE credentials (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, digest BLOB NOT NULL, name TEXT NOT NULL,
    person TEXT NOT NULL, operator INTEGER NOT NULL,
    created INTEGER NOT NULL, expires INTEGER NOT NULL, seen INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX names ON credentials (name) WHERE kind = 'token';
""",
)
_SECRET_TEXT = re.compile(r"([0-9a-v]{16})\.([A-Za-z0-9_-]{43})")
_COLUMNS = "id, kind, name, person, operator, created, expires, seen"
# A link with too late an end was made while the clock was ahead. It is not valid, because links
# must be short-lived whatever the clock does.
_VALID = """(expires = 0 OR expires > :now) AND (kind != 'session' OR seen > :now - :idle)
    AND (kind != 'link' OR expires <= :now + :link)"""
_FIND = f"SELECT digest, {_COLUMNS} FROM credentials WHERE id = :id AND kind = :kind AND {_VALID}"
_LIST = f"SELECT {_COLUMNS} FROM credentials WHERE {_VALID} ORDER BY kind, person, name, created"
_DELETE_INVALID = f"DELETE FROM credentials WHERE NOT ({_VALID})"
_DELETE_OLDEST = """DELETE FROM credentials WHERE id IN (
    SELECT id FROM credentials WHERE kind = ? AND person = ?
    ORDER BY created DESC, id DESC LIMIT -1 OFFSET ?)"""


class CredentialKind(StrEnum):
    """What a secret is for."""

    TOKEN = "token"  # noqa: S105  no password: of a program; has a name
    LINK = "link"  # of a person, for one use
    SESSION = "session"  # of a browser


# Of one person. Beyond that, the oldest are deleted.
_MAX_CREDENTIALS = {CredentialKind.LINK: 5, CredentialKind.SESSION: 20}


class Credential(NamedTuple):
    """What is known of a secret; times in seconds since 1970.

    id: the public half. name: of a token, otherwise "". expires: 0 for never.
    """

    id: str
    kind: CredentialKind
    name: str
    person: Person
    created: int
    expires: int
    last_used: int


class CredentialStore:
    """The open store. It belongs to one thread; any number of processes may open the file.

    All methods may raise AccessError.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    @classmethod
    def open(cls, state: Path) -> CredentialStore:
        return cls(Database.open(state / CREDENTIALS_FILE, CREDENTIALS_SCHEMA))

    def close(self) -> None:
        self._db.close()

    def create(
        self,
        kind: CredentialKind,
        person: Person,
        now: int,
        *,
        name: str = "",
        expires: int = NEVER,
    ) -> str:
        """Make a new secret, which cannot be shown again.

        AccessError: there is a token of that name.
        """
        identity = b32hexencode(secrets.token_bytes(10)).decode("ascii").lower()
        secret = secrets.token_urlsafe(SECRET_BYTES)
        digest = _hash_secret(secret)
        row = (identity, kind, digest, name, person.name, person.operator, now, expires, now)
        with self._db.transaction():
            self._db.execute(_DELETE_INVALID, _time_parameters(now))
            if kind is CredentialKind.TOKEN:
                same = "SELECT 1 FROM credentials WHERE kind = 'token' AND name = ?"
                if self._db.execute(same, (name,)).fetchone():
                    raise AccessError(
                        f"there is a token {name!r} already: "
                        "take another name, or revoke that one first"
                    )
            else:
                most = _MAX_CREDENTIALS[kind]
                self._db.execute(_DELETE_OLDEST, (kind, person.name, most - 1))
            self._db.execute("INSERT INTO credentials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return f"{identity}.{secret}"

    def find(self, kind: CredentialKind, text: str, now: int) -> Credential | None:
        match = _SECRET_TEXT.fullmatch(text)
        identity, secret = (match[1], match[2]) if match else ("", "")
        parameters = {"id": identity, "kind": kind, **_time_parameters(now)}
        rows = self._db.query(_FIND, parameters)
        expected, *columns = rows[0] if rows else (bytes(SECRET_BYTES),)  # compares even then
        same = hmac.compare_digest(_hash_secret(secret), expected)
        return _credential_from_row(columns) if rows and same else None

    def note_use(self, credential: Credential, now: int) -> None:
        """Update the time of use, not every time."""
        if now - credential.last_used >= SEEN_UPDATE_SECONDS:
            with self._db.transaction():
                update = "UPDATE credentials SET seen = ? WHERE id = ?"
                self._db.execute(update, (now, credential.id))

    def delete(self, identity: str) -> bool:
        return self._delete("id = ?", identity) > 0

    def revoke(self, name: str) -> bool:
        return self._delete("kind = 'token' AND name = ?", name) > 0

    def end_sessions(self, person: str) -> int:
        return self._delete("kind != 'token' AND person = ?", person)

    def _delete(self, condition: str, value: str) -> int:
        with self._db.transaction():
            statement = f"DELETE FROM credentials WHERE {condition}"
            return self._db.execute(statement, (value,)).rowcount

    def list_valid(self, now: int) -> list[Credential]:
        rows = self._db.query(_LIST, _time_parameters(now))
        with self._db.errors(ValueError):
            return [_credential_from_row(row) for row in rows]


def _time_parameters(now: int) -> dict[str, int]:
    return {"now": now, "idle": IDLE_SECONDS, "link": LINK_SECONDS}


def _hash_secret(secret: str) -> bytes:
    return blake2b(secret.encode("ascii"), digest_size=SECRET_BYTES, person=b"access").digest()


def _credential_from_row(row: Sequence[Any]) -> Credential:
    identity, kind, name, person, operator, *times = row
    return Credential(identity, CredentialKind(kind), name, Person(person, bool(operator)), *times)


# ---- visitors


class UnauthenticatedError(SpamguardError):
    """There is no valid token or session. The text is for the visitor."""


class Visitor(NamedTuple):
    """The person or program behind a request.

    session: the id of a browser's session, not its secret; "" without one. by_token: it is a
    program, which no page of another site can make send anything.
    """

    person: Person
    session: str = ""
    by_token: bool = False


class SessionManager:
    """Finds the visitor of a request, and logs people in and out.

    operators: users of the reverse proxy who are operators. burn: uses up a link, by its id, for
    all nodes; may block. None for a machine alone.
    """

    def __init__(
        self,
        store: CredentialStore,
        operators: frozenset[str],
        burn: Callable[[str], bool] | None = None,
    ) -> None:
        self._store, self._operators, self._burn = store, operators, burn

    async def log_in(self, link: str, visitor: Visitor | None) -> tuple[Person, str]:
        """Use up a one-time link, and return the person and the secret of a new session.

        Call it for POST only, because programs that check mail fetch the links in it. The session
        of the visitor, if there is one, ends. UnauthenticatedError: the link is wrong, too old or
        used up. SharedError: nobody can tell whether another node has used it up.
        """
        now = int(time.time())
        credential = await self._use_up(link, now)
        if credential is None:
            raise UnauthenticatedError(
                "this link is wrong, was used before or is older than ten minutes: "
                "get a new one with `spamguard login-link`"
            )
        self.log_out(visitor)
        person, expires = credential.person, now + SESSION_SECONDS
        return person, self._store.create(CredentialKind.SESSION, person, now, expires=expires)

    async def _use_up(self, link: str, now: int) -> Credential | None:
        credential = self._store.find(CredentialKind.LINK, link, now)
        if credential is None:
            return None
        if self._burn is not None:
            is_first = await asyncio.to_thread(self._burn, credential.id)
            self._store.delete(credential.id)  # if the end of it has not come from others yet
        else:
            is_first = self._store.delete(credential.id)
        return credential if is_first else None

    def log_out(self, visitor: Visitor | None) -> None:
        if visitor and visitor.session:
            self._store.delete(visitor.session)

    def identify(self, context: RequestContext, now: int) -> Visitor | None:
        """Return the visitor, or None for an anonymous request.

        UnauthenticatedError: the token is not valid, or no longer.
        """
        scheme, _, secret = context.header(b"authorization").partition(" ")
        if scheme.lower() == "bearer":  # other schemes are for the proxy
            credential = self._find(CredentialKind.TOKEN, secret.strip(), now)
            if credential is None:
                raise UnauthenticatedError("this token is wrong, too old or was revoked")
            return Visitor(credential.person, by_token=True)
        if context.user:
            is_operator = context.user in self._operators
            return Visitor(Person(context.user, is_operator))
        secret = context.session_secret
        credential = self._find(CredentialKind.SESSION, secret, now) if secret else None
        if credential is None:  # a session that has ended is no failed attempt
            return None
        return Visitor(credential.person, credential.id)

    def _find(self, kind: CredentialKind, secret: str, now: int) -> Credential | None:
        credential = self._store.find(kind, secret, now)
        if credential is not None:
            try:
                self._store.note_use(credential, now)
            except AccessError as error:  # a full disk must not keep anybody out
                _log.warning("%s", error)
        return credential


def login_url(page: str, link: str) -> str:
    """Return the address that logs somebody in.

    The secret is in the query, not in the path: queries are not logged and not sent to other sites.
    """
    return f"{page.rstrip('/')}/login?{urlencode({'link': link})}"
