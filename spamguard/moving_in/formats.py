"""Which program a file comes from, by its first bytes; and what to do with what cannot be taken in.

Stores of hashes hold no words: nothing can be made of them here, whose hashes are others. Then the mail itself has to teach.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from spamguard.errors import SourceError
from spamguard.moving_in import bogofilter, popfile, spambayes
from spamguard.moving_in.words import Entry

_LINE_BYTES = 4096  # longer ones hold no word
_SQLITE = b"SQLite format 3\0"
_OLD_SQLITE = b"** This file contains an SQLite 2"
# Magic numbers of Berkeley DB, at byte 12 in either byte order: bogofilter keeps a btree, SpamBayes and SpamAssassin a hash.
_BTREE, _HASH = 0x053162, 0x061561
_TEACH = "teach from the mail itself: `spamguard learn --as spam DIR`, `spamguard learn --as ham DIR`, or `spamguard teach-folders MAILDIR`"


class Kind(StrEnum):
    """Word lists that can be read."""

    BOGOFILTER = "bogofilter"
    SPAMBAYES = "spambayes"
    POPFILE = "popfile"


def recognise(name: str, head: bytes, path: Path | None) -> Kind:
    """What a file, or a directory, is. head: its first bytes, none of a directory; path: None for standard input.

    SourceError: nothing that can be taken in; with what to do instead.
    """
    if path is not None and path.is_dir():
        return _directory(name, path)
    if head.startswith(_SQLITE):
        return _database(name, path)
    if bogofilter.looks_like(head):
        return Kind.BOGOFILTER
    if spambayes.looks_like(head):
        return Kind.SPAMBAYES
    raise _refused(name, head)


def entries(kind: Kind, path: Path | None, stream: BinaryIO) -> Iterator[Entry]:
    """The entries of a file of this kind. stream: its bytes, from the start; unused where path is a database or a directory."""
    if kind is Kind.POPFILE and path is not None:
        return popfile.read_tables(popfile.buckets(path)) if path.is_dir() else popfile.read_database(path)
    return {Kind.BOGOFILTER: bogofilter.read, Kind.SPAMBAYES: spambayes.read}[kind](_lines(stream))


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines, those too long for a word left out."""
    whole = True
    while line := stream.readline(_LINE_BYTES):
        ended = line.endswith(b"\n")
        if whole and (ended or len(line) < _LINE_BYTES):
            yield line
        whole = ended


def _directory(name: str, path: Path) -> Kind:
    if popfile.buckets(path):
        return Kind.POPFILE
    if any(path.glob("bayes_*")):
        raise _hashed(name, "SpamAssassin")
    raise SourceError(f"{name}: holds no corpus of POPFile (BUCKET/table): name the file to import; mail is taught with `learn`")


def _database(name: str, path: Path | None) -> Kind:
    if path is None:
        raise SourceError(f"{name}: a database cannot be read from standard input: name its file")
    tables = popfile.tables_of(path)
    if popfile.is_database(tables):
        return Kind.POPFILE
    if "bogofilter" in tables:
        raise _dumped(name)
    if "bayes_token" in tables:
        raise _hashed(name, "SpamAssassin")
    if "tokens" in tables:
        raise _hashed(name, "rspamd")
    if "events" in tables:
        raise SourceError(
            f"{name}: is a ledger of spamguard: take it along with `spamguard backup` and `restore`, or `export` and `import`"
        )
    raise SourceError(f"{name}: is a database of none of the programs that `import` knows: bogofilter, SpamBayes, POPFile")


def _refused(name: str, head: bytes) -> SourceError:
    if head.startswith(b"REDIS0") or (head.startswith(b"v\t") and b"\tdb_version" in head[:100]):
        return _hashed(name, "rspamd or SpamAssassin" if head.startswith(b"REDIS0") else "SpamAssassin")
    if head.startswith(popfile.TABLE_MAGIC):
        return SourceError(f"{name}: is one bucket of POPFile: name the directory in which the buckets' directories are")
    if head.startswith(b"spamguard backup\n"):
        return SourceError(f"{name}: `spamguard backup` wrote it, and `spamguard restore` puts it back")
    if head.startswith(_OLD_SQLITE):
        return SourceError(f"{name}: is of SQLite 2: convert it (`sqlite old.db .dump | sqlite3 new.db`) and import the new one")
    if found := {int.from_bytes(head[12:16], order) for order in ("little", "big")} & {_BTREE, _HASH}:
        return _berkeley(name, hashed=_HASH in found)
    return SourceError(
        f"{name}: is no file of `spamguard export` and no word list of bogofilter, SpamBayes or POPFile; nothing was imported"
    )


def _dumped(name: str) -> SourceError:
    return SourceError(f"{name}: is a database of bogofilter's kind: `bogoutil -d {name} | spamguard import -` reads it")


def _hashed(name: str, program: str) -> SourceError:
    return SourceError(f"{name}: the Bayes store of {program} holds hashes, no words: {_TEACH}")


def _berkeley(name: str, *, hashed: bool) -> SourceError:
    if Path(name).name.startswith("bayes_"):
        return _hashed(name, "SpamAssassin")
    if not hashed:
        return _dumped(name)
    return SourceError(f"{name}: is a database of SpamBayes' kind: `sb_dbexpimp.py -e -d {name} -f words.csv` writes what can be read")
