"""Word lists of POPFile: the SQLite database of later versions, and the directory of `table` files of those before.

Its counts are of words, not of messages, and so are its classes' sizes. Of its buckets those called spam or junk are spam, all others
are good mail; its own pseudo buckets hold no words.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from spamguard.errors import SourceError
from spamguard.moving_in.words import HIGHEST, Entry, Sizes, Word, text_of

Answer = TypeVar("Answer")

TABLE_MAGIC = b"__CORPUS__ __VERSION__"
_SPAM = frozenset(("spam", "junk"))
_LINE = re.compile(rb"(\S+) ([0-9]{1,12})\r?\n?")
_LONGEST = 1 << 20  # bytes of a row: one of POPFile's has less than 300
_SECTIONS = {"from": b"from", "to": b"to", "cc": b"cc", "subject": b"subject"}
# A number may stand once in a table that is POPFile's; in another one, rows must not multiply.
_COUNTS = """
SELECT named.word, sum(CASE WHEN kinds.spam THEN 0 ELSE matrix.times END), sum(CASE WHEN kinds.spam THEN matrix.times ELSE 0 END)
FROM matrix JOIN (SELECT id, word FROM words GROUP BY id) AS named ON named.id = matrix.wordid
    JOIN (SELECT id, lower(name) IN ('spam', 'junk') AS spam FROM buckets GROUP BY id) AS kinds ON kinds.id = matrix.bucketid
WHERE typeof(matrix.times) = 'integer' AND matrix.times > 0 GROUP BY matrix.wordid"""
_TABLES = frozenset(("buckets", "words", "matrix"))


def tables_of(database: Path) -> set[str]:
    """Names of the tables of a SQLite database. SourceError: it is none that can be read."""
    with closing(_opened(database)) as db:
        return _asked(
            database, lambda: {str(name).lower() for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        )


def is_database(tables: set[str]) -> bool:
    """Whether a database with such tables is POPFile's."""
    return tables >= _TABLES


def read_database(database: Path) -> Iterator[Entry]:
    """Entries of popfile.db. SourceError: it is damaged."""
    with closing(_opened(database)) as db:
        rows = _asked(database, lambda: db.execute(_COUNTS))
        ham = spam = 0
        while row := _asked(database, rows.fetchone):
            good, bad = min(int(row[1]), HIGHEST), min(int(row[2]), HIGHEST)
            ham, spam = ham + good, spam + bad
            yield _word(row[0] if isinstance(row[0], str) else text_of(bytes(row[0] or b"")), good, bad)
        yield Sizes(ham, spam)


def buckets(directory: Path) -> list[Path]:
    """The `table` files below a corpus directory of older versions."""
    return sorted(path for path in directory.glob("*/table") if path.is_file())


def read_tables(files: Iterable[Path]) -> Iterator[Entry]:
    """Entries of such files, each named by its directory. OSError: one cannot be read."""
    sizes = {True: 0, False: 0}
    for path in files:
        bad = path.parent.name.lower() in _SPAM
        with path.open("rb") as lines:
            while line := lines.readline(4096):
                if line.startswith(TABLE_MAGIC) or (found := _LINE.fullmatch(line)) is None:
                    continue
                times = min(int(found[2]), HIGHEST)
                sizes[bad] += times
                yield _word(text_of(found[1]), *((0, times) if bad else (times, 0)))
    yield Sizes(sizes[False], sizes[True])


def _word(text: str, ham: int, spam: int) -> Word:
    kind, colon, rest = text.partition(":")
    if not colon:
        return Word(b"", text, ham, spam)
    if kind == "header":
        return Word(b"names", rest.replace("-", "_"), ham, spam)
    return Word(_SECTIONS.get(kind), rest, ham, spam)


def _opened(database: Path) -> sqlite3.Connection:
    """Its file as it is: read only, without a trace beside it."""
    db = sqlite3.connect(f"file:{quote(os.fsencode(database.absolute()))}?mode=ro&immutable=1", uri=True)
    db.text_factory = text_of  # POPFile keeps words in the charset of their mail
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)  # also of what a column would compute
    return db


def _asked(database: Path, ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise SourceError(f"{database}: cannot be read as a database of SQLite ({' '.join(str(error).split())})") from error
