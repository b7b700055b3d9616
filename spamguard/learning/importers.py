"""Word lists of other filters, taken in as a standing start.

`detect_format` says by its first bytes which program a file comes from, and refuses with a remedy
what cannot be taken in: stores of hashes hold no words, so there the mail itself has to teach.
`read_entries` reads words with their counts in good mail and in spam. `compute_word_odds` turns
them into log-odds of our tokens, and `import_word_list` keeps these in the ledger. The counts
themselves are not kept, because no message of ours stands behind them.

Files are read line by line or row by row. While it works, `compute_word_odds` takes some 70 bytes
for each word of a list (three million words: 330 MB in all, 20 s); what is kept is bounded.
"""

from __future__ import annotations

import csv
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from spamguard import keys
from spamguard.bayes.training import WORD_ODDS_STEPS, WordOdds
from spamguard.engine.filter import Filter
from spamguard.errors import SourceError, UsageError
from spamguard.ledger import votes
from spamguard.ledger.votes import WordList, WordListInfo
from spamguard.mail.extract import TokenHasher
from spamguard.records import EXTRACTOR
from spamguard.storage import batches

QueryResult = TypeVar("QueryResult")

_MAX_COUNT = 1 << 40  # a higher one is taken for this
_MAX_LINE_BYTES = 4096  # longer ones hold no word


class WordCounts(NamedTuple):
    """A word, and in how much mail of each class the other filter has seen it.

    section: of a message as `mail.content` names it, b"" for the body; None: we have no such thing.
    """

    section: bytes | None
    text: str
    ham: int
    spam: int


class ClassSizes(NamedTuple):
    """How much of each class the other filter has learnt, in the unit of its counts."""

    ham: int
    spam: int


WordListEntry = WordCounts | ClassSizes
"""What a reader yields; sizes come once, anywhere."""


class WordListFormat(StrEnum):
    """Word lists that can be read."""

    BOGOFILTER = "bogofilter"
    SPAMBAYES = "spambayes"
    POPFILE = "popfile"


def read_entries(
    kind: WordListFormat, path: Path | None, stream: BinaryIO
) -> Iterator[WordListEntry]:
    """The entries of a list: of a database or directory at `path`, or of the bytes in `stream`."""
    if kind is WordListFormat.POPFILE and path is not None:
        if path.is_dir():
            return read_popfile_tables(_bucket_files(path))
        return read_popfile_database(path)
    read = read_bogofilter if kind is WordListFormat.BOGOFILTER else read_spambayes
    return read(_read_lines(stream))


def _read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines, except those that are too long for a word."""
    at_start = True
    while line := stream.readline(_MAX_LINE_BYTES):
        has_end = line.endswith(b"\n")
        if at_start and (has_end or len(line) < _MAX_LINE_BYTES):
            yield line
        at_start = has_end


def _decode_word(raw: bytes) -> str:
    """A word, whose charset no list names: UTF-8, or else what most old lists were written in."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


# ---- which program a file comes from

_SQLITE_MAGIC = b"SQLite format 3\0"
# Berkeley DB at byte 12: bogofilter keeps a btree, SpamBayes and SpamAssassin a hash.
_BTREE_MAGIC, _HASH_MAGIC = 0x053162, 0x061561
TABLE_MAGIC = b"__CORPUS__ __VERSION__"
_HASHES = (
    "the Bayes store of %s holds hashes, no words: teach from the mail itself:"
    " `spamguard learn --as spam DIR`, `spamguard learn --as ham DIR`,"
    " or `spamguard teach-folders MAILDIR`"
)
_NO_CORPUS = (
    "holds no corpus of POPFile (BUCKET/table): name the file to import; `learn` takes mail"
)
_NO_NAME = "a database cannot be read from standard input: name its file"
_BOGOFILTER_DATABASE = (
    "is a database of bogofilter's kind: `bogoutil -d {name} | spamguard import -` reads it"
)
_SPAMBAYES_DATABASE = (
    "is a database of SpamBayes' kind: `sb_dbexpimp.py -e -d {name} -f words.csv` writes what can"
    " be read"
)
_UNKNOWN_DATABASE = (
    "is a database of none of the programs that `import` knows: bogofilter, SpamBayes, POPFile;"
    " nothing was imported"
)
_UNKNOWN_FILE = (
    "is no file of `spamguard export` and no word list of bogofilter, SpamBayes or POPFile; nothing"
    " was imported"
)
_REFUSED_TABLES = {
    "bogofilter": _BOGOFILTER_DATABASE,
    "bayes_token": _HASHES % "SpamAssassin",
    "tokens": _HASHES % "rspamd",
    "events": "is a ledger of spamguard: move it with `spamguard backup` and `restore`, or with"
    " `export` and `import`",
}
_REFUSED_STARTS = {
    rb"REDIS0": _HASHES % "rspamd or SpamAssassin",
    rb"v(?=\t).{0,88}\tdb_version": _HASHES % "SpamAssassin",
    TABLE_MAGIC: "is one bucket of POPFile: name the directory that holds all buckets",
    rb"spamguard-backup\.json": "`spamguard backup` wrote it: `spamguard restore` puts it back",
    rb"\*\* This file contains an SQLite 2": "is of SQLite 2: convert it"
    " (`sqlite old.db .dump | sqlite3 new.db`) and import the new one",
}


