"""Tables that keep up with the ledger: all processes that fold the same log hold the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from spamguard.engine import fold, store
from spamguard.engine.filter import Filter
from spamguard.engine.snapshot import read_snapshot
from spamguard.errors import LedgerError, TableError
from spamguard.records import EXTRACTOR
from tests.unit.bayes.lessons import counted
from tests.unit.filters import bits_of, held, mail, opened, python, teach

MAIL = mail(60)
Open = Callable[..., Filter]


@pytest.fixture
def open_filter(tmp_path: Path) -> Iterator[Open]:
    """Opens the same filter again and again, as other processes would."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened(tmp_path, **settings))


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*tables-*"))


def test_two_stores_on_one_ledger_hold_the_same_bits(open_filter: Open) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:10])
    teach(second, MAIL[10:20])
    first.forget_digests([first._reader.digest(MAIL[0][1])])
    teach(second, [("news", MAIL[1][1])])
    assert held(first) == held(second) == held(open_filter())
    assert not first._store.refresh()  # nothing new


def test_settling_by_one_is_swapped_in_by_the_others(open_filter: Open, tmp_path: Path) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:30])
    before = held(second)
    first.settle()
    assert held(first) == held(second) == held(open_filter())
    assert held(first) != before
    assert len(snapshots(tmp_path)) == 1
    assert second._store.stamp == first._store.stamp
    teach(second, MAIL[30:40])
    assert held(first) == held(second) == held(open_filter())


def test_a_long_tail_is_saved_with_the_bits_it_has(
    open_filter: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 8)
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:20])
    (name,) = snapshots(tmp_path)
    assert name.startswith(f"tables-{EXTRACTOR}-16-")
    assert first._store.stamp.settled == 0
    assert held(first) == held(second) == held(open_filter())
    first.settle()
    teach(second, MAIL[20:30])
    teach(first, MAIL[30:40])
    assert held(first) == held(second) == held(open_filter())
    assert first._store.stamp.settled == 20
    assert len(snapshots(tmp_path)) == 1


