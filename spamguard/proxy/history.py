"""The history of judgements: its rows, the SQLite file that holds them, and who writes them.

Any number of processes may read and write the file at once. It stays within a size and an age by
removing the oldest rows as new ones come. Large columns stand apart, so that looking through many
rows reads little. A worker writes through a `HistoryWriter`, a thread beside the path of the mail:
rows that do not fit into its queue, or cannot be written, are dropped, which the log says once.

Must never let a text into the file that is not bounded and printable (senders choose most of them),
prune in one long transaction, or keep the mail waiting. A power cut may cost the last rows, not the
file (WAL, synchronous NORMAL).
"""

from __future__ import annotations

import json
import logging
import re
import struct
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import starmap
from pathlib import Path
from typing import Any, Self
from unicodedata import normalize

from spamguard import log
from spamguard.database import ClosedOnExit, Database, Schema
from spamguard.errors import HistoryError
from spamguard.mail.decode import decode_unstructured
from spamguard.mail.headers import format_author
from spamguard.records import MAX_LINE, Word

_log = logging.getLogger("spamguard.history")

NOT_SCANNED = "not-scanned"
"""The label of a message without a verdict."""

MAX_RECIPIENTS = 50
"""How many recipients are kept."""
_MAX_ADDRESS = 320  # characters
_MAX_SHORT_TEXT = 100

# Unprintable for Unicode, yet Persian, Hindi and many emoji cannot be written without them.
_JOINERS = frozenset("\u200c\u200d")


