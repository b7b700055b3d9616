"""Tables that keep up with the ledger: whoever folds the same log holds the same bits, whatever
happens meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from spamguard.engine import fold, snapshot, store
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, TableError
from spamguard.records import EXTRACTOR
from tests.unit.bayes.lessons import counted
from tests.unit.filters import bits_of, held, mail, opened, python, teach

MAIL = mail(60)
Open = Callable[..., Filter]


@pytest.fixture
def open_one(tmp_path: Path) -> Iterator[Open]:
    """Opens the same filter again and again, as other processes would."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened(tmp_path, **settings))


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*tables-*"))


def test_two_stores_on_one_ledger_hold_the_same_bits(open_one: Open) -> None:
    one, other = open_one(), open_one()
    teach(one, MAIL[:10])
    teach(other, MAIL[10:20])
    one.forget_digests([one._reader.digest(MAIL[0][1])])
    teach(other, [("news", MAIL[1][1])])
    assert held(one) == held(other) == held(open_one())
    assert not one._store.refresh()  # nothing new


def test_settling_by_one_is_swapped_in_by_the_others(open_one: Open, tmp_path: Path) -> None:
    one, other = open_one(), open_one()
    teach(one, MAIL[:30])
    before = held(other)
    one.settle()
    assert held(one) == held(other) == held(open_one())
    assert held(one) != before
    assert len(snapshots(tmp_path)) == 1
    assert other._store.stamp == one._store.stamp
    teach(other, MAIL[30:40])
    assert held(one) == held(other) == held(open_one())


def test_a_long_tail_is_saved_with_the_bits_it_has(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 8)
    one, other = open_one(), open_one()
    teach(one, MAIL[:20])
    (name,) = snapshots(tmp_path)
    assert name.startswith(f"tables-{EXTRACTOR}-16-")
    assert one._store.stamp.settled == 0
    assert held(one) == held(other) == held(open_one())
    one.settle()
    teach(other, MAIL[20:30])
    teach(one, MAIL[30:40])
    assert held(one) == held(other) == held(open_one())
    assert one._store.stamp.settled == 20
    assert len(snapshots(tmp_path)) == 1


def test_what_another_version_settled_is_due_for_settling(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an upgrade that learns otherwise would change nothing for long. The first versions did
    not say which they were.
    """
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 4)
    one = open_one()
    teach(one, MAIL[:20])
    one.settle()
    line = json.loads(one.ledger.get_meta(store._SNAPSHOT_KEY) or "")
    del line["learner"]
    one.ledger.set_meta(store._SNAPSHOT_KEY, json.dumps(line))
    other = open_one()
    assert other.is_settling_due()
    teach(other, MAIL[20:26])  # saved as they are, without settling
    third = open_one()
    assert third._store.stamp.seq > third._store.stamp.settled
    assert third.settle_if_due()
    assert not open_one().is_settling_due()


def test_what_was_taken_back_is_due_for_settling_in_every_process(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a snapshot that was saved since: else those who were there before would ask for a
    trainer that finds nothing to do.
    """
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 4)
    one, other = open_one(), open_one()
    teach(one, MAIL)
    one.settle()
    one.forget_digests([one._reader.digest(raw) for _, raw in MAIL[:5]])  # saved as they are
    assert one._store.stamp.seq > one._store.stamp.settled
    held(other)
    assert [each._store.taken_back for each in (one, other, open_one())] == [5, 5, 5]
    assert open_one().settle_if_due()
    held(other)
    assert [each._store.taken_back for each in (other, open_one())] == [0, 0]


def test_whoever_is_ahead_of_a_snapshot_of_its_own_lineage_keeps_its_tables(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_one(), open_one()
    teach(one, MAIL[:10])
    held(other)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 1)
    one._store.save_if_long_tail()
    mine = other._store.tables
    assert held(other) == held(one)
    assert other._store.tables is mine
    assert other._store.stamp.seq == 10


