"""Word lists of other filters: recognised by their content, read entry by entry, or refused with a
remedy.
"""

import io
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.errors import SourceError
from spamguard.learning import importers
from spamguard.learning.importers import (
    ClassSizes,
    WordCounts,
    WordListFormat,
    detect_format,
    read_entries,
)

BOGOFILTER = (
    b".ENCODING 2 0 20261120\n.MSG_COUNT 7 5 20261120\nFree 6 0 20261120\n"
    b"subj:Offer! 3 1 20261120\nhead:X-Mailer 1 1 20261120\n"
)
SPAMBAYES = b'5,7\r\nfree,0,6\r\nsubject:Offer,1,3\r\n"a,b",1,2\r\n'


def read(kind: WordListFormat, text: bytes) -> list[object]:
    return list(read_entries(kind, None, io.BytesIO(text)))


def test_bogofilter():
    assert detect_format("-", BOGOFILTER, None) is WordListFormat.BOGOFILTER
    assert read(WordListFormat.BOGOFILTER, BOGOFILTER) == [
        ClassSizes(5, 7),
        WordCounts(b"", "Free", 0, 6),
        WordCounts(b"subject", "Offer!", 1, 3),
        WordCounts(None, "X-Mailer", 1, 1),
    ]


@pytest.mark.parametrize(
    ("token", "section", "text"),
    [
        (b"from:example.com", b"address", "example_com"),
        (b"from:anna", b"from", "anna"),
        (b"to:mail.example.com", b"address", "mail_example_com"),
        (b"rcvd:esmtp", b"received", "esmtp"),
        (b"url:example", b"url", "example"),
        (b"rtrn:anna", None, "anna"),
        (b"mime:base64", None, "base64"),
        (b"f\xfcr", b"", "für"),
        (b"\x81", b"", "\ufffd"),
        (b"other:word", b"", "other:word"),
    ],
)
def test_sections_of_bogofilter(token, section, text):
    assert list(importers.read_bogofilter([token + b" 3 4 20261120\n"])) == [
        WordCounts(section, text, 4, 3)
    ]


def test_old_lists_of_bogofilter_have_no_dates():
    assert read(WordListFormat.BOGOFILTER, b".MSG_COUNT 3 4\nfree 1 2\n") == [
        ClassSizes(4, 3),
        WordCounts(b"", "free", 2, 1),
    ]


def test_lines_that_are_none_are_left_out():
    text = (
        b".MSG_COUNT 3 4\n\nfree\nfree 1\n 1 2\nfree x y\nfree -1 2\n"
        + b"x" * 100_000
        + b" 1 2\nlast 1 2"
    )
    assert read(WordListFormat.BOGOFILTER, text) == [
        ClassSizes(4, 3),
        WordCounts(b"", "last", 2, 1),
    ]


def test_spambayes():
    assert detect_format("x.csv", SPAMBAYES, None) is WordListFormat.SPAMBAYES
    assert read(WordListFormat.SPAMBAYES, SPAMBAYES) == [
        ClassSizes(5, 7),
        WordCounts(b"", "free", 0, 6),
        WordCounts(b"subject", "Offer", 1, 3),
        WordCounts(b"", "a,b", 1, 2),
    ]


def test_old_lists_of_spambayes():
    text = b"5,7,\nfree`0`6`\nsubject%3AOffer`1`3`\na%2Cb`1`2`\nhalf`1\n"
    assert detect_format("x", text, None) is WordListFormat.SPAMBAYES
    assert read(WordListFormat.SPAMBAYES, text) == read(WordListFormat.SPAMBAYES, SPAMBAYES)


