"""Looking through the history: rows that fit, newest first, and how many there are. Only reads; never features or words of many rows.

Must never take longer the more rows there are without saying so: a look goes through some rows, then tells how far it came.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from spamguard.history.row import LOWERED, Row, fold, from_columns
from spamguard.history.schema import SMALL
from spamguard.sqlitefile import transaction

WINDOW = 25_000  # rows that one look goes through
_MOST_PARTS = 400  # of recipients' addresses that SQLite is asked for; SQLite bounds the depth of what it is asked (limits.html)
_LAST = "~"  # after every id

_SELECT = f"SELECT {', '.join(SMALL)} FROM judgements"  # noqa: S608  names of our own
_WINDOW = "SELECT id FROM judgements WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?"
_ANY = "EXISTS (SELECT 1 FROM temp.taught WHERE taught.digest = judgements.digest)"
_AS = "EXISTS (SELECT 1 FROM temp.taught INDEXED BY taught_by_label WHERE taught.label = ? AND taught.digest = judgements.digest)"
_TABLES = (
    "CREATE TEMP TABLE IF NOT EXISTS taught (digest BLOB PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS temp.taught_by_label ON taught (label, digest)",
    "CREATE TEMP TABLE IF NOT EXISTS asked (digest BLOB PRIMARY KEY) WITHOUT ROWID",
)
_BY_HOUR = "SELECT CAST((time - ?) / 3600 AS INTEGER), {}, count(*) FROM judgements"
_SAID = """
SELECT judgements.label, taught.label, {}, count(*) FROM judgements CROSS JOIN temp.taught ON taught.digest = judgements.digest"""
_ASKED_FOR = "FROM judgements WHERE digest IN (SELECT digest FROM temp.asked)"
_WITH_DIGESTS = f"SELECT digest, label, personal {_ASKED_FOR}"
_NEWEST = f"{_SELECT} WHERE id IN (SELECT max(id) {_ASKED_FOR} AND {{}} GROUP BY digest, {{}}) ORDER BY id DESC"


class Wanted(NamedTuple):
    """Which rows: those that fit everything that is not empty. Texts are found anywhere in a field, whatever their case; a sender in the
    envelope's or in the author.

    since, until: seconds since 1970, the second excluded. first, before: ids between which to look, the second excluded. taught: a
    class, or "any", by what `Looks.tell` was told. parts: of recipients' addresses, as `part` makes them; one of them must be there.
    """

    sender: str = ""
    recipient: str = ""
    subject: str = ""
    label: str = ""
    taught: str = ""
    since: float = 0.0
    until: float = 0.0
    first: str = ""
    before: str = ""
    parts: Sequence[str] = ()


class Seen(NamedTuple):
    """What one look has found, newest first, without features and words. following: `Wanted.before` of the next look; "": all was seen."""

    rows: Sequence[Row]
    following: str


class Looks:
    """db: the history. explained: within, what fails leaves as a HistoryError. Both are for one thread."""

    def __init__(self, db: sqlite3.Connection, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self._db = db
        self._explained = explained
        for statement in _TABLES:
            self._ask(statement, ())

    def look(self, wanted: Wanted, limit: int) -> Seen:
        """At most so many rows, of the next `WINDOW` that there are."""
        before = wanted.before or _LAST
        window = self._ask(_WINDOW, (before, WINDOW - 1))
        border = window[0][0] if window else ""
        ahead = wanted._replace(first=max(border, wanted.first))
        condition, values = _condition(ahead)
        found = self._ask(f"{_SELECT} WHERE {condition} ORDER BY id DESC LIMIT ?", (*values, limit))
        with self._explained():
            rows = [from_columns(row, SMALL) for row in found]
        if len(rows) == limit:
            return Seen(rows, rows[-1].id)
        return Seen(rows, border if border > wanted.first else "")

    def by_hour(self, start: float, wanted: Wanted) -> list[tuple[int, str, tuple[str, ...], int]]:
        """How many rows: by hours since `start`, label, and recipients, which are told only where `parts` asks for some."""
        condition, values = _condition(wanted)
        return self._counted(_BY_HOUR, "label", wanted, f" WHERE {condition} GROUP BY 1, 2, 3", (start, *values))

    def said_and_taught(self, wanted: Wanted) -> list[tuple[str, str, tuple[str, ...], int]]:
        """How many rows that somebody has spoken about (`tell`): by what was said of them, by class, by recipients as above."""
        condition, values = _condition(wanted)
        return self._counted(_SAID, "", wanted, f" WHERE {condition} GROUP BY 1, 2, 3", values)

    def _counted(self, select: str, column: str, wanted: Wanted, rest: str, values: Sequence[object]) -> list[Any]:
        named = ", ".join(filter(None, (column, "recipients" if wanted.parts else "''")))
        rows = self._ask(select.format(named) + rest, values)
        with self._explained():
            return [(*head, tuple(json.loads(recipients or "[]")), number) for *head, recipients, number in rows]

    def newest_of(self, digests: Iterable[bytes], parts: Sequence[str]) -> list[Row]:
        """The newest row of each of these messages, newest first, without features and words; looks at all rows. parts: as of `Wanted`;
        then the newest for each list of recipients, as which of these are meant must be looked at."""
        self._ask_for(digests)
        condition, values = _condition(Wanted(parts=parts))
        rows = self._ask(_NEWEST.format(condition, "recipients" if parts else "''"), values)
        with self._explained():
            return [from_columns(row, SMALL) for row in rows]

    def of_digests(self, digests: Iterable[bytes]) -> list[tuple[bytes, str, Mapping[str, str]]]:
        """Of the rows of these messages: the digest, what was said, and what was said to users of whom it was decided otherwise. Looks at
        all rows."""
        self._ask_for(digests)
        rows = self._ask(_WITH_DIGESTS, ())
        with self._explained():
            return [(digest, label, json.loads(personal)) for digest, label, personal in rows]

    def _ask_for(self, digests: Iterable[bytes]) -> None:
        self._write(("DELETE FROM temp.asked", [()]), ("INSERT OR IGNORE INTO temp.asked VALUES (?)", [(digest,) for digest in digests]))

    def tell(self, taught: Mapping[bytes, str | None], *, anew: bool = False) -> None:
        """What messages are taught as now, for `Wanted.taught`, beside what was told before. anew: forget that. None: not taught.

        Kept for this connection only, in a file of SQLite's that has no name where it is much.
        """
        told = sorted((digest, label) for digest, label in taught.items() if label is not None)  # in this order they cost half
        self._write(
            ("DELETE FROM temp.taught", [()] * anew),
            ("DELETE FROM temp.taught WHERE digest = ?", [(digest,) for digest, label in taught.items() if label is None]),
            ("INSERT OR REPLACE INTO temp.taught VALUES (?, ?)", told),
        )

    def _write(self, *statements: tuple[str, Sequence[tuple[object, ...]]]) -> None:
        """Into tables of this connection alone: nobody else is kept from writing."""
        with self._explained(), transaction(self._db, "BEGIN"):
            for sql, values in statements:
                self._db.executemany(sql, values)

    def _ask(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._db.execute(sql, values).fetchall()


def part(text: str, *, begins: bool = False, ends: bool = False) -> str:
    """What an address has in it, to look for in the recipients as they are kept; where it begins or ends so."""
    return '"' * begins + json.dumps(fold(text), ensure_ascii=False)[1:-1] + '"' * ends


def _condition(wanted: Wanted) -> tuple[str, list[object]]:
    """In SQL, and its values."""
    found = list(_conditions(wanted))
    return " AND ".join(text for text, _ in found), [value for _, values in found for value in values]


def _conditions(wanted: Wanted) -> Iterator[tuple[str, Sequence[object]]]:
    yield "id >= ? AND id < ?", (wanted.first, wanted.before or _LAST)
    if wanted.since:
        yield "time >= ?", (wanted.since,)
    if wanted.until:
        yield "time < ?", (wanted.until,)
    if wanted.label:
        yield "judgements.label = ?", (wanted.label,)
    if sender := fold(wanted.sender):
        yield f"({_in('sender')} OR {_in('author')})", (sender, sender)
    if recipient := part(wanted.recipient):
        yield _in("recipients"), (recipient,)
    if subject := fold(wanted.subject):
        yield _in("subject"), (subject,)
    if 0 < len(wanted.parts) <= _MOST_PARTS:  # else who asks must look at each row; that is never left out
        yield f"({' OR '.join([_in('recipients')] * len(wanted.parts))})", wanted.parts
    if wanted.taught == "any":
        yield _ANY, ()
    elif wanted.taught:
        yield _AS, (wanted.taught,)


def _in(column: str) -> str:
    """In SQL, whether a folded text is in that column."""
    return f"instr(ifnull(folded_{column}, {f'lower({column})' if column in LOWERED else column}), ?)"
