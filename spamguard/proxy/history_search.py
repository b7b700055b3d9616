"""Search in the history, counts for statistics, and lessons from its rows.

A search looks through some rows at a time, newest first, and says how far it came; it reads no
features, and words only for those who ask. Classes that were taught are compared in temporary
tables of this connection. Features of another extractor or another key are never comparable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spamguard.engine.filter import Filter
from spamguard.engine.fold import unpack_features
from spamguard.engine.prepare import Example
from spamguard.errors import LedgerError, UsageError
from spamguard.keys import MAX_ID_TIME, RANDOM_BYTES, new_id
from spamguard.proxy.history import (
    DAMAGE,
    SMALL_COLUMNS,
    History,
    HistoryRow,
    fold_text,
    row_from_values,
)
from spamguard.records import EXTRACTOR

WINDOW_ROWS = 25_000
"""Rows that one search goes through."""
_ABOVE_ALL_IDS = "~"  # after every id

_SELECT_WINDOW_END = "SELECT id FROM judgements WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?"
# One expression for any number of patterns: SQLite bounds the depth of expressions (limits.html).
_HAS_PART = "EXISTS (SELECT 1 FROM json_each(?) WHERE instr(fold(recipients), value))"
_HAS_LESSON = (
    "EXISTS (SELECT 1 FROM temp.taught "
    "WHERE taught.digest = judgements.digest AND ? IN ('any', taught.label))"
)
_TEMP_TABLE = (
    "CREATE TEMP TABLE IF NOT EXISTS taught "
    "(digest BLOB PRIMARY KEY, label TEXT NOT NULL) WITHOUT ROWID"
)
_COUNT_BY_HOUR = (
    "SELECT CAST((time - ?) / 3600 AS INTEGER), label, {}, count(*) FROM judgements "
    "WHERE {} GROUP BY 1, 2, 3"
)
_COUNT_VERDICTS_AND_LESSONS = (
    "SELECT judgements.label, taught.label, {}, count(*) "
    "FROM judgements CROSS JOIN temp.taught ON taught.digest = judgements.digest "
    "WHERE {} GROUP BY 1, 2, 3"
)
_SELECT_NAMED = (
    "SELECT id FROM judgements WHERE lower(hex(substr(digest, 1, 6))) = ? ORDER BY id DESC LIMIT 1"
)
_SELECT_PROBABILITIES = (
    "SELECT judgements.id, probability FROM json_each(?) JOIN judgements ON judgements.id = value "
    "WHERE digest != x''"
)


class HistoryFilter(NamedTuple):
    """Conditions of a search; a row must meet all that are not empty.

    Sender, recipient and subject are found anywhere in the field, whatever the case; a sender in
    the envelope's or in the author. Each word is in the subject or in a sender, or, without parts,
    in the recipients: with parts, it could be in the address of somebody else.
    """

    sender: str = ""
    recipient: str = ""
    subject: str = ""
    label: str = ""
    taught: str = ""  # a class, or "any", as `HistorySearch.set_lessons` was told
    since: float = 0.0  # seconds since 1970, to the millisecond
    until: float = 0.0  # excluded
    before: str = ""  # only older ids
    parts: Sequence[str] = ()  # patterns of recipients (`recipient_pattern`); one must be there
    words: Sequence[str] = ()

    @property
    def end_id(self) -> str:
        end = first_id(self.until) if self.until else _ABOVE_ALL_IDS
        return min(self.before or _ABOVE_ALL_IDS, end)

    def where_clause(self, lowest: str = "") -> tuple[str, Sequence[object]]:
        """The conditions in SQL, and their values, for ids from the lowest on."""
        anywhere = "subject || char(10) || sender || char(10) || author"
        if not self.parts:
            anywhere += " || char(10) || recipients"
        conditions = [
            ("id >= ?", max(lowest, first_id(self.since))),
            ("id < ?", self.end_id),
            ("judgements.label = ?", self.label),
            (_contains("sender || char(10) || author"), fold_text(self.sender)),
            (_contains("recipients"), recipient_pattern(self.recipient)),
            (_contains("subject"), fold_text(self.subject)),
            (_HAS_LESSON, self.taught),
            (_HAS_PART, json.dumps(self.parts) if self.parts else ""),
            *((_contains(anywhere), fold_text(word)) for word in self.words),
        ]
        terms, values = zip(*(pair for pair in conditions if pair[1]), strict=True)
        return " AND ".join(terms), values


def _contains(column: str) -> str:
    """In SQL, whether a folded text is in that column."""
    return f"instr(fold({column}), ?)"


def recipient_pattern(text: str, *, at_start: bool = False, at_end: bool = False) -> str:
    """A part of an address, as it stands in the column of recipients.

    >>> recipient_pattern("@Example.org", at_end=True)
    '@example.org"'
    """
    return '"' * at_start + json.dumps(fold_text(text), ensure_ascii=False)[1:-1] + '"' * at_end


def first_id(seconds: float) -> str:
    """The lowest id of a time."""
    return new_id(min(seconds, MAX_ID_TIME), bytes(RANDOM_BYTES))


class HistoryRows(NamedTuple):
    """The rows of one search, newest first, without features."""

    rows: Sequence[HistoryRow]
    next_before: str  # `HistoryFilter.before` of the next search; "" once all rows were seen


@dataclass
class HistorySearch(History):
    """A history that can be searched."""

    def __post_init__(self) -> None:
        self._db.connection.create_function("fold", 1, fold_text, deterministic=True)
        self._db.query(_TEMP_TABLE)

    def find_page(
        self, conditions: HistoryFilter, limit: int, *, with_words: bool = False
    ) -> HistoryRows:
        """At most so many rows, of the next `WINDOW_ROWS`."""
        window = self._db.query(_SELECT_WINDOW_END, (conditions.end_id, WINDOW_ROWS - 1))
        border = window[0][0] if window else ""
        condition, values = conditions.where_clause(border)
        names = (*SMALL_COLUMNS, "words", "line") if with_words else SMALL_COLUMNS
        join = "JOIN contents ON judgement = judgements.rowid" if with_words else ""
        query = f"SELECT {', '.join(names)} FROM judgements {join} WHERE {condition}"
        found = self._db.query(f"{query} ORDER BY id DESC LIMIT ?", (*values, limit))
        with self._db.errors(*DAMAGE):
            rows = [row_from_values(row, names) for row in found]
        if len(rows) == limit:
            return HistoryRows(rows, rows[-1].id)
        return HistoryRows(rows, border if border > first_id(conditions.since) else "")

    def count_by_hour(
        self, start: float, conditions: HistoryFilter
    ) -> list[tuple[int, str, tuple[str, ...], int]]:
        """How many rows there are by hours since `start`, label and recipients.

        Recipients are empty unless `conditions.parts` asks for some.
        """
        return self._count(_COUNT_BY_HOUR, conditions, start)

    def count_verdicts_and_lessons(
        self, conditions: HistoryFilter
    ) -> list[tuple[str, str, tuple[str, ...], int]]:
        """How many rows with a lesson there are by label, class of the lesson and recipients."""
        return self._count(_COUNT_VERDICTS_AND_LESSONS, conditions)

    def _count(self, query: str, conditions: HistoryFilter, *values: float) -> list[Any]:
        condition, condition_values = conditions.where_clause()
        query = query.format("recipients" if conditions.parts else "''", condition)
        rows = self._db.query(query, (*values, *condition_values))
        with self._db.errors(*DAMAGE):
            return [
                (*head, tuple(json.loads(recipients or "[]")), count)
                for *head, recipients, count in rows
            ]

    def find_named(self, name: str) -> HistoryRow | None:
        """The newest row of a message with that name (`log.message_name`); looks at all rows."""
        rows = self._db.query(_SELECT_NAMED, (name,))
        return self.find(rows[0][0]) if rows else None

    def find_probabilities(self, names: Sequence[str]) -> dict[str, float]:
        """The probability of each of these rows that was scanned, by id."""
        return dict(self._db.query(_SELECT_PROBABILITIES, (json.dumps(names),)))

    def set_lessons(self, labels: Mapping[bytes, str | None], *, replace_all: bool = False) -> None:
        """Set the classes of messages, for `HistoryFilter.taught`; None for no lesson.

        Kept for this connection only, in a temporary file of SQLite's if they are many. With
        `replace_all`, those set before are forgotten.
        """
        # Sorted, they cost half.
        added = sorted((digest, label) for digest, label in labels.items() if label is not None)
        with self._db.transaction("BEGIN"):  # of a temporary table: nobody else has to wait
            if replace_all:
                self._db.execute("DELETE FROM temp.taught")
            old = [(digest,) for digest in labels]
            self._db.executemany("DELETE FROM temp.taught WHERE digest = ?", old)
            self._db.executemany("INSERT INTO temp.taught VALUES (?, ?)", added)


# ---- lessons from the history


def example_from_row(spam_filter: Filter, row: HistoryRow) -> Example:
    """The message as an example to learn.

    Raises UsageError as `row_digest`, or if the row is damaged or of another extractor.
    """
    digest = row_digest(spam_filter, row)
    if row.extractor != EXTRACTOR:
        raise UsageError(
            f"{row.id}: was read by another version (extractor {row.extractor}, this is "
            f"{EXTRACTOR}), so the message itself is needed: name its file (learn, explain), "
            "hand it over on the page, or move it between watched folders"
        )
    try:
        return Example(digest, unpack_features([row.packed])[0])
    except LedgerError as error:
        raise UsageError(f"{row.id}: what is kept of it is damaged ({error})") from error


def row_digest(spam_filter: Filter, row: HistoryRow) -> bytes:
    """The digest; UsageError if it was not scanned, or with the key of another filter."""
    if not row.was_scanned:
        raise UsageError(f"{row.id}: was not scanned, so nothing is known of what it says")
    fingerprint = spam_filter.ledger.fingerprint
    if row.fingerprint != fingerprint:
        raise UsageError(
            f"{row.id}: was read with key {row.fingerprint}, this filter has {fingerprint}"
        )
    return row.digest
