"""What every reader of a word list makes of its file. Values only.

Word lists of bogofilter, as `bogoutil -d wordlist.db` writes them: a line for each token, "token
spam ham date".

Source: bogoutil(1), "-d". Tokens are UTF-8 in lists with `.ENCODING` 2, in any charset before.
Pure: lines in, values out.

Word lists of POPFile: the SQLite database of later versions, and the directory of `table` files of
those before.

Its counts are of words, not of messages, and so are its classes' sizes. Of its buckets those called
spam or junk are spam, all others are good mail; its own pseudo buckets hold no words.

Word lists of SpamBayes, as `sb_dbexpimp.py -e` writes them: CSV, first "ham,spam" messages, then
"token,ham,spam"; before version 1.1 "ham,spam," and "token`ham`spam`".

Tokens may be quoted as in a URL (RFC 3986, section 2.1); which they are is told by the first parts
of its tokenizer's names. Pure: lines in, values out.

Which program a file comes from, by its first bytes; and what to do with what cannot be taken in.

Stores of hashes hold no words: nothing can be made of them here, whose hashes are others. Then the
mail itself has to teach.

Word counts of another filter, made log-odds and taken in. The counts themselves are not kept: no
message of ours stands behind them.

Memory: some 70 bytes for each word of the list while it works (three million words: 330 MB in all,
20 s); what is kept is bounded.
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
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

from spamguard import keys
from spamguard.bayes.online import WORD_ODDS_STEPS, WordOdds
from spamguard.engine.filter import Filter
from spamguard.errors import SourceError, UsageError
from spamguard.ledger import wordlists
from spamguard.ledger.wordlists import WordList, WordListInfo
from spamguard.mail.tokens import WordListHasher
from spamguard.records import EXTRACTOR
from spamguard.storage import batches


class WordCounts(NamedTuple):
    """One entry. section: of a message as we read it (`mail.fields`), b"" is the body; None: there
    is no such thing here.

    ham, spam: in how much mail of each class the other filter had seen it.
    """

    section: bytes | None
    text: str
    ham: int
    spam: int


class ClassSizes(NamedTuple):
    """How much of each class the other filter had been taught, in what its counts are counted in:
    messages, or words.
    """

    ham: int
    spam: int


WordListEntry = WordCounts | ClassSizes
"""What a reader yields; sizes come once, anywhere."""


def decode_word(raw: bytes) -> str:
    """A word, whose charset no list names: UTF-8, or else what most lists of before that were
    written in.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


MAX_COUNT = 1 << 40  # of a count: more is no count


_BOGOFILTER_LINE = re.compile(rb"(\S+) ([0-9]{1,12}) ([0-9]{1,12})(?: [0-9]{1,8})?\r?\n?")
_PREFIXED_TOKEN = re.compile(rb"(subj|head|url|to|from|rtrn|rcvd|mime):(.+)", re.DOTALL)
# Header fields of all names but these are one prefix there and a section each here; Return-Path is
# never evidence here.
_BOGOFILTER_SECTIONS = {
    b"subj": b"subject",
    b"from": b"from",
    b"to": b"to",
    b"rcvd": b"received",
    b"url": b"url",
}
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)+")


