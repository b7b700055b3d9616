"""`export` and `import`: the importing filter knows the same, also after a second import.

A file with another key, a newer format or damage is refused as a whole.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.bayes.tables import counted_arrays
from spamguard.cli import keep
from spamguard.engine.filter import Filter
from spamguard.ledger import codec
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR, Features, Vote
from tests.contract.ledgers import winning_votes


def knowledge(state):
    """Votes in force, counts and classes of a filter.

    Replaced votes are left out: only one of two filters may have compacted them.
    """
    with Filter.open(state) as spam_filter:
        votes = winning_votes(spam_filter.ledger.all_votes())
        return (
            votes,
            {name: np.array(values) for name, values in counted_arrays(spam_filter._store.tables)},
            spam_filter.ledger.classes(),
        )


def assert_same(first, second):
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert first[1].keys() == second[1].keys()
    assert all(np.array_equal(first[1][name], second[1][name]) for name in first[1])


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.spamguard"


@pytest.fixture
def keyed(run, taught, file):
    """An export with receipts and key."""
    assert run(taught, "export", "--with-key", file).status == 0
    return file


@pytest.mark.parametrize(("here", "there"), [(True, False), (False, True)])
def test_a_class_that_is_unwanted_in_one_filter_only_gives_a_note(
    run, status_of, taught, tmp_path, file, here, there
):
    run(taught, "export", "--with-key", file)
    run(tmp_path / "new", "import", file)
    for state, unwanted in [(taught, there), (tmp_path / "new", here)]:
        with Filter.open(state) as spam_filter:
            spam_filter.define_class("promo", unwanted=unwanted)
    run(taught, "export", file)
    done = run(tmp_path / "new", "import", file)
    assert "promo" in done.err
    assert f"promo is unwanted {'here' if here else 'there'} alone" in done.err
    assert status_of(tmp_path / "new")["classes"]["promo"]["unwanted"] is here


def _interrupted(_: Filter) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_settling_is_made_up_for(run, status_of, keyed, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Filter, "settle", _interrupted)
        assert run(tmp_path / "new", "import", keyed).status == 130
    assert status_of(tmp_path / "new")["unsettled"] >= 120
    assert run(tmp_path / "new", "import", keyed).out.endswith(", 0 of them new\n")
    assert status_of(tmp_path / "new")["unsettled"] == 0


def test_with_receipts_everything_comes_in(run, taught, tmp_path, keyed, corpus):
    with Filter.open(taught) as spam_filter:
        spam_filter.define_class("offers", unwanted=True)
    run(taught, "forget", corpus / "data" / "00001")
    run(taught, "learn", "--as", "newsletter", "--user", "änna", corpus / "data" / "00002")
    assert (
        run(taught, "export", "--with-key", keyed)
        .err.splitlines()[-1]
        .endswith("keep it as secret as a password")
    )
    done = run(tmp_path / "new", "import", keyed)
    assert done.status == 0
    assert not done.out.endswith(", 0 of them new\n")
    assert_same(knowledge(taught), knowledge(tmp_path / "new"))
    run(taught, "rebuild")
    assert (
        run(tmp_path / "new", "judge", "--json", corpus / "data").out
        == run(taught, "judge", "--json", corpus / "data").out
    )


def test_a_pipe(run, taught, tmp_path):
    out = run(taught, "export", "--with-key", "-")
    assert (
        run(tmp_path / "new", "import", "-", stdin=out.raw).out
        == "imported 120 receipts, 120 of them new\n"
    )


def test_a_directory_that_is_not_there(run, taught, tmp_path):
    """The error names the directory, not the draft file in it."""
    message = f"{tmp_path / 'nowhere'}: No such file or directory: check the path"
    for command in ("export", "backup"):
        failed = run(taught, command, tmp_path / "nowhere" / "file")
        assert failed.status == 2
        assert failed.err == f"spamguard: {message}\n"
    assert run(taught, "backup", tmp_path).failed("Is a directory: name a file")


def test_a_device_is_written_to_and_not_replaced(run, taught):
    assert run(taught, "export", "/dev/null").status == 0
    assert Path("/dev/null").is_char_device()


# What is refused


def test_another_key(run, status_of, taught, state, keyed):
    assert run(state, "import", keyed).failed("was taught with key", "new state directory")
    assert status_of(state)["events"] == 0


def test_no_key(run, taught, tmp_path, file):
    run(taught, "export", file)
    assert run(tmp_path / "new", "import", file).failed("--with-key")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "key").write_bytes((taught / "key").read_bytes())
    assert run(tmp_path / "new", "import", file).status == 0


def test_a_file_of_something_else(run, state, tmp_path, corpus):
    assert run(state, "import", corpus / "ham.mbox").failed("no file of `spamguard export`")
    assert run(state, "import", tmp_path / "none").failed("none: No such file")
    assert run(state, "import", "-", stdin=b"").failed("nothing was imported")
    assert run(state, "import", tmp_path).failed("directory")


@pytest.mark.slow
def test_damage_anywhere_imports_nothing(run, taught, tmp_path, file):
    run(taught, "export", "--with-key", file)
    whole = file.read_bytes()
    for at in [*range(0, 40), *range(40, len(whole), max(1, len(whole) // 60)), len(whole) - 1]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert run(tmp_path / "new", "import", file).failed(str(file), "nothing was imported"), at
        file.write_bytes(whole[:at])
        assert run(tmp_path / "new", "import", file).failed(str(file), "nothing was imported"), at
    file.write_bytes(whole + b"x")
    assert run(tmp_path / "new", "import", file).failed("damaged")
    assert not (tmp_path / "new").exists()


def test_an_invalid_receipt_is_not_exported(run, taught, file):
    with closing(sqlite3.connect(taught / "ledger.sqlite")) as db, db:
        db.execute("UPDATE events SET packed = CAST(packed || x'00' AS BLOB) WHERE seq = 7")
    assert run(taught, "export", file).failed("a receipt in the ledger is damaged")
    assert not file.exists()


EMPTY = Features(
    np.zeros(0, np.uint32), np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16)
)


def header(**changes):
    values = {
        "program": "0",
        "extractor": EXTRACTOR,
        "fingerprint": "f",
        "key": "",
        "bits": 16,
        "classes": {},
    }
    return keep.ExportHeader(**{**values, **changes})


def written(path, head, *votes):
    path.write_bytes(b"")
    keep.write_export(path, head, votes)
    return path


def changed(path, *statements):
    """Change an export by these statements, and give it a right checksum."""
    path.write_bytes(path.read_bytes()[:-32])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    content = path.read_bytes()
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def test_a_newer_format(run, state, file):
    newer = changed(written(file, header()), "PRAGMA user_version = 3")
    assert run(state, "import", newer).failed("another version")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE classes",
        "CREATE TRIGGER more AFTER INSERT ON votes BEGIN DELETE FROM votes; END",
        "CREATE TABLE more (column)",
        "DELETE FROM about",
        "UPDATE about SET bits = 'many'",
        "INSERT INTO classes VALUES ('ham', 2)",
        "INSERT INTO votes VALUES ('d', '', 1, 'n', 'ham', x'', x'', '', 0, 1)",
        "INSERT INTO votes VALUES (x'01', '', 1, 'n', 'ham', x'', x'', '', 0, 256)",
        "INSERT INTO votes VALUES (x'01', CAST(x'ff' AS TEXT), 1, 'n', 'a', x'', x'', '', 0, 1)",
        "INSERT INTO votes VALUES (zeroblob(70000), '', 1, 'n', 'ham', x'', x'', '', 0, 1)",
        "INSERT INTO votes VALUES (x'01', '', 1, 'n', 'ham', zeroblob(67200000), x'', '', 0, 1)",
    ],
)
def test_a_forged_file_imports_nothing(run, tmp_path, file, statement):
    deceiving = changed(written(file, header()), statement)
    assert run(tmp_path / "new", "import", deceiving).failed(str(file), "nothing was imported")
    assert not (tmp_path / "new").exists()


def test_a_key_that_is_not_the_one(run, tmp_path, file):
    for key in ("00" * 32, "zz", "00" * 100):
        assert run(tmp_path / "new", "import", written(file, header(key=key))).failed(
            "nothing was imported"
        )
    assert not (tmp_path / "new").exists()


def test_a_label_that_cannot_be_a_class(run, status_of, state, file):
    with Filter.open(state) as spam_filter:
        head = header(fingerprint=spam_filter.ledger.fingerprint)
    vote = Vote(b"d", "", 1, "n", "UPPER", codec.pack(EMPTY), b"", "", 0, 1)
    assert run(state, "import", written(file, head, vote)).failed("'UPPER' cannot be a class")
    assert status_of(state)["events"] == 0


@pytest.mark.parametrize(
    ("traits", "numbers", "scores"),
    [
        (np.full(len(TRAITS), 16), np.zeros(len(NUMBERS)), b""),
        (np.zeros(len(TRAITS)), np.full(len(NUMBERS), -1), b""),
        (np.zeros(1), np.zeros(len(NUMBERS)), b""),
        (np.zeros(len(TRAITS)), np.zeros(len(NUMBERS)), b"odd"),
    ],
    ids=["a trait too high", "a number below zero", "too few traits", "half a score"],
)
def test_a_receipt_that_would_stop_every_reader_is_not_taken_in(
    run, status_of, state, file, traits, numbers, scores
):
    features = Features(np.array([5], np.uint32), traits.astype(np.uint8), numbers.astype(np.int16))
    with Filter.open(state) as spam_filter:
        head = header(fingerprint=spam_filter.ledger.fingerprint)
    vote = Vote(b"d", "", 1, "n", "spam", codec.pack(features), scores, "", 0, EXTRACTOR)
    assert run(state, "import", written(file, head, vote)).failed(
        str(file), "cannot be read", "nothing was imported"
    )
    assert status_of(state)["events"] == 0


VOTES = st.builds(
    Vote,
    st.binary(min_size=1, max_size=40),
    st.text(max_size=9),
    st.integers(0, 2**62),
    st.text(max_size=9),
    st.one_of(st.none(), st.text(min_size=1, max_size=9)),
    st.binary(max_size=99),
    st.binary(max_size=9),
    st.text(max_size=9),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 255),
)


@pytest.mark.slow
@settings(derandomize=True, deadline=None)
@given(votes=st.lists(VOTES, max_size=9))
def test_a_vote_is_read_as_it_was_written(tmp_path_factory, votes):
    path = written(tmp_path_factory.mktemp("votes") / "file", header(), *votes)
    with closing(keep.ExportReader("file", path)) as reader:
        assert reader.check()[2] == len(votes)
        assert list(reader.read_votes()) == votes