@pytest.mark.parametrize(
    ("token", "section", "text"),
    [
        ("from:addr:example.com", b"address", "example_com"),
        ("from:name:anna", b"from", "anna"),
        ("to:2**1", None, ""),
        ("url:example", b"url", "example"),
        ("header:X-Mailer:1", b"names", "X_Mailer"),
        ("skip:x 10", None, "skip:x 10"),
        ("caf%C3%A9", b"", "café"),
        ("100%", b"", "100%"),
    ],
)
def test_tokens_of_spambayes(token, section, text):
    assert list(importers.read_spambayes([b"1,1\n", f"{token},2,3\n".encode()]))[1:] == [
        WordCounts(section, text, 2, 3)
    ]


def popfile_database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            create table buckets
                (id integer primary key, userid integer, name varchar(255), pseudo int);
            create table words (id integer primary key, word varchar(255));
            create table matrix (id integer primary key, wordid integer, bucketid integer,
                times integer, lastseen date);
            insert into buckets values (1, 1, 'work', 0), (2, 1, 'family', 0),
                (3, 1, 'Spam', 0), (4, 1, 'unclassified', 1);
            insert into words values (1, 'free'), (2, 'subject:dinner'),
                (3, 'header:X-Mailer'), (4, 'html:font'), (5, x'ff'),
                (6, CAST(x'66fc72' AS TEXT));
            insert into matrix (wordid, bucketid, times)
                values (1, 1, 2), (1, 3, 40), (2, 2, 9), (3, 3, 1), (4, 3, 1);
            insert into matrix (wordid, bucketid, times) values (5, 1, 1), (6, 1, 1);
            insert into matrix (wordid, bucketid, times) values (1, 2, 'x');
        """)
    return path


def test_popfile_by_its_database(tmp_path):
    path = popfile_database(tmp_path / "popfile.db")
    assert detect_format("popfile.db", path.read_bytes()[:4096], path) is WordListFormat.POPFILE
    assert list(read_entries(WordListFormat.POPFILE, path, io.BytesIO())) == [
        WordCounts(b"", "free", 2, 40),
        WordCounts(b"subject", "dinner", 9, 0),
        WordCounts(b"names", "X_Mailer", 0, 1),
        WordCounts(None, "font", 0, 1),
        WordCounts(b"", "ÿ", 1, 0),
        WordCounts(b"", "für", 1, 0),
        ClassSizes(13, 42),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["popfile.db"]


def test_popfile_by_its_tables(tmp_path):
    for bucket, text in (
        ("work", b"free 2\nsubject:dinner 9\n"),
        ("spam", b"free 40\r\nrubbish\n"),
        ("empty", b""),
    ):
        (tmp_path / bucket).mkdir()
        (tmp_path / bucket / "table").write_bytes(importers.TABLE_MAGIC + b" 1\n" + text)
    assert detect_format("corpus", b"", tmp_path) is WordListFormat.POPFILE
    entries = list(read_entries(WordListFormat.POPFILE, tmp_path, io.BytesIO()))
    assert entries == [
        WordCounts(b"", "free", 0, 40),
        WordCounts(b"", "free", 2, 0),
        WordCounts(b"subject", "dinner", 9, 0),
        ClassSizes(11, 40),
    ]
    with pytest.raises(SourceError, match="one bucket of POPFile: name the directory"):
        detect_format("table", importers.TABLE_MAGIC, tmp_path / "work" / "table")


def database(path: Path, table: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE {table} (id)")
    return path


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("bayes_token", "SpamAssassin holds hashes, no words: teach from the mail itself"),
        ("tokens", "rspamd holds hashes"),
        ("bogofilter", "bogoutil -d"),
        ("events", "spamguard backup"),
        ("other", "none of the programs"),
    ],
)
def test_databases_that_are_no_list(tmp_path, table, words):
    path = database(tmp_path / "x.db", table)
    with pytest.raises(SourceError, match=words):
        detect_format("x.db", path.read_bytes()[:4096], path)


BTREE, HASH = (
    b"\0" * 12 + magic.to_bytes(4, "little") + b"\0" * 100 for magic in (0x053162, 0x061561)
)


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("bayes_toks", HASH, "SpamAssassin holds hashes"),
        ("hammie.db", HASH, "`sb_dbexpimp.py -e -d hammie.db -f words.csv` writes"),
        ("wordlist.db", BTREE, "bogoutil -d wordlist.db | spamguard import -"),
        (
            "backup",
            b"v\t3\tdb_version # this must be the first line!!!\nv\t9\tnum_spam\n",
            "SpamAssassin holds hashes",
        ),
        ("dump.rdb", b"REDIS0009\xfa", "holds hashes, no words: teach from the mail itself"),
        ("old.db", b"** This file contains an SQLite 2.1 database **", "SQLite 2: convert it"),
        ("empty", b"", "nothing was imported"),
        ("mail", b"From: a@example.org\nSubject: x\n\nbody\n", "nothing was imported"),
        ("binary", bytes(range(256)), "nothing was imported"),
    ],
)
def test_what_cannot_be_taken_in_says_what_to_do(name, head, words):
    with pytest.raises(SourceError, match=words.replace("|", r"\|")) as caught:
        detect_format(name, head, Path(name))
    assert "\n" not in str(caught.value)


def test_directories_that_are_no_list(tmp_path):
    with pytest.raises(SourceError, match="holds no corpus"):
        detect_format("d", b"", tmp_path)
    (tmp_path / "bayes_toks").touch()
    with pytest.raises(SourceError, match="SpamAssassin holds hashes"):
        detect_format("d", b"", tmp_path)


def test_a_database_from_standard_input_needs_a_name():
    with pytest.raises(SourceError, match="name its file"):
        detect_format("-", b"SQLite format 3\0", None)


def test_a_damaged_database(tmp_path):
    path = popfile_database(tmp_path / "popfile.db")
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
    with pytest.raises(SourceError, match="cannot be read as a database"):
        list(read_entries(WordListFormat.POPFILE, path, io.BytesIO()))


def test_rows_of_a_database_do_not_multiply(tmp_path):
    with closing(sqlite3.connect(tmp_path / "popfile.db")) as db, db:
        db.executescript(
            "create table buckets (id, name); create table words (id, word);"
            "create table matrix (wordid, bucketid, times);"
        )
        db.executemany("insert into buckets values (1, ?)", [("spam",)] * 300)
        db.executemany("insert into words values (1, ?)", [("free",)] * 300)
        db.executemany("insert into matrix values (1, 1, ?)", [(1,)] * 300)
    assert list(importers.read_popfile_database(tmp_path / "popfile.db")) == [
        WordCounts(b"", "free", 0, 300),
        ClassSizes(0, 300),
    ]


def test_a_database_cannot_compute_more_than_it_holds(tmp_path):
    with closing(sqlite3.connect(tmp_path / "popfile.db")) as db, db:
        db.executescript("""
            create table buckets (id, name); create table matrix (wordid, bucketid, times);
            create table words (id, word generated always as (zeroblob(900000000)));
            insert into buckets values (1, 'spam'); insert into words (id) values (1);
            insert into matrix values (1, 1, 1);
        """)
    with pytest.raises(SourceError, match="cannot be read as a database"):
        list(importers.read_popfile_database(tmp_path / "popfile.db"))


@given(
    st.binary(max_size=400), st.sampled_from([WordListFormat.BOGOFILTER, WordListFormat.SPAMBAYES])
)
def test_any_bytes_are_read_without_raising(rubbish, kind):
    for entry in read(kind, rubbish):
        assert isinstance(entry, WordCounts | ClassSizes)
    text = {WordListFormat.BOGOFILTER: BOGOFILTER, WordListFormat.SPAMBAYES: SPAMBAYES}[kind]
    assert read(kind, text + rubbish)[:2] == read(kind, text)[:2]


@given(st.binary(max_size=200))
def test_any_head_is_recognised_or_refused(head):
    with suppress(SourceError):
        assert isinstance(importers.detect_format("name", head, None), WordListFormat)