def test_a_snapshot_published_between_reading_its_line_and_mapping_it(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_one(), open_one()
    teach(one, MAIL[:10])
    one.settle()
    read, races = snapshot.read_snapshot, [1, 2, 3]

    def late(path: Path) -> object:
        if races:
            races.pop()
            teach(one, [MAIL[10 + len(races)]])
            monkeypatch.setattr(store.snapshot, "read_snapshot", read)
            one.settle()  # replaces the file that is about to be mapped
            monkeypatch.setattr(store.snapshot, "read_snapshot", late)
        return read(path)

    monkeypatch.setattr(store.snapshot, "read_snapshot", late)
    other._store.refresh()
    assert not races
    assert held(other) == held(one) == held(open_one())


def test_of_two_that_settle_at_once_the_one_that_saw_more_wins(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "UNDO_SECONDS", -60)
    one, other = open_one(), open_one()
    teach(one, MAIL[:20])
    teach(one, [("spam", MAIL[0][1]), ("ham", MAIL[0][1])])  # something to compact
    settled = fold.build_tables

    def slow(*arguments: object) -> object:
        monkeypatch.setattr(store, "build_tables", settled)
        teach(one, MAIL[20:25])
        one.settle()
        return settled(*arguments)

    monkeypatch.setattr(store, "build_tables", slow)
    other.settle()
    assert one._store.stamp.settled == other._store.stamp.settled == 27
    assert held(other) == held(one) == held(open_one())


def test_a_settled_state_is_never_overtaken_by_an_older_one(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_one(), open_one()
    teach(one, MAIL[:20])
    settled = fold.build_tables

    def slow(*arguments: object) -> object:
        tables = settled(*arguments)
        monkeypatch.setattr(store, "build_tables", settled)
        teach(one, MAIL[20:25])
        one.settle()
        return tables

    monkeypatch.setattr(store, "build_tables", slow)
    other.settle()
    assert other._store.stamp.settled == 25
    assert held(other) == held(one) == held(open_one())
    assert len(snapshots(tmp_path)) == 1


def test_a_lock_in_the_middle_of_folding_folds_nothing_twice(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = open_one(), open_one()
    teach(one, MAIL[:40])
    monkeypatch.setattr("spamguard.engine.fold._FOLD_BATCH", 8)
    whole = other._ledger.changes_after

    def interrupted(seq: int, *, extractor: int | None = None) -> Iterator[object]:
        yield from list(whole(seq, extractor=extractor))[:20]
        raise LedgerError("locked for too long")

    monkeypatch.setattr(other._ledger, "changes_after", interrupted)
    with pytest.raises(LedgerError, match="locked"):
        other.judge(MAIL[0][1])
    monkeypatch.undo()
    assert other.judge(MAIL[50][1]) == one.judge(
        MAIL[50][1]
    )  # tried again though nothing new was committed
    assert held(other) == held(one)


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_damaged_snapshot_is_told_and_mended_by_settling(
    open_one: Open, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    one = open_one()
    teach(one, MAIL[:20])
    one.settle()
    state = held(one)
    damage(tmp_path / snapshots(tmp_path)[0])
    with pytest.raises(TableError, match="run `spamguard rebuild`"):
        open_one()
    open_one(load=False).settle()
    assert held(open_one()) == held(one) == state


def test_an_older_ledger_that_was_restored(open_one: Open, tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:10])
        state = held(one)
    shutil.copytree(tmp_path, backup := tmp_path.with_name("backup"))
    with opened(tmp_path) as one:
        teach(one, MAIL[10:20])
        one.settle()
    for path in tmp_path.glob("ledger*"):
        path.unlink()
    shutil.copy(backup / "ledger.sqlite", tmp_path)
    assert held(open_one()) == state  # the newer snapshot is not the one of this ledger
    open_one().settle()
    assert len(snapshots(tmp_path)) == 1


def test_a_ledger_restored_in_place_makes_whoever_is_ahead_start_again(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_one()
    teach(one, MAIL[:10])
    one._store.seq = 99  # what the tables hold, the ledger has lost
    monkeypatch.setattr(one._ledger, "has_grown", lambda: True)
    assert held(one) == held(open_one())
    assert one._store.seq == 10


def test_compaction_makes_readers_that_were_behind_start_from_the_snapshot(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "UNDO_SECONDS", -60)
    one, other = open_one(), open_one()
    teach(one, MAIL[:10])
    held(other)
    for label in ("spam", "ham", "spam"):
        teach(one, [(label, raw) for _, raw in MAIL[:10]])
    events = sum(1 for _ in one.ledger.all_votes())
    one.settle()
    assert sum(1 for _ in one.ledger.all_votes()) < events
    assert held(other) == held(one) == held(open_one())


def test_a_clock_that_jumps_forward_compacts_nothing_at_once(
    open_one: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was replaced could not be undone any more after some minutes of a wrong year."""
    one, begun, jumped = open_one(), time.time(), time.time() + 10 * store.UNDO_SECONDS
    for label in ("spam", "ham"):
        teach(one, [(label, raw) for _, raw in MAIL[:10]])
    events = []
    for now in (
        begun,
        jumped,
        jumped + 80_000,
        begun + 100,
        jumped,
        jumped + 86_400,
    ):  # set right once, then believed
        monkeypatch.setattr(store.time, "time", lambda now=now: now)
        one.settle()
        events.append(sum(1 for _ in one.ledger.all_votes()))
    assert events == [20] * 5 + [10]


@pytest.mark.slow
def test_settling_during_appends_by_other_processes(open_one: Open, tmp_path: Path) -> None:
    one = open_one()
    teach(one, MAIL[:5])
    code = (
        "with opened(Path(sys.argv[1])) as f: "
        "teach(f, mail(60)[int(sys.argv[2]):int(sys.argv[3])]); print('taught')"
    )
    outcomes = []
    others = [
        threading.Thread(
            target=lambda a=a: outcomes.append(python(code, str(tmp_path), str(a), str(a + 20)))
        )
        for a in (20, 40)
    ]
    for other in others:
        other.start()
    while any(other.is_alive() for other in others):
        one.settle()
        time.sleep(0.01)
    assert [(done.stdout, done.stderr) for done in outcomes] == [("taught\n", "")] * 2
    counted = one.ledger.lesson_counts()
    assert sum(counted.values()) == 45
    assert held(one) == held(open_one())
    one.settle()
    fresh = held(one)
    one.settle()
    assert held(one) == fresh  # settled state is a function of the receipts
    assert (
        dict(zip(one._store.tables.classes, one._store.tables.messages.tolist(), strict=True))
        == counted
    )


def test_opening_after_a_kill_needs_no_repair(open_one: Open, tmp_path: Path) -> None:
    code = """
import os
from spamguard.engine import store
with opened(Path(sys.argv[1])) as f:
    teach(f, mail(60)[:20])
    store.snapshot.np.ascontiguousarray = lambda *a: os.kill(os.getpid(), 9)
    f.settle()
"""
    assert python(code, str(tmp_path)).returncode == -9
    assert snapshots(tmp_path) == [], "64 MB would be missing until somebody swept them"
    (tmp_path / ".tables-1-1-ab.bin.cd.new").write_bytes(
        b"x"
    )  # as it is where there are no files without names
    one = open_one()
    assert sum(one.status().classes.values()) == 20
    one.settle()
    assert held(one) == held(open_one())
    assert len(snapshots(tmp_path)) == 2  # the draft might be somebody's who is still writing
    for draft in tmp_path.glob(".tables*"):
        os.utime(draft, (0, 0))
    one.settle()
    assert len(snapshots(tmp_path)) == 1


def test_a_full_disk_loses_nothing(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_one()
    teach(one, MAIL[:20])
    state = held(one)
    abandoned = tmp_path / f".tables-{EXTRACTOR}-20-0.bin.1.new"  # some of what fills it
    abandoned.write_bytes(b"")
    os.utime(abandoned, (0, 0))

    def full(*_arguments: object, **_settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.snapshot, "write_snapshot", full)
    with pytest.raises(TableError, match=r"No space left.*safe in the ledger: make room"):
        one.settle()
    assert held(one) == held(open_one()) == state
    assert snapshots(tmp_path) == []


def test_the_line_about_a_snapshot_names_what_it_holds(open_one: Open, tmp_path: Path) -> None:
    one = open_one()
    teach(one, MAIL[:10])
    one.settle()
    line = json.loads(one.ledger.get_meta(f"tables.{EXTRACTOR}") or "")
    assert (line["seq"], line["settled"], line["file"]) == (10, 10, snapshots(tmp_path)[0])
    assert bits_of(snapshot.read_snapshot(tmp_path / line["file"])) == held(one)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_several_do_in_turns_all_hold_the_same_bits(
    open_one: Open, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 7)
    several = [open_one() for _ in range(3)]
    for _ in range(60):
        one = random.choice(several)
        raw, user = random.choice(MAIL[:12])[1], random.choice(("", "anna", "bob"))
        if random.random() < 0.06:
            one.settle()
        elif random.random() < 0.3:
            one.forget_digests([one._reader.digest(raw)], user=user)
        else:
            teach(one, [(random.choice(("ham", "spam", "news")), raw)], user)
        if random.random() < 0.2:
            random.choice(several).judge(raw)
        if random.random() < 0.05:
            several[random.randrange(3)] = open_one()
    states = [held(one) for one in (*several, open_one())]
    assert states[0] == states[1] == states[2] == states[3]
    counts = counted(several[0]._store.tables)
    several[1].settle()
    assert counted(several[1]._store.tables) == counts
    assert held(several[0]) == held(several[2]) == held(open_one())


def test_what_an_older_extractor_left_goes_with_the_first_settling(tmp_path: Path) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:5])
        mine = f"tables.{EXTRACTOR}"
        older, newer = (f"tables-{number}-7-abcd.bin" for number in (EXTRACTOR - 1, EXTRACTOR + 1))
        draft = f".tables-{EXTRACTOR - 1}-7-abcd.bin.9.new"
        for name in (older, newer, draft):
            (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / draft, (0, 0))
        for key in (
            f"tables.{EXTRACTOR - 1}",
            f"goodmail.{EXTRACTOR - 1}",
            f"tables.{EXTRACTOR + 1}",
        ):
            one.ledger.set_meta(key, "{}")
        one.settle()
        assert [
            one.ledger.get_meta(f"{note}.{EXTRACTOR - 1}") for note in ("tables", "goodmail")
        ] == [None, None]
        assert one.ledger.get_meta(f"tables.{EXTRACTOR + 1}") == "{}"
        assert json.loads(one.ledger.get_meta(mine) or "")["settled"] == 5
        assert {path.name for path in tmp_path.iterdir()} & {older, newer, draft} == {newer}


@pytest.mark.parametrize("line", ["{", "7", '{"file": "x", "of": "a newer version"}'])
def test_a_note_that_cannot_be_read_is_told_and_mended(tmp_path: Path, line: str) -> None:
    with opened(tmp_path) as one:
        teach(one, MAIL[:5])
        one.ledger.set_meta(f"tables.{EXTRACTOR}", line)
    with pytest.raises(TableError, match="run `spamguard rebuild`"):
        opened(tmp_path)
    with opened(tmp_path, load=False) as one:
        one.settle()
    with opened(tmp_path) as one:
        assert sum(one.status().classes.values()) == 5
