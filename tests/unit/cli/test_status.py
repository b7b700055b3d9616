"""`status` about the filter itself, and `rebuild`."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest

from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader
from spamguard.shared.status import SharedStatus, write_status
from tests.unit.bayes.lessons import counted_arrays


def test_a_node_tells_of_the_shared_log(run, status_of, taught, tmp_path):
    assert status_of(taught)["shared"] is None
    assert "shared log" not in run(taught, "status").out
    state = tmp_path / "node"
    with Filter.open(state) as spam_filter:
        spam_filter.ledger.join()
        spam_filter.learn(b"Subject: one\n\ntwo three\n", "spam")
    now = time.time()
    away = SharedStatus(written=now, away_since=now - 720, problem="it does not answer", last=9)
    write_status(state, away)
    out = run(state, "status").out
    assert "shared log 0 of 9 events" in out
    assert "away for 12 min (it does not answer); lessons waiting here: 1" in out
    assert status_of(state)["shared"]["waiting"] == 1
    assert status_of(state)["shared"]["away"]


def test_missing_lessons_are_shown_with_a_remedy(run, status_of, taught, tmp_path):
    Filter.open(tmp_path / "new").close()
    out = run(tmp_path / "new", "status").out
    assert (
        "\neverything is unsure until 3 good messages and 3 unwanted ones have been "
        "taught: teach what people have filed (teach-f"
    ) in out
    assert status_of(tmp_path / "new")["missing"].startswith(
        "everything is unsure until 3 good messages"
    )
    assert status_of(taught)["missing"].startswith(
        "only plain spam is called spam, the rest is unsure"
    )
    assert "\nonly plain spam is called spam, the rest is unsure" in run(taught, "status").out


def state_of(directory):
    with Filter.open(directory) as spam_filter:
        return {
            name: np.array(values) for name, values in counted_arrays(spam_filter._store.tables)
        }


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def head(file):
    file.write_bytes(b"spamguard tables 9\n" + file.read_bytes()[19:])


@pytest.mark.parametrize(
    "damage", [truncate, head, lambda file: file.unlink(), lambda file: file.write_bytes(b"")]
)
def test_damaged_tables_are_reported_and_repaired(run, taught, corpus, counts, damage):
    before = state_of(taught)
    (file,) = taught.glob("tables-*.bin")
    damage(file)
    for command in (
        ["status"],
        ["judge", corpus / "data"],
        ["learn", "--as", "ham", corpus / "ham.mbox"],
        ["forget", corpus / "spam"],
    ):
        assert run(taught, *command).failed("made anew from the ledger", "spamguard rebuild")
    assert run(taught, "rebuild").status == 0
    after = state_of(taught)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert len(list(taught.glob("tables-*.bin"))) == 1


def damage_receipt(state, digest):
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db, db:
        ((packed,),) = db.execute("SELECT packed FROM events WHERE digest = ?", (digest,))
        changed = bytes([packed[30] ^ 255])  # whatever it was
        db.execute(
            "UPDATE events SET packed = ? WHERE digest = ?",
            (packed[:30] + changed + packed[31:], digest),
        )


def test_a_damaged_receipt_is_named_and_can_be_taken_back(run, taught, clear, tmp_path):
    """The receipt used to stay unnamed; without a backup nothing was settled or exported again."""
    (tmp_path / "one").write_bytes(clear["spam"])
    with Filter.open(taught) as spam_filter:
        digest = ExampleReader(spam_filter.key).digest(clear["spam"])
    damage_receipt(taught, digest)
    for command in (["rebuild"], ["backup", tmp_path / "backup"]):
        assert run(taught, *command).failed(
            f"message {digest.hex()[:12]}: a receipt in the ledger is damaged",
            "take that lesson back",
        )
    run(taught, "forget", tmp_path / "one")
    assert run(taught, "rebuild").status == 0
    assert run(taught, "backup", tmp_path / "backup").status == 0