def detect_format(name: str, head: bytes, path: Path | None) -> WordListFormat:
    """The format of a file or directory. head: its first bytes; path: None for standard input.
    SourceError: it cannot be taken in; with what to do instead.
    """
    if path is not None and path.is_dir():
        if _bucket_files(path):
            return WordListFormat.POPFILE
        problem = _HASHES % "SpamAssassin" if any(path.glob("bayes_*")) else _NO_CORPUS
    elif head.startswith(_SQLITE_MAGIC):
        tables = _table_names(path) if path is not None else set()
        if tables >= _POPFILE_TABLES:
            return WordListFormat.POPFILE
        problems = [problem for table, problem in _REFUSED_TABLES.items() if table in tables]
        problem = _NO_NAME if path is None else [*problems, _UNKNOWN_DATABASE][0]
    else:
        lines = head.split(b"\n")
        if lines[:-1] and all(map(_BOGOFILTER_LINE.fullmatch, lines[:-1][:20])):
            return WordListFormat.BOGOFILTER
        if _SPAMBAYES_SIZES.fullmatch(lines[0]):
            return WordListFormat.SPAMBAYES
        problem = _problem_of_file(name, head)
    raise SourceError(f"{name}: {problem.replace('{name}', name)}")


def _problem_of_file(name: str, head: bytes) -> str:
    for start, problem in _REFUSED_STARTS.items():
        if re.match(start, head, re.DOTALL):
            return problem
    magic = {int.from_bytes(head[12:16], order) for order in ("little", "big")}
    if magic.isdisjoint((_BTREE_MAGIC, _HASH_MAGIC)):
        return _UNKNOWN_FILE
    if Path(name).name.startswith("bayes_"):
        return _HASHES % "SpamAssassin"
    return _SPAMBAYES_DATABASE if _HASH_MAGIC in magic else _BOGOFILTER_DATABASE


# ---- bogofilter: `bogoutil -d wordlist.db` writes "token spam ham date" for each token

# Tokens are UTF-8 in lists with `.ENCODING` 2, and in any charset before (bogoutil(1), "-d").
_BOGOFILTER_LINE = re.compile(rb"(\S+) ([0-9]{1,12}) ([0-9]{1,12})(?: [0-9]{1,8})?\r?\n?")
_BOGOFILTER_PREFIX = re.compile(rb"(subj|head|url|to|from|rtrn|rcvd|mime):(.+)", re.DOTALL)
# All other header fields share one prefix there; Return-Path is never evidence here.
_BOGOFILTER_SECTIONS = {
    b"subj": b"subject",
    b"from": b"from",
    b"to": b"to",
    b"rcvd": b"received",
    b"url": b"url",
}
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)+")


def read_bogofilter(lines: Iterable[bytes]) -> Iterator[WordListEntry]:
    for line in lines:
        if (match := _BOGOFILTER_LINE.fullmatch(line)) is None:
            continue
        token, spam, ham = match[1], min(int(match[2]), _MAX_COUNT), min(int(match[3]), _MAX_COUNT)
        if token == b".MSG_COUNT":
            yield ClassSizes(ham, spam)
        elif not token.startswith(b"."):  # notes of its own
            yield _bogofilter_word(token, ham, spam)