def is_bogofilter(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    lines = head.split(b"\n")[:-1][:20]
    return bool(lines) and all(_BOGOFILTER_LINE.fullmatch(line) for line in lines)


def read_bogofilter(lines: Iterable[bytes]) -> Iterator[WordListEntry]:
    """Its entries."""
    for line in lines:
        if (found := _BOGOFILTER_LINE.fullmatch(line)) is None:
            continue
        token, spam, ham = found[1], min(int(found[2]), MAX_COUNT), min(int(found[3]), MAX_COUNT)
        if token == b".MSG_COUNT":
            yield ClassSizes(ham, spam)
        elif not token.startswith(b"."):  # its own notes
            yield _bogofilter_word(token, ham, spam)


def _bogofilter_word(token: bytes, ham: int, spam: int) -> WordCounts:
    prefixed = _PREFIXED_TOKEN.fullmatch(token)
    text = decode_word(prefixed[2] if prefixed else token)
    if prefixed is None:
        return WordCounts(b"", text, ham, spam)
    if prefixed[1] in (b"from", b"to") and _DOMAIN.fullmatch(text):
        return WordCounts(
            b"address", text.replace(".", "_"), ham, spam
        )  # as `mail.fields.addresses` writes a domain
    return WordCounts(_BOGOFILTER_SECTIONS.get(prefixed[1]), text, ham, spam)


QueryResult = TypeVar("QueryResult")

TABLE_MAGIC = b"__CORPUS__ __VERSION__"
_SPAM_BUCKETS = frozenset(("spam", "junk"))
_POPFILE_LINE = re.compile(rb"(\S+) ([0-9]{1,12})\r?\n?")
_MAX_ROW_BYTES = 1 << 20  # bytes of a row: one of POPFile's has less than 300
_POPFILE_SECTIONS = {"from": b"from", "to": b"to", "cc": b"cc", "subject": b"subject"}
# A number may stand once in a table that is POPFile's; in another one, rows must not multiply.
_SELECT_COUNTS = """
SELECT named.word, sum(CASE WHEN kinds.spam THEN 0 ELSE matrix.times END), sum(CASE WHEN kinds.spam THEN matrix.times ELSE 0 END)
FROM matrix JOIN (SELECT id, word FROM words GROUP BY id) AS named ON named.id = matrix.wordid
    JOIN (SELECT id, lower(name) IN ('spam', 'junk') AS spam FROM buckets GROUP BY id) AS kinds ON kinds.id = matrix.bucketid
WHERE typeof(matrix.times) = 'integer' AND matrix.times > 0 GROUP BY matrix.wordid"""
_POPFILE_TABLES = frozenset(("buckets", "words", "matrix"))


def table_names(database: Path) -> set[str]:
    """Names of the tables of a SQLite database. SourceError: it is none that can be read."""
    with closing(_open_popfile_database(database)) as db:
        return _run_query(
            database,
            lambda: {
                str(name).lower()
                for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            },
        )


def is_popfile_database(tables: set[str]) -> bool:
    """Whether a database with such tables is POPFile's."""
    return tables >= _POPFILE_TABLES


def read_popfile_database(database: Path) -> Iterator[WordListEntry]:
    """Entries of popfile.db. SourceError: it is damaged."""
    with closing(_open_popfile_database(database)) as db:
        rows = _run_query(database, lambda: db.execute(_SELECT_COUNTS))
        ham = spam = 0
        while row := _run_query(database, rows.fetchone):
            good, bad = min(int(row[1]), MAX_COUNT), min(int(row[2]), MAX_COUNT)
            ham, spam = ham + good, spam + bad
            yield _popfile_word(
                row[0] if isinstance(row[0], str) else decode_word(bytes(row[0] or b"")), good, bad
            )
        yield ClassSizes(ham, spam)


def bucket_files(directory: Path) -> list[Path]:
    """The `table` files below a corpus directory of older versions."""
    return sorted(path for path in directory.glob("*/table") if path.is_file())


def read_popfile_tables(files: Iterable[Path]) -> Iterator[WordListEntry]:
    """Entries of such files, each named by its directory. OSError: one cannot be read."""
    sizes = {True: 0, False: 0}
    for path in files:
        bad = path.parent.name.lower() in _SPAM_BUCKETS
        with path.open("rb") as lines:
            while line := lines.readline(4096):
                if line.startswith(TABLE_MAGIC) or (found := _POPFILE_LINE.fullmatch(line)) is None:
                    continue
                times = min(int(found[2]), MAX_COUNT)
                sizes[bad] += times
                yield _popfile_word(decode_word(found[1]), *((0, times) if bad else (times, 0)))
    yield ClassSizes(sizes[False], sizes[True])


def _popfile_word(text: str, ham: int, spam: int) -> WordCounts:
    kind, colon, rest = text.partition(":")
    if not colon:
        return WordCounts(b"", text, ham, spam)
    if kind == "header":
        return WordCounts(b"names", rest.replace("-", "_"), ham, spam)
    return WordCounts(_POPFILE_SECTIONS.get(kind), rest, ham, spam)


def _open_popfile_database(database: Path) -> sqlite3.Connection:
    """Its file as it is: read only, without a trace beside it."""
    db = sqlite3.connect(
        f"file:{quote(os.fsencode(database.absolute()))}?mode=ro&immutable=1", uri=True
    )
    db.text_factory = decode_word  # POPFile keeps words in the charset of their mail
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)  # also of what a column would compute
    return db


def _run_query(database: Path, ask: Callable[[], QueryResult]) -> QueryResult:
    try:
        return ask()
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise SourceError(
            f"{database}: cannot be read as a database of SQLite"
            f" ({' '.join(str(error).split())}); nothing was imported"
        ) from error