def test_what_was_taken_back_is_due_for_settling_in_every_process(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a snapshot that was saved since: else those who were there before would ask for a
    trainer that finds nothing to do.
    """
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 4)
    first, second = open_filter(), open_filter()
    teach(first, MAIL)
    first.settle()
    first.forget_digests([first._reader.digest(raw) for _, raw in MAIL[:5]])  # saved as they are
    assert first._store.stamp.seq > first._store.stamp.settled
    held(second)
    assert [each._store.taken_back for each in (first, second, open_filter())] == [5, 5, 5]
    assert open_filter().settle_if_due()
    held(second)
    assert [each._store.taken_back for each in (second, open_filter())] == [0, 0]


def test_whoever_is_ahead_of_a_snapshot_of_its_own_lineage_keeps_its_tables(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:10])
    held(second)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 1)
    first._store.save_if_long_tail()
    mine = second._store.tables
    assert held(second) == held(first)
    assert second._store.tables is mine
    assert second._store.stamp.seq == 10


def test_a_snapshot_published_between_reading_its_line_and_mapping_it(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:10])
    first.settle()
    read, races = store.read_snapshot, [1, 2, 3]

    def late(path: Path) -> object:
        if races:
            races.pop()
            teach(first, [MAIL[10 + len(races)]])
            monkeypatch.setattr(store, "read_snapshot", read)
            first.settle()  # replaces the file that is about to be mapped
            monkeypatch.setattr(store, "read_snapshot", late)
        return read(path)

    monkeypatch.setattr(store, "read_snapshot", late)
    second._store.refresh()
    assert not races
    assert held(second) == held(first) == held(open_filter())


def test_of_two_that_settle_at_once_the_one_that_saw_more_wins(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "UNDO_SECONDS", -60)
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:20])
    teach(first, [("spam", MAIL[0][1]), ("ham", MAIL[0][1])])  # something to compact
    settled = fold.build_tables

    def slow(*arguments: object) -> object:
        monkeypatch.setattr(store, "build_tables", settled)
        teach(first, MAIL[20:25])
        first.settle()
        return settled(*arguments)

    monkeypatch.setattr(store, "build_tables", slow)
    second.settle()
    assert first._store.stamp.settled == second._store.stamp.settled == 27
    assert held(second) == held(first) == held(open_filter())


def test_a_settled_state_is_never_overtaken_by_an_older_one(
    open_filter: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:20])
    settled = fold.build_tables

    def slow(*arguments: object) -> object:
        tables = settled(*arguments)
        monkeypatch.setattr(store, "build_tables", settled)
        teach(first, MAIL[20:25])
        first.settle()
        return tables

    monkeypatch.setattr(store, "build_tables", slow)
    second.settle()
    assert second._store.stamp.settled == 25
    assert held(second) == held(first) == held(open_filter())
    assert len(snapshots(tmp_path)) == 1


def test_a_lock_in_the_middle_of_folding_folds_nothing_twice(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:40])
    monkeypatch.setattr("spamguard.engine.fold._FOLD_BATCH", 8)
    whole = second._ledger.changes_after

    def interrupted(seq: int, **options: int) -> Iterator[object]:
        yield from list(whole(seq, **options))[:20]
        raise LedgerError("locked for too long")

    monkeypatch.setattr(second._ledger, "changes_after", interrupted)
    with pytest.raises(LedgerError, match="locked"):
        second.judge(MAIL[0][1])
    monkeypatch.undo()
    assert second.judge(MAIL[50][1]) == first.judge(
        MAIL[50][1]
    )  # tried again though nothing new was committed
    assert held(second) == held(first)


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_damaged_snapshot_is_told_and_mended_by_settling(
    open_filter: Open, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:20])
    spam_filter.settle()
    state = held(spam_filter)
    damage(tmp_path / snapshots(tmp_path)[0])
    with pytest.raises(TableError, match="run `spamguard rebuild`"):
        open_filter()
    open_filter(load=False).settle()
    assert held(open_filter()) == held(spam_filter) == state


def test_an_older_ledger_that_was_restored(open_filter: Open, tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:10])
        state = held(spam_filter)
    shutil.copytree(tmp_path, backup := tmp_path.with_name("backup"))
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[10:20])
        spam_filter.settle()
    for path in tmp_path.glob("ledger*"):
        path.unlink()
    shutil.copy(backup / "ledger.sqlite", tmp_path)
    assert held(open_filter()) == state  # the newer snapshot is not the one of this ledger
    open_filter().settle()
    assert len(snapshots(tmp_path)) == 1


def test_a_ledger_restored_in_place_makes_whoever_is_ahead_start_again(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:10])
    spam_filter._store.seq = 99  # what the tables hold, the ledger has lost
    monkeypatch.setattr(spam_filter._ledger, "has_grown", lambda: True)
    assert held(spam_filter) == held(open_filter())
    assert spam_filter._store.seq == 10


def test_compaction_makes_readers_that_were_behind_start_from_the_snapshot(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "UNDO_SECONDS", -60)
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:10])
    held(second)
    for label in ("spam", "ham", "spam"):
        teach(first, [(label, raw) for _, raw in MAIL[:10]])
    events = sum(1 for _ in first.ledger.all_votes())
    first.settle()
    assert sum(1 for _ in first.ledger.all_votes()) < events
    assert held(second) == held(first) == held(open_filter())


def test_a_clock_that_jumps_forward_compacts_nothing_at_once(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was replaced could not be undone any more after some minutes of a wrong year."""
    spam_filter, begun, jumped = open_filter(), time.time(), time.time() + 10 * store.UNDO_SECONDS
    for label in ("spam", "ham"):
        teach(spam_filter, [(label, raw) for _, raw in MAIL[:10]])
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
        spam_filter.settle()
        events.append(sum(1 for _ in spam_filter.ledger.all_votes()))
    assert events == [20] * 5 + [10]


@pytest.mark.slow
def test_settling_during_appends_by_other_processes(open_filter: Open, tmp_path: Path) -> None:
    first = open_filter()
    teach(first, MAIL[:5])
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
    for second in others:
        second.start()
    while any(other.is_alive() for other in others):
        first.settle()
        time.sleep(0.01)
    assert [(done.stdout, done.stderr) for done in outcomes] == [("taught\n", "")] * 2
    counted = first.ledger.lesson_counts()
    assert sum(counted.values()) == 45
    assert held(first) == held(open_filter())
    first.settle()
    fresh = held(first)
    first.settle()
    assert held(first) == fresh  # settled state is a function of the receipts
    assert (
        dict(zip(first._store.tables.classes, first._store.tables.messages.tolist(), strict=True))
        == counted
    )


def test_opening_after_a_kill_needs_no_repair(open_filter: Open, tmp_path: Path) -> None:
    code = """
import os
from spamguard.engine import snapshot
with opened(Path(sys.argv[1])) as f:
    teach(f, mail(60)[:20])
    snapshot.np.ascontiguousarray = lambda *a: os.kill(os.getpid(), 9)
    f.settle()
"""
    assert python(code, str(tmp_path)).returncode == -9
    assert snapshots(tmp_path) == [], "64 MB would be missing until somebody swept them"
    (tmp_path / ".tables-1-1-ab.bin.cd.new").write_bytes(
        b"x"
    )  # as it is where there are no files without names
    spam_filter = open_filter()
    assert sum(spam_filter.status().classes.values()) == 20
    spam_filter.settle()
    assert held(spam_filter) == held(open_filter())
    assert len(snapshots(tmp_path)) == 2  # the draft might be somebody's who is still writing
    for draft in tmp_path.glob(".tables*"):
        os.utime(draft, (0, 0))
    spam_filter.settle()
    assert len(snapshots(tmp_path)) == 1


def test_another_process_may_remove_a_snapshot_before_it_counts(
    open_filter: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_filter(), open_filter()
    teach(first, MAIL[:20])
    write = store.write_snapshot

    def overtaken(path: Path, *arguments: Any, **settings: Any) -> str:
        digest = write(path, *arguments, **settings)
        monkeypatch.setattr(store, "write_snapshot", write)
        teach(first, MAIL[20:25])
        first.settle()
        assert not path.exists()
        return digest

    monkeypatch.setattr(store, "write_snapshot", overtaken)
    second.settle()
    assert held(second) == held(first) == held(open_filter())
    (name,) = snapshots(tmp_path)
    settled = second._store.stamp
    assert (settled.settled, settled.file) == (25, name)
    assert settled.lineage == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


def test_a_full_disk_loses_nothing(
    open_filter: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:20])
    state = held(spam_filter)
    abandoned = tmp_path / f".tables-{EXTRACTOR}-20-0.bin.1.new"  # some of what fills it
    abandoned.write_bytes(b"")
    os.utime(abandoned, (0, 0))

    def full(*_arguments: object, **_settings: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_snapshot", full)
    with pytest.raises(TableError, match=r"No space left.*safe in the ledger: make room"):
        spam_filter.settle()
    assert held(spam_filter) == held(open_filter()) == state
    assert snapshots(tmp_path) == []


def test_the_line_about_a_snapshot_names_what_it_holds(open_filter: Open, tmp_path: Path) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:10])
    spam_filter.settle()
    line = json.loads(spam_filter.ledger.get_meta(f"tables.{EXTRACTOR}") or "")
    assert (line["seq"], line["settled"], line["file"]) == (10, 10, snapshots(tmp_path)[0])
    assert bits_of(read_snapshot(tmp_path / line["file"])) == held(spam_filter)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_several_do_in_turns_all_hold_the_same_bits(
    open_filter: Open, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 7)
    several = [open_filter() for _ in range(3)]
    for _ in range(60):
        spam_filter = random.choice(several)
        raw, user = random.choice(MAIL[:12])[1], random.choice(("", "anna", "bob"))
        if random.random() < 0.06:
            spam_filter.settle()
        elif random.random() < 0.3:
            spam_filter.forget_digests([spam_filter._reader.digest(raw)], user=user)
        else:
            teach(spam_filter, [(random.choice(("ham", "spam", "news")), raw)], user)
        if random.random() < 0.2:
            random.choice(several).judge(raw)
        if random.random() < 0.05:
            several[random.randrange(3)] = open_filter()
    states = [held(spam_filter) for spam_filter in (*several, open_filter())]
    assert states[0] == states[1] == states[2] == states[3]
    counts = counted(several[0]._store.tables)
    several[1].settle()
    assert counted(several[1]._store.tables) == counts
    assert held(several[0]) == held(several[2]) == held(open_filter())