def _bogofilter_word(token: bytes, ham: int, spam: int) -> WordCounts:
    match = _BOGOFILTER_PREFIX.fullmatch(token)
    if match is None:
        return WordCounts(b"", _decode_word(token), ham, spam)
    prefix, text = match[1], _decode_word(match[2])
    if prefix in (b"from", b"to") and _DOMAIN.fullmatch(text):
        # as `mail.headers.address_tokens` writes a domain
        return WordCounts(b"address", text.replace(".", "_"), ham, spam)
    return WordCounts(_BOGOFILTER_SECTIONS.get(prefix), text, ham, spam)


# ---- SpamBayes: `sb_dbexpimp.py -e` writes CSV, first "ham,spam" messages, then "token,ham,spam"

# Before version 1.1: "ham,spam," and "token`ham`spam`", with tokens quoted as in a URL. The first
# parts of a token say where it comes from.
_SPAMBAYES_SIZES = re.compile(rb"\s*([0-9]{1,12}),([0-9]{1,12}),?\s*")
_NUMBER = re.compile(r"[0-9]{1,12}")


def read_spambayes(lines: Iterable[bytes]) -> Iterator[WordListEntry]:
    texts = (_decode_word(line) for line in lines if len(line) < _MAX_LINE_BYTES)
    rows = csv.reader(text.replace("\0", "") for text in texts)
    is_first = True
    while True:
        try:
            row = next(rows, None)
        except csv.Error:  # a field that is too long, or a quote that never ends
            continue
        if row is None:
            return
        fields = row[0].split("`") if len(row) == 1 else row
        if fields[-1:] == [""]:
            fields = fields[:-1]
        numbers = [min(int(text), _MAX_COUNT) for text in fields[-2:] if _NUMBER.fullmatch(text)]
        if is_first and len(numbers) == 2:
            yield ClassSizes(*numbers)
        elif len(fields) == 3 and len(numbers) == 2:
            token = fields[0]
            token = _decode_word(unquote_to_bytes(token)) if "%" in token else token
            yield _spambayes_word(token, *numbers)
        is_first = False


def _spambayes_word(token: str, ham: int, spam: int) -> WordCounts:
    kind, colon, rest = token.partition(":")
    section, text = None, token
    if not colon:
        section = b""
    elif kind in ("subject", "url", "x-mailer"):
        section, text = kind.encode(), rest
    elif kind in ("from", "to", "cc", "sender", "reply-to"):
        what, _, text = rest.partition(":")
        if what == "addr":
            section, text = b"address", text.replace(".", "_")
        elif what == "name":
            section = kind.encode()
    elif kind == "header":
        section, text = b"names", rest.partition(":")[0].replace("-", "_")
    return WordCounts(section, text, ham, spam)


# ---- POPFile: the SQLite database of later versions, and the directory of `table` files before

# Its counts are of words instead of messages, and so are the sizes of its classes. Buckets called
# spam or junk are spam, all others good mail; its pseudo buckets hold no words.
_SPAM_BUCKETS = frozenset(("spam", "junk"))
_POPFILE_TABLES = frozenset(("buckets", "words", "matrix"))
_POPFILE_SECTIONS = {"from": b"from", "to": b"to", "cc": b"cc", "subject": b"subject"}
_POPFILE_LINE = re.compile(rb"(\S+) ([0-9]{1,12})\r?\n?")
_MAX_ROW_BYTES = 1 << 20  # a row of POPFile's has less than 300
# In a table of POPFile's each number stands once; in a forged one rows must not multiply.
_SELECT_COUNTS = """
SELECT named.word, sum(CASE WHEN kinds.spam THEN 0 ELSE matrix.times END),
    sum(CASE WHEN kinds.spam THEN matrix.times ELSE 0 END)
FROM matrix
    JOIN (SELECT id, word FROM words GROUP BY id) AS named ON named.id = matrix.wordid
    JOIN (SELECT id, lower(name) IN ('spam', 'junk') AS spam FROM buckets GROUP BY id) AS kinds
    ON kinds.id = matrix.bucketid
WHERE typeof(matrix.times) = 'integer' AND matrix.times > 0 GROUP BY matrix.wordid"""