_SIZES_LINE = re.compile(rb"\s*([0-9]{1,12}),([0-9]{1,12}),?\s*")
_MAX_FIELD_LENGTH = (
    4096  # characters of a field; a token of its is a word, at most 40 with its prefixes
)
_NUMBER = re.compile(r"[0-9]{1,12}")


def is_spambayes(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    return _SIZES_LINE.fullmatch(head.split(b"\n")[0]) is not None


def read_spambayes(lines: Iterable[bytes]) -> Iterator[WordListEntry]:
    """Its entries; SourceError is the caller's to raise when there are none."""
    rows = csv.reader(
        decode_word(line).replace("\0", "") for line in lines if len(line) < _MAX_FIELD_LENGTH
    )
    first = True
    while True:
        try:
            row = next(rows, None)
        except csv.Error:  # one field too long, a quote that never ends
            continue
        if row is None:
            return
        row = _row_fields(row)
        numbers = [min(int(one), MAX_COUNT) for one in row[-2:] if _NUMBER.fullmatch(one)]
        if first and len(numbers) == 2:
            yield ClassSizes(*numbers)
        elif len(row) == 3 and len(numbers) == 2:
            yield _spambayes_word(_unquote_token(row[0]), *numbers)
        first = False


def _row_fields(row: list[str]) -> list[str]:
    """A row in either form, without the empty field behind the last mark."""
    fields = row[0].split("`") if len(row) == 1 else row
    return fields[:-1] if fields[-1:] == [""] else fields


def _unquote_token(token: str) -> str:
    return decode_word(unquote_to_bytes(token)) if "%" in token else token


def _spambayes_word(token: str, ham: int, spam: int) -> WordCounts:
    kind, colon, rest = token.partition(":")
    if not colon:
        return WordCounts(b"", token, ham, spam)
    if kind in ("subject", "url", "x-mailer"):
        return WordCounts(kind.encode(), rest, ham, spam)
    if kind in ("from", "to", "cc", "sender", "reply-to"):
        what, _, text = rest.partition(":")
        if what == "addr":
            return WordCounts(b"address", text.replace(".", "_"), ham, spam)
        return WordCounts(kind.encode() if what == "name" else None, text, ham, spam)
    if kind == "header":
        return WordCounts(b"names", rest.partition(":")[0].replace("-", "_"), ham, spam)
    return WordCounts(None, token, ham, spam)


_MAX_LINE_BYTES = 4096  # longer ones hold no word
_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_2_MAGIC = b"** This file contains an SQLite 2"
# Magic numbers of Berkeley DB, at byte 12 in either byte order: bogofilter keeps a btree, SpamBayes
# and SpamAssassin a hash.
_BTREE_MAGIC, _HASH_MAGIC = 0x053162, 0x061561
_TEACH_REMEDY = "teach from the mail itself: `spamguard learn --as spam DIR`, `spamguard learn --as ham DIR`, or `spamguard teach-folders MAILDIR`"


class WordListFormat(StrEnum):
    """Word lists that can be read."""

    BOGOFILTER = "bogofilter"
    SPAMBAYES = "spambayes"
    POPFILE = "popfile"


def detect_format(name: str, head: bytes, path: Path | None) -> WordListFormat:
    """What a file, or a directory, is. head: its first bytes, none of a directory; path: None for
    standard input.

    SourceError: nothing that can be taken in; with what to do instead.
    """
    if path is not None and path.is_dir():
        return _detect_directory(name, path)
    if head.startswith(_SQLITE_MAGIC):
        return _detect_database(name, path)
    if is_bogofilter(head):
        return WordListFormat.BOGOFILTER
    if is_spambayes(head):
        return WordListFormat.SPAMBAYES
    raise _unknown_format_error(name, head)


def read_entries(
    kind: WordListFormat, path: Path | None, stream: BinaryIO
) -> Iterator[WordListEntry]:
    """The entries of a file of this kind. stream: its bytes, from the start; unused where path is a
    database or a directory.
    """
    if kind is WordListFormat.POPFILE and path is not None:
        return (
            read_popfile_tables(bucket_files(path))
            if path.is_dir()
            else read_popfile_database(path)
        )
    return {WordListFormat.BOGOFILTER: read_bogofilter, WordListFormat.SPAMBAYES: read_spambayes}[
        kind
    ](_read_lines(stream))


def _read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines, those too long for a word left out."""
    whole = True
    while line := stream.readline(_MAX_LINE_BYTES):
        ended = line.endswith(b"\n")
        if whole and (ended or len(line) < _MAX_LINE_BYTES):
            yield line
        whole = ended


def _detect_directory(name: str, path: Path) -> WordListFormat:
    if bucket_files(path):
        return WordListFormat.POPFILE
    if any(path.glob("bayes_*")):
        raise _hashed_store_error(name, "SpamAssassin")
    raise SourceError(
        f"{name}: holds no corpus of POPFile (BUCKET/table): name the file to import; mail is taught with `learn`"
    )


def _detect_database(name: str, path: Path | None) -> WordListFormat:
    if path is None:
        raise SourceError(f"{name}: a database cannot be read from standard input: name its file")
    tables = table_names(path)
    if is_popfile_database(tables):
        return WordListFormat.POPFILE
    if "bogofilter" in tables:
        raise _needs_dump_error(name)
    if "bayes_token" in tables:
        raise _hashed_store_error(name, "SpamAssassin")
    if "tokens" in tables:
        raise _hashed_store_error(name, "rspamd")
    if "events" in tables:
        raise SourceError(
            f"{name}: is a ledger of spamguard: take it along with `spamguard backup` and `restore`, or `export` and `import`"
        )
    raise SourceError(
        f"{name}: is a database of none of the programs that `import` knows:"
        " bogofilter, SpamBayes, POPFile; nothing was imported"
    )


def _unknown_format_error(name: str, head: bytes) -> SourceError:
    if head.startswith(b"REDIS0") or (head.startswith(b"v\t") and b"\tdb_version" in head[:100]):
        return _hashed_store_error(
            name, "rspamd or SpamAssassin" if head.startswith(b"REDIS0") else "SpamAssassin"
        )
    if head.startswith(TABLE_MAGIC):
        return SourceError(
            f"{name}: is one bucket of POPFile: name the directory in which the buckets' directories are"
        )
    if head.startswith(b"spamguard-backup.json\0"):
        return SourceError(
            f"{name}: `spamguard backup` wrote it, and `spamguard restore` puts it back"
        )
    if head.startswith(_SQLITE_2_MAGIC):
        return SourceError(
            f"{name}: is of SQLite 2: convert it (`sqlite old.db .dump | sqlite3 new.db`) and import the new one"
        )
    if found := {int.from_bytes(head[12:16], order) for order in ("little", "big")} & {
        _BTREE_MAGIC,
        _HASH_MAGIC,
    }:
        return _berkeley_error(name, hashed=_HASH_MAGIC in found)
    return SourceError(
        f"{name}: is no file of `spamguard export` and no word list of bogofilter, SpamBayes or POPFile; nothing was imported"
    )


def _needs_dump_error(name: str) -> SourceError:
    return SourceError(
        f"{name}: is a database of bogofilter's kind: `bogoutil -d {name} | spamguard import -` reads it"
    )


def _hashed_store_error(name: str, program: str) -> SourceError:
    return SourceError(
        f"{name}: the Bayes store of {program} holds hashes, no words: {_TEACH_REMEDY}"
    )


def _berkeley_error(name: str, *, hashed: bool) -> SourceError:
    if Path(name).name.startswith("bayes_"):
        return _hashed_store_error(name, "SpamAssassin")
    if not hashed:
        return _needs_dump_error(name)
    return SourceError(
        f"{name}: is a database of SpamBayes' kind: `sb_dbexpimp.py -e -d {name} -f words.csv` writes what can be read"
    )


_HASH_BATCH = 8192  # words hashed together
_PSEUDO_COUNT = 0.5  # of mail, in each class: a word seen once says less than one seen often
_MAX_STEPS = 127  # of an int8: some 8 nats

WordCountArray = NDArray[np.int64]


def compute_word_odds(
    entries: Iterable[WordListEntry], source: str, key: bytes
) -> tuple[WordListInfo, WordOdds]:
    """What a list knows of words that have a counterpart here, the most telling `wordlists.MOST`.
    key: the installation's.

    SourceError: it does not say how much mail was taught, knows but one class, or no word.
    """
    sizes = ClassSizes(0, 0)
    listed = WordListHasher(keys.derive_key(key, b"tokens"))
    parts: list[tuple[NDArray[np.uint32], WordCountArray, WordCountArray]] = []
    words = 0
    for chunk in batches(entries, _HASH_BATCH):
        found = [entry for entry in chunk if isinstance(entry, WordCounts)]
        sizes = next((entry for entry in chunk if isinstance(entry, ClassSizes)), sizes)
        words += len(found)
        parts += _hash_words(listed, found)
    if min(sizes) < 1:
        raise SourceError(
            f"this word list of {source} does not tell of both good mail and spam: it is cut off, or only one was taught"
        )
    if not words:
        raise SourceError(
            f"no word can be read in this list of {source}: it is cut off, or is of another kind"
        )
    tokens, ham, spam = _sum_counts(parts)
    odds = _log_odds(tokens, ham, spam, sizes)
    digest = blake2b(
        b"".join(array.tobytes() for array in (tokens, ham, spam, np.array(sizes))), digest_size=16
    ).hexdigest()
    return WordListInfo(source, digest, sizes.ham, sizes.spam, words, len(odds.tokens)), odds


def _hash_words(
    listed: WordListHasher, words: list[WordCounts]
) -> Iterator[tuple[NDArray[np.uint32], WordCountArray, WordCountArray]]:
    """Tokens and counts of the words that have a counterpart."""
    ours = [
        (word.section, word.text, word.ham, word.spam) for word in words if word.section is not None
    ]
    if ours:
        sections, texts, ham, spam = zip(*ours, strict=True)
        tokens, found = listed.hash_words(list(zip(sections, texts, strict=True)))
        yield tokens[found], np.array(ham, np.int64)[found], np.array(spam, np.int64)[found]


def _sum_counts(
    parts: list[tuple[NDArray[np.uint32], WordCountArray, WordCountArray]],
) -> tuple[NDArray[np.uint32], WordCountArray, WordCountArray]:
    """Words that are one token here (they differ in case, for example) counted together."""
    nothing = np.zeros(0, np.uint32), np.zeros(0, np.int64), np.zeros(0, np.int64)
    tokens, ham, spam = (np.concatenate(column) for column in zip(nothing, *parts, strict=True))
    distinct, where = np.unique(tokens, return_inverse=True)
    sums = np.zeros((2, len(distinct)), np.int64)
    for total, counts in zip(sums, (ham, spam), strict=True):
        np.add.at(total, where, counts)
    return distinct, sums[0], sums[1]


def _log_odds(
    tokens: NDArray[np.uint32], ham: WordCountArray, spam: WordCountArray, sizes: ClassSizes
) -> WordOdds:
    smoothing = 2 * _PSEUDO_COUNT / (sizes.ham + sizes.spam)
    good = np.minimum(ham / sizes.ham, 1.0)
    bad = np.minimum(spam / sizes.spam, 1.0)
    ratio = np.log((bad + smoothing) / (good + smoothing))
    steps = np.rint(np.clip(ratio * WORD_ODDS_STEPS, -_MAX_STEPS, _MAX_STEPS)).astype(np.int8)
    telling = (bad - good) * ratio  # of Jeffreys' divergence, a word's share
    order = np.lexsort((tokens, -telling))
    chosen = np.sort(order[steps[order] != 0][: wordlists.MAX_WORDS])
    return WordOdds(tokens[chosen], steps[chosen])


def import_word_list(spam_filter: Filter, name: str, about: WordListInfo, odds: WordOdds) -> bool:
    """Keep a list under a name, in force from the settling that follows; whether it is new.
    UsageError: another one has the name.
    """
    spam_filter.require_receipts()
    standing = next((one for one in spam_filter.ledger.word_lists() if one.name == name), None)
    if standing is not None and standing.about.digest != about.digest:
        raise UsageError(
            f"another word list is called {name!r}: choose a name with --name, or take it back with `undo --import {name}`"
        )
    new = [
        wordlists.make_vote(name, about, odds.tokens, odds.log_odds, int(time.time()), EXTRACTOR)
    ]
    changed = standing is None and spam_filter.ledger.append(new)[0]
    spam_filter.settle()  # also when it is not new: whoever brought it may have been interrupted
    return changed


def remove_word_list(
    spam_filter: Filter, name: str, origin: str, *, dry_run: bool = False
) -> WordList:
    """As if the list had never come; what it was. dry: change nothing. UsageError: there is none of
    that name.
    """
    lists = spam_filter.ledger.word_lists()
    standing = next((one for one in lists if one.name == name), None)
    if standing is None:
        there = ", ".join(repr(one.name) for one in lists) or "none"
        raise UsageError(
            f"no word list is called {name!r}: `spamguard status` lists them ({there})"
        )
    if not dry_run:
        spam_filter.ledger.append([wordlists.make_tombstone(standing, origin, int(time.time()))])
        spam_filter.settle()
    return standing