# A line end at the beginning makes these six times as fast as `^` does.
_SUBJECT = re.compile(rb"\nSubject[ \t]*:([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE)
_FROM = re.compile(rb"\nFrom[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*)", re.IGNORECASE)


def decode_subject(header: bytes) -> str:
    """The subject in a header section, decoded, on one line; not made printable.

    >>> decode_subject(b"Subject: =?utf-8?q?gr=C3=BC=C3=9Fe?=\\r\\n")
    'grüße'
    """
    match = _SUBJECT.search(b"\n" + header)
    return " ".join(decode_unstructured(match[1][:1000])[0].split()) if match else ""


def decode_author(header: bytes) -> str:
    """The author in a header section, as `mail.headers.format_author` writes it; "" without From.

    Several From fields count as one list.
    """
    return format_author(b",".join(_FROM.findall(b"\n" + header)))


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """What became of one message. Texts that are too long are cut when the row is kept."""

    id: str  # as of `keys.new_id`
    time: float  # seconds since 1970
    listener: str
    client: str
    sender: str
    recipients: tuple[str, ...]  # the first `MAX_RECIPIENTS` are kept
    subject: str
    author: str = ""  # as `mail.headers.format_author` writes it
    size: int
    label: str  # of the verdict, or `NOT_SCANNED`
    action: str
    reply: str
    extractor: int  # that made the features,
    fingerprint: str  # with this key
    # Only of a message that was scanned:
    digest: bytes = b""
    probability: float = 0.0
    log_odds: float = 0.0
    packed: bytes = b""  # the features (`ledger.codec`)
    words: tuple[Word, ...] = ()  # strongest first
    # Users with a decision that differs from that for all people, each with the own label.
    personal: Mapping[str, str] = field(default_factory=dict)
    sender_digest: bytes = b""  # of sender and domain, if authenticated (`ledger.senders`)
    line: str = ""  # the beginning of its text

    @property
    def message(self) -> str:
        """The name of the message in the lines of the log; "" if it was not scanned."""
        return log.message_name(self.digest)

    @property
    def was_scanned(self) -> bool:
        return bool(self.digest)


COLUMNS = tuple(column.name for column in fields(HistoryRow))
LARGE_COLUMNS = ("packed", "words", "line")
"""Columns that are not read when rows are looked through."""
SMALL_COLUMNS = tuple(name for name in COLUMNS if name not in LARGE_COLUMNS)

RowValues = dict[str, Any]
"""The values of a row in the file, by column."""

_WORDS_FORMAT = "<H{0}I{0}f"


def row_values(row: HistoryRow) -> RowValues:
    recipients = [printable(address, _MAX_ADDRESS) for address in row.recipients[:MAX_RECIPIENTS]]
    personal = {printable(user, _MAX_ADDRESS): label for user, label in row.personal.items()}
    return vars(row) | {
        "client": printable(row.client, _MAX_SHORT_TEXT),
        "sender": printable(row.sender, _MAX_ADDRESS),
        "recipients": log.encode_json(recipients),
        "subject": readable(row.subject, 200),
        "reply": printable(row.reply, 500),
        "words": _pack_words(row.words),
        "personal": log.encode_json(personal),
        "author": readable(row.author, 200),
        "line": readable(row.line, MAX_LINE),
    }


def fold_text(text: str) -> str:
    """The text as it is searched: without case and forms of the same letter (NFKC, UAX #15).

    >>> fold_text("Straße"), fold_text("ﬁne")
    ('strasse', 'fine')
    """
    return text.lower() if text.isascii() else normalize("NFKC", text).casefold()


DAMAGE = (ValueError, TypeError, struct.error)
"""What values raise that nobody has written."""


def row_from_values(values: Sequence[Any], names: Sequence[str] = COLUMNS) -> HistoryRow:
    """The row of these columns; large values that are not among them are empty.

    Raises `DAMAGE` if the values are damaged.
    """
    fields = {"packed": b"", "words": b""} | dict(zip(names, values, strict=True))
    fields["recipients"] = tuple(json.loads(fields["recipients"]))
    fields["personal"] = json.loads(fields["personal"])
    fields["words"] = _unpack_words(fields["words"])
    return HistoryRow(**fields)


def _pack_words(words: Sequence[Word]) -> bytes:
    """Their number, tokens, parts, and texts with NUL between: half the size of JSON."""
    numbers = [*(word.token for word in words), *(word.part for word in words)]
    texts = [readable(word.text, _MAX_SHORT_TEXT) for word in words]
    head = struct.pack(_WORDS_FORMAT.format(len(words)), len(words), *numbers)
    return head + "\0".join(texts).encode()


def _unpack_words(packed: bytes) -> tuple[Word, ...]:
    number = int.from_bytes(packed[:2], "little")
    if not number:
        return ()
    form = _WORDS_FORMAT.format(number)
    _, *numbers = struct.unpack_from(form, packed)
    texts = packed[struct.calcsize(form) :].decode().split("\0")
    return tuple(starmap(Word, zip(numbers[:number], texts, numbers[number:], strict=True)))


def printable(value: str, max_length: int) -> str:
    """A stranger's text, cut, and without letters that a terminal acts on.

    >>> printable("a\\x1bb", 10)
    'a\ufffdb'
    """
    return log.printable(value[:max_length])


def readable(value: str, max_length: int) -> str:
    """`printable` for sentences, which keep their joiners; in an address these only deceive."""
    return log.printable(
        value[:max_length], lambda letter: letter if letter in _JOINERS else "\ufffd"
    )


# ---- the file

HISTORY_FILE = "history.sqlite"
"""Its name in the state directory."""
PAGE_BYTES = 16384  # as for the ledger, whose rows have the same size
HISTORY_SCHEMA = Schema(
    kind="history",
    error=HistoryError,
    application_id=0x7367_6869,  # "sghi"
    version=7,
    pragmas=(f"page_size = {PAGE_BYTES}", "auto_vacuum = INCREMENTAL"),
    tables="""
CREATE TABLE judgements (
    id TEXT NOT NULL UNIQUE, time REAL NOT NULL, label TEXT NOT NULL, digest BLOB NOT NULL,
    sender TEXT NOT NULL, recipients TEXT NOT NULL, subject TEXT NOT NULL,
    listener TEXT NOT NULL, client TEXT NOT NULL, size INTEGER NOT NULL,
    probability REAL NOT NULL, log_odds REAL NOT NULL, action TEXT NOT NULL, reply TEXT NOT NULL,
    extractor INTEGER NOT NULL, fingerprint TEXT NOT NULL, personal TEXT NOT NULL,
    author TEXT NOT NULL, sender_digest BLOB NOT NULL
);
CREATE TABLE contents (
    judgement INTEGER PRIMARY KEY, packed BLOB NOT NULL, words BLOB NOT NULL, line TEXT NOT NULL
);
""",
)

_INSERTIONS = (
    f"INSERT OR IGNORE INTO judgements ({', '.join(SMALL_COLUMNS)}) "
    f"VALUES (:{', :'.join(SMALL_COLUMNS)})",
    "INSERT OR IGNORE INTO contents "
    "SELECT rowid, :packed, :words, :line FROM judgements WHERE id = :id",
)


MIN_BYTES = 8 << 20
"""The least size; with less there is no room to work in."""
_LOG_PAGES = 16  # before it is written back
_PRUNE_ROWS = 64  # that a transaction removes, beside two for each that comes

_JOIN = "FROM judgements JOIN contents ON judgement = judgements.rowid"
_SELECT_BY_ID = f"SELECT {', '.join(COLUMNS)} {_JOIN} WHERE id = ?"
_SELECT_JUDGED = """
SELECT digest FROM judgements WHERE label = ? AND fingerprint = ? AND time < ?
GROUP BY digest ORDER BY max(rowid) DESC LIMIT ?"""
_SELECT_OLDEST = """
WITH first(number, time) AS (SELECT rowid, time FROM judgements ORDER BY rowid LIMIT ?)
SELECT number FROM first WHERE ? OR time < ?"""
_DELETIONS = (
    "DELETE FROM contents WHERE judgement = ?",
    "DELETE FROM judgements WHERE rowid = ?",
)


@dataclass
class History(ClosedOnExit):
    """Judgements by id, for one thread of one process. Every method raises HistoryError."""

    _db: Database
    _size: int
    _days: int

    @classmethod
    def open(cls, path: Path, size: int = MIN_BYTES, days: int = 30) -> Self:
        """The history at `path`, created (mode 0600) when there is none. Who appends says limits.

        Its files may take `size` bytes together, at least `MIN_BYTES`; a row is kept for so many
        days of `Database.trusted_time`. Both take effect by and by, as rows are appended.
        """
        db = Database.open(path, HISTORY_SCHEMA, durable=False)
        db.query(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        db.query(f"PRAGMA journal_size_limit = {_LOG_PAGES * PAGE_BYTES}")
        return cls(db, max(size, MIN_BYTES), days)

    def close(self) -> None:
        self._db.close()

    def trusted_time(self, now: float) -> float:
        """The time by which mail grows old (`Database.trusted_time`)."""
        with self._db.transaction():
            return self._db.trusted_time(now)

    def append(self, rows: Sequence[RowValues]) -> None:
        """Keep these rows, all or none; a row whose id is there stays as it is.

        Remove rows that are too old or too many, about as many as came.
        """
        with self._db.errors():
            with self._db.transaction():
                for statement in _INSERTIONS:
                    self._db.executemany(statement, rows)
                newest = self._db.trusted_time(max(row["time"] for row in rows))
                used = self._db.pragma("page_count") - self._db.pragma("freelist_count")
                is_full = used > self._size * 0.75 / PAGE_BYTES
                oldest = newest - self._days * 86_400
                which = (2 * len(rows) + _PRUNE_ROWS, is_full, oldest)
                old = self._db.execute(_SELECT_OLDEST, which).fetchall()
                for statement in _DELETIONS:
                    self._db.executemany(statement, old)
            # Give pages back only if they are more than the next rows fill.
            if self._db.pragma("freelist_count") > self._size / 16 / PAGE_BYTES:
                # `execute` would stop after the first page
                self._db.connection.executescript("PRAGMA incremental_vacuum(64)")

    def find_judged(self, label: str, fingerprint: str, until: float, limit: int) -> list[bytes]:
        """Digests of the latest messages with this label, up to a time; looks at all rows."""
        rows = self._db.query(_SELECT_JUDGED, (label, fingerprint, until, limit))
        return [digest for (digest,) in rows]

    def find(self, name: str) -> HistoryRow | None:
        """The judgement of that id, or None."""
        rows = self._db.query(_SELECT_BY_ID, (name,))
        with self._db.errors(*DAMAGE):
            return row_from_values(rows[0]) if rows else None


# ---- the writer

# Words of the subject and of header fields, which nearly all hold addresses.
_PRIVATE_WORD = re.compile("(?!(?:footer|end|url|host|tags|hidden|attachment|clue|names):)[^:]+:")
_MAX_WAITING = 2000  # rows


class HistoryWriter:
    """Takes rows from any thread. Start it after the last fork.

    Path, size and days are as in `History.open`. Private rows are kept as `redact_row` leaves them.
    """

    def __init__(self, path: Path, size: int, days: int, *, private: bool = False) -> None:
        self._open_arguments = path, size, days
        self._private = private
        self._rows: deque[RowValues] = deque()
        self._closing = threading.Event()
        self._trouble = log.WarnOnce(_log, logging.ERROR)
        # A daemon thread: a hanging disk must not keep the process.
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def put(self, row: HistoryRow) -> None:
        """Have a row written soon, or drop it for want of room. Never waits."""
        if len(self._rows) >= _MAX_WAITING:
            self._trouble.report("the disk is too slow for the history")
        else:
            # Encoded here: the thread would hold the interpreter lock, and the mail would wait.
            self._rows.append(row_values(redact_row(row) if self._private else row))

    def close(self, seconds: float = 5.0) -> None:
        """Write the rows that wait, as far as that is done within so many seconds."""
        self._closing.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        batch = self._next_batch()
        while batch:
            try:
                with History.open(*self._open_arguments) as history:
                    while batch:
                        history.append(batch)
                        self._trouble.clear()
                        batch = self._next_batch()
            except Exception as error:  # noqa: BLE001  whatever it is, mail goes on
                self._trouble.report("%s", error)
                # The next batch opens it anew: the file may have been moved away, or mended.
                batch = self._next_batch()

    def _next_batch(self) -> list[RowValues]:
        """Rows that have come together within half a second; none at the end."""
        while not self._closing.wait(0.5) and not self._rows:
            pass
        return [self._rows.popleft() for _ in range(len(self._rows))]


def redact_row(row: HistoryRow) -> HistoryRow:
    """The row without its texts, its addresses, and the words of them."""
    return replace(
        row,
        words=tuple(word for word in row.words if not _PRIVATE_WORD.match(word.text)),
        subject="",
        line="",
        sender="",
        sender_digest=b"",
        author="",
        recipients=(),
        client="",
        reply=row.reply[:3],
        personal={},
    )