def read_popfile_database(database: Path) -> Iterator[WordListEntry]:
    """The entries of popfile.db. SourceError: it is damaged."""
    with closing(_open_database(database)) as db:
        rows = _run_query(database, lambda: db.execute(_SELECT_COUNTS))
        fetch = partial(_run_query, database, rows.fetchone)
        yield from _popfile_entries(iter(fetch, None))


def read_popfile_tables(files: Iterable[Path]) -> Iterator[WordListEntry]:
    """The entries of `table` files, each named by its directory. OSError: one cannot be read."""
    return _popfile_entries(row for path in files for row in _table_rows(path))


def _table_rows(path: Path) -> Iterator[tuple[bytes, int, int]]:
    is_spam = path.parent.name.lower() in _SPAM_BUCKETS
    with path.open("rb") as lines:
        while line := lines.readline(_MAX_LINE_BYTES):
            match = _POPFILE_LINE.fullmatch(line)
            if match and not line.startswith(TABLE_MAGIC):
                count = int(match[2])
                yield (match[1], 0, count) if is_spam else (match[1], count, 0)


def _popfile_entries(
    rows: Iterable[tuple[str | bytes | None, int, int]],
) -> Iterator[WordListEntry]:
    """Entries for rows of a word and its counts in good mail and in spam."""
    sizes = ClassSizes(0, 0)
    for word, *counts in rows:
        ham, spam = (min(int(count), _MAX_COUNT) for count in counts)
        sizes = ClassSizes(sizes.ham + ham, sizes.spam + spam)
        text = word if isinstance(word, str) else _decode_word(bytes(word or b""))
        yield _popfile_word(text, ham, spam)
    yield sizes


def _bucket_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*/table") if path.is_file())


def _popfile_word(text: str, ham: int, spam: int) -> WordCounts:
    kind, colon, rest = text.partition(":")
    if not colon:
        return WordCounts(b"", text, ham, spam)
    if kind == "header":
        return WordCounts(b"names", rest.replace("-", "_"), ham, spam)
    return WordCounts(_POPFILE_SECTIONS.get(kind), rest, ham, spam)


def _open_database(database: Path) -> sqlite3.Connection:
    """Read only, and without files beside it."""
    uri = f"file:{quote(os.fsencode(database.absolute()))}?mode=ro&immutable=1"
    db = sqlite3.connect(uri, uri=True)
    db.text_factory = _decode_word  # POPFile keeps words in the charset of their mail
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)  # also of what a column would compute
    return db


def _table_names(database: Path) -> set[str]:
    query = "SELECT lower(name) FROM sqlite_schema WHERE type = 'table'"
    with closing(_open_database(database)) as db:
        return {name for (name,) in _run_query(database, lambda: db.execute(query).fetchall())}


def _run_query(database: Path, query: Callable[[], QueryResult]) -> QueryResult:
    try:
        return query()
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise SourceError(
            f"{database}: cannot be read as a database of SQLite"
            f" ({' '.join(str(error).split())}); nothing was imported"
        ) from error


# ---- counts to log-odds

_HASH_BATCH = 8192  # words hashed together
_PSEUDO_COUNT = 0.5  # of mail, in each class: a word seen once says less than one seen often
_MAX_STEPS = 127  # of an int8: some 8 nats

# tokens, and their counts in good mail and in spam
_CountedTokens = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64]]