def test_what_an_older_extractor_left_goes_with_the_first_settling(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:5])
        mine = f"tables.{EXTRACTOR}"
        older, newer = (f"tables-{number}-7-abcd.bin" for number in (EXTRACTOR - 1, EXTRACTOR + 1))
        draft = f".tables-{EXTRACTOR - 1}-7-abcd.bin.9.new"
        for name in (older, newer, draft):
            (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / draft, (0, 0))
        for key in (
            f"tables.{EXTRACTOR - 1}",
            f"renewed.{EXTRACTOR - 1}",
            f"tables.{EXTRACTOR + 1}",
        ):
            spam_filter.ledger.set_meta(key, "{}")
        spam_filter.settle()
        assert [
            spam_filter.ledger.get_meta(f"{note}.{EXTRACTOR - 1}") for note in ("tables", "renewed")
        ] == [None, None]
        assert spam_filter.ledger.get_meta(f"tables.{EXTRACTOR + 1}") == "{}"
        assert json.loads(spam_filter.ledger.get_meta(mine) or "")["settled"] == 5
        assert {path.name for path in tmp_path.iterdir()} & {older, newer, draft} == {newer}


@pytest.mark.parametrize("line", ["{", "7", '{"file": "x", "of": "a newer version"}'])
def test_a_note_that_cannot_be_read_is_told_and_mended(tmp_path: Path, line: str) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:5])
        spam_filter.ledger.set_meta(f"tables.{EXTRACTOR}", line)
    with pytest.raises(TableError, match="run `spamguard rebuild`"):
        opened(tmp_path)
    with opened(tmp_path, load=False) as spam_filter:
        spam_filter.settle()
    with opened(tmp_path) as spam_filter:
        assert sum(spam_filter.status().classes.values()) == 5