def compute_word_odds(
    entries: Iterable[WordListEntry], source: str, key: bytes
) -> tuple[WordListInfo, WordOdds]:
    """The log-odds of words that are one token of ours; the most telling `votes.MAX_WORDS`.

    source: the name of the list, for people. key: the installation's. SourceError: the list does
    not say how much mail was learnt, knows one class only, or has no words.
    """
    sizes = ClassSizes(0, 0)
    hasher = TokenHasher(keys.derive_key(key, b"tokens"))
    parts: list[_CountedTokens] = []
    n_words = 0
    for batch in batches(entries, _HASH_BATCH):
        words = [entry for entry in batch if isinstance(entry, WordCounts)]
        sizes = next((entry for entry in batch if isinstance(entry, ClassSizes)), sizes)
        n_words += len(words)
        mapped = [word for word in words if word.section is not None]
        if mapped:
            texts = [(word.section or b"", word.text) for word in mapped]
            tokens, is_token = hasher.hash_words(texts)
            counts = np.array([(word.ham, word.spam) for word in mapped], np.int64)[is_token]
            parts.append((tokens[is_token], counts[:, 0], counts[:, 1]))
    if min(sizes) < 1:
        raise SourceError(
            f"this word list of {source} does not tell of both good mail and spam: it is cut off,"
            " or only one was taught"
        )
    if not n_words:
        raise SourceError(
            f"no word can be read in this list of {source}: it is cut off, or is of another kind"
        )
    counted = _sum_counts(parts)
    odds = _log_odds(counted, sizes)
    content = b"".join(array.tobytes() for array in (*counted, np.array(sizes)))
    digest = blake2b(content, digest_size=16).hexdigest()
    return WordListInfo(source, digest, sizes.ham, sizes.spam, n_words, len(odds.tokens)), odds


def _sum_counts(parts: list[_CountedTokens]) -> _CountedTokens:
    """Sum the counts of words that are the same token, for example words that differ in case."""
    nothing = np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64)
    tokens, ham, spam = (np.concatenate(column) for column in zip(nothing, *parts, strict=True))
    distinct, positions = np.unique(tokens, return_inverse=True)
    sums = np.zeros((2, len(distinct)), np.int64)
    np.add.at(sums[0], positions, ham)
    np.add.at(sums[1], positions, spam)
    return distinct, sums[0], sums[1]


def _log_odds(counted: _CountedTokens, sizes: ClassSizes) -> WordOdds:
    tokens, ham, spam = counted
    smoothing = 2 * _PSEUDO_COUNT / (sizes.ham + sizes.spam)
    ham_share = np.minimum(ham / sizes.ham, 1.0)
    spam_share = np.minimum(spam / sizes.spam, 1.0)
    ratio = np.log((spam_share + smoothing) / (ham_share + smoothing))
    steps = np.rint(np.clip(ratio * WORD_ODDS_STEPS, -_MAX_STEPS, _MAX_STEPS)).astype(np.int8)
    divergence = (spam_share - ham_share) * ratio  # a word's part of Jeffreys' divergence
    order = np.lexsort((tokens, -divergence))
    chosen = np.sort(order[steps[order] != 0][: votes.MAX_WORDS])
    return WordOdds(tokens[chosen], steps[chosen])


# ---- lists in the ledger


def import_word_list(spam_filter: Filter, name: str, about: WordListInfo, odds: WordOdds) -> bool:
    """Keep a list and settle; whether it is new. UsageError: the name is taken."""
    spam_filter.require_receipts()
    current = _find_word_list(spam_filter.ledger.word_lists(), name)
    if current is not None and current.about.digest != about.digest:
        raise UsageError(
            f"another word list is called {name!r}: choose a name with --name, or take it back"
            f" with `undo --import {name}`"
        )
    now = int(time.time())
    vote = votes.make_list_vote(name, about, odds.tokens, odds.log_odds, now, EXTRACTOR)
    is_new = current is None and spam_filter.ledger.append([vote])[0]
    # also if it is not new: an earlier import may have been interrupted
    spam_filter.settle_everywhere()
    return is_new


def remove_word_list(
    spam_filter: Filter, name: str, origin: str, *, dry_run: bool = False
) -> WordList:
    """Remove a list as if it had never come, and return it. UsageError: there is none."""
    lists = spam_filter.ledger.word_lists()
    current = _find_word_list(lists, name)
    if current is None:
        names = ", ".join(repr(word_list.name) for word_list in lists) or "none"
        raise UsageError(
            f"no word list is called {name!r}: `spamguard status` lists them ({names})"
        )
    if not dry_run:
        spam_filter.ledger.append([votes.make_list_tombstone(current, origin, int(time.time()))])
        spam_filter.settle_everywhere()
    return current


def _find_word_list(lists: Iterable[WordList], name: str) -> WordList | None:
    return next((word_list for word_list in lists if word_list.name == name), None)
