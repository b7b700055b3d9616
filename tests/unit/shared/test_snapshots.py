"""Tables of nodes that share a log: the same bits everywhere, settled once."""

from __future__ import annotations

import hashlib
import random
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from spamguard.engine import store
from spamguard.engine.snapshot import SNAPSHOT_KEY, SnapshotStamp
from spamguard.errors import LedgerError
from spamguard.ledger import sqlite
from spamguard.ledger.schema import PROVISIONAL, Query
from spamguard.shared import snapshots
from spamguard.shared.postgres import SharedDatabase
from spamguard.shared.snapshots import SnapshotAlarmError
from tests.support.postgres import MAC, TestDatabase, needs_postgres
from tests.unit.filters import mail, opened, teach
from tests.unit.shared.nodes import Site, site

pytestmark = needs_postgres
MAIL = mail(160)
PROBES = [raw for _, raw in mail(190)[160:]]


@pytest.fixture
def nodes(tmp_path: Path, shared_database: TestDatabase) -> Iterator[Site]:
    with site(tmp_path, shared_database) as place:
        yield place


def published(place: Site) -> list[tuple[int, str]]:
    return place.database.query("SELECT position, hash FROM spamguard.snapshots ORDER BY 1")


@pytest.mark.parametrize("seed", range(4))
def test_equal_logs_make_equal_tables_whatever_was_done_in_between(nodes: Site, seed: int) -> None:
    """Lessons come in other portions to each node, some are in force before they have a position,
    and somebody settles now and then.
    """
    chance, lessons = random.Random(seed), list(MAIL)
    for _ in range(3):
        nodes.node()
    chance.shuffle(lessons)
    while lessons:
        node = chance.choice(nodes.nodes)
        match chance.randrange(8):
            case 0 | 1 | 2:
                count = chance.randrange(1, 12)
                teach(node.filter, lessons[:count], chance.choice(["", "anna", "ben"]))
                del lessons[:count]
            case 3 | 4 | 5:
                node.turn()
            case 6:
                node.settle()
            case _:
                node.tables()
                _, raw = chance.choice(MAIL)
                node.filter.forget(raw)
                node.filter.learn(raw, chance.choice(["ham", "spam", "receipts"]))
                node.filter.define_class("receipts", unwanted=chance.random() < 0.5)
    nodes.converge()
    first, *others = nodes.nodes
    assert all(node.stamp().lineage == first.stamp().lineage for node in others)
    assert len({node.tables() for node in nodes.nodes}) == 1
    assert all(node.verdicts(PROBES) == first.verdicts(PROBES) for node in others)
    assert first.filter._store.seq > first.stamp().settled, "nothing was folded online"
    for node in nodes.nodes:  # settled at one position: one file, and the same name of it
        node.filter.settle()
    assert len({node.stamp().lineage for node in nodes.nodes}) == 1


def test_a_node_that_settles_while_it_fetches_keeps_its_tables(
    nodes: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    first.turn()
    second.turn()
    first.publish()
    check = snapshots.check_layout

    def overtaken(path: Path) -> None:
        check(path)
        with opened(second.filter.directory) as other:
            other.settle()
        assert not path.exists()

    monkeypatch.setattr(snapshots, "check_layout", overtaken)
    assert not second.with_database(second.exchange.fetch)
    assert second.stamp().lineage == first.stamp().lineage
    assert second.tables() == first.tables()


def test_what_has_no_position_is_in_force_and_in_no_snapshot(
    nodes: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 5)
    node, other = nodes.node(), nodes.node()
    teach(node.filter, MAIL[:20])
    node.turn()
    node.publish()
    teach(node.filter, MAIL[20:40])
    assert node.filter._store.seq >= PROVISIONAL
    assert sum(node.filter.status().classes.values()) == 40
    assert node.filter.status().unsettled == 0
    assert node.stamp().seq == 20
    assert node.filter.find_loss() is None
    node.filter.settle()
    assert node.stamp().settled == 20
    assert sum(node.filter.status().classes.values()) == 40, "in force again"
    teach(other.filter, MAIL[40:43])
    nodes.converge()
    assert node.tables() == other.tables()
    assert node.filter._store.seq == 43
    assert node.stamp().seq == 20, "who judges and teaches has no tail to save"


def test_of_three_that_are_due_one_settles(nodes: Site) -> None:
    for _ in range(3):
        nodes.node()
    teach(nodes.nodes[0].filter, MAIL[:60])
    nodes.converge()
    for node in nodes.nodes:
        node.tables()
        assert node.filter.is_settling_due()
        assert not node.filter.settle_if_due(), "a command leaves it to the daemon"
    assert [node.settle() for node in nodes.nodes] == [True, False, False]
    assert len(published(nodes)) == 1
    assert len({node.stamp().lineage for node in nodes.nodes}) == 1
    assert not any(node.filter.is_settling_due() for node in nodes.nodes)


# ---- what is refused


def test_a_tampered_chunk_is_refused_and_told_once(
    nodes: Site, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    first.turn()
    first.publish()
    data = first.stamp().file and (first.filter.directory / first.stamp().file).read_bytes()
    tampered = bytearray(data[: snapshots.CHUNK_BYTES])
    tampered[-1] ^= 1
    nodes.database.query(
        "UPDATE spamguard.chunks SET data = %s WHERE number = 0",
        zstandard.compress(bytes(tampered)),
    )
    for _ in range(3):
        second.turn()
    assert second.filter.ledger.get_meta(SNAPSHOT_KEY) is None
    (alarm,) = second.exchange.alarms.values()
    assert "its bytes are not those that were published" in alarm
    assert [record.getMessage() for record in caplog.records].count(alarm) == 1
    assert not list(second.filter.directory.glob("tables-*"))
    assert second.log.head() == first.log.head(), "the log goes on"
    teach(first.filter, MAIL[60:70])
    first.turn()
    first.publish()
    second.turn()
    assert second.stamp().lineage == first.stamp().lineage


def sign_again(nodes: Site) -> None:
    """Have what the database says of its one snapshot come from a node that has the key."""
    columns = "position, extractor, learner, hash, bytes, node, notes"
    (row,) = nodes.database.query(f"SELECT {columns} FROM spamguard.snapshots")
    nodes.database.query("UPDATE spamguard.snapshots SET mac = %s", MAC.sign("snapshot", row))


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM spamguard.chunks WHERE number = 0", "a part of it is missing"),
        ("UPDATE spamguard.chunks SET data = 'x' WHERE number = 0", "a part of it is damaged"),
        ("UPDATE spamguard.snapshots SET bytes = bytes + 1", "a part of it has another size"),
    ],
)
def test_a_snapshot_that_is_not_whole_is_refused(
    nodes: Site, statement: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:20])
    first.turn()
    first.publish()
    nodes.database.query(statement)
    sign_again(nodes)
    second.turn()
    (alarm,) = second.exchange.alarms.values()
    assert problem in alarm
    assert second.filter.ledger.get_meta(SNAPSHOT_KEY) is None


def test_a_chunk_that_swells_takes_little_memory(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:20])
    first.turn()
    first.publish()
    bomb = zstandard.compress(bytes(1 << 30))
    nodes.database.query("UPDATE spamguard.chunks SET data = %s WHERE number = 0", bomb)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    second.turn()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert second.exchange.alarms


def test_other_tables_for_the_same_position_are_an_alarm(
    nodes: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has settled wrongly, each finds out: who publishes, and who has settled too."""
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    nodes.converge()
    first.publish()
    second.filter.settle()
    second.filter._store.tables.fusion_biases += 1
    stamp = SnapshotStamp(seq=60, settled=60)
    line = second.filter.ledger.get_meta(SNAPSHOT_KEY)
    assert second.filter._store._publish(second.filter._store.tables, stamp, line, lambda: True)
    second.turn()
    second.turn()
    assert len(second.exchange.alarms) == 1
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    token = second.with_database(lambda db: db.take_lease("settle", "second", 120))
    with pytest.raises(SnapshotAlarmError, match="position 60 of the shared log are not those"):
        second.with_database(lambda db: second.exchange.publish(db, token))
    assert len(published(nodes)) == 1


@pytest.mark.parametrize("harm", ["arrays", "objects", "short", "text"])
def test_a_file_that_holds_no_tables_is_never_mapped(
    nodes: Site, tmp_path: Path, harm: str
) -> None:
    """Its hash is right, as whoever may publish can see to."""
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:20])
    first.turn()
    first.publish()
    data = (first.filter.directory / first.stamp().file).read_bytes()
    magic, _, rest = data.partition(b"\n")
    head, _, arrays = rest.partition(b"\n")
    text = head[9:]
    if harm == "objects":
        text = text.replace(b'"<i4"', b'"|O8"', 1)
    elif harm == "arrays":
        text = text.replace(b'"histogram"', b'"biases"', 1)
    elif harm == "text":
        text = b"[" * 100_000
    evil = magic + b"\n%08x " % zlib.crc32(text) + text + b"\n"
    evil = evil.ljust(-(-len(evil) // 4096) * 4096, b"\0") + arrays.lstrip(b"\0")
    evil = evil[: len(data)].ljust(len(data), b"\0")
    if harm == "short":
        evil = evil[:-4096]
    name = hashlib.sha256(evil).digest()
    nodes.database.query("DELETE FROM spamguard.chunks")
    for number in range(-(-len(evil) // snapshots.CHUNK_BYTES)):
        part = evil[number * snapshots.CHUNK_BYTES :][: snapshots.CHUNK_BYTES]
        nodes.database.query(
            "INSERT INTO spamguard.chunks VALUES (%s, %s, %s)",
            name, number, zstandard.compress(part),
        )  # fmt: skip
    nodes.database.query("UPDATE spamguard.snapshots SET hash = %s, bytes = %s", name, len(evil))
    sign_again(nodes)
    second.turn()
    assert second.exchange.alarms
    assert second.filter.ledger.get_meta(SNAPSHOT_KEY) is None
    assert not list(second.filter.directory.glob("tables-*"))


# ---- log and tables that do not fit


def rewind(place: Site, position: int) -> None:
    """Make the database one that was restored from a backup, or that has lost its tail."""
    query = place.database.query
    query("DELETE FROM spamguard.events WHERE position > %s", position)
    query(
        "UPDATE spamguard.log SET last = %s, events = %s, chain = coalesce("
        "(SELECT chain FROM spamguard.events WHERE position = %s), '\\x00')",
        position, position, position,
    )  # fmt: skip
    query("DELETE FROM spamguard.snapshots WHERE position > %s", position)


def test_old_tables_judge_until_there_are_new_ones(nodes: Site) -> None:
    """The database was lost; the nodes fill an empty one, which takes a while."""
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    first.turn()
    first.publish()
    teach(second.filter, MAIL[60:65])
    nodes.converge()
    before = first.verdicts(PROBES)
    rewind(nodes, 0)
    first.exchange.hold_before_cut(0)
    first.log.cut(0)
    assert first.verdicts(PROBES) == before, "cut, but not pushed"
    assert first.filter.find_loss() is None
    assert not first.filter.look_after_snapshot(), "what waits would be missing"
    with opened(first.filter.directory) as another:  # a process that begins now
        assert sum(another.status().classes.values()) == 60, "the snapshot"
    first.turn()
    assert first.verdicts(PROBES) == before
    assert first.wanted, "the process that settles is asked for"
    assert first.settle()
    assert first.stamp().settled == 65
    assert second.verdicts(PROBES) == before
    nodes.converge()
    assert first.tables() == second.tables()
    assert first.verdicts(PROBES) == second.verdicts(PROBES)
    for node in nodes.nodes:
        assert node.log.counts().hold == ""
        assert node.filter.find_loss() is None
        teach(node.filter, [MAIL[70]])
    assert len(published(nodes)) == 1


def test_tables_of_a_history_that_was_cut_meanwhile_are_not_installed(
    nodes: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when settling, nor when the events since the snapshot are saved."""
    node = nodes.node()
    teach(node.filter, MAIL[:40])
    node.turn()
    build = store.build_tables

    def slow(*values: Any) -> Any:
        tables = build(*values)
        node.log.cut(20)
        return tables

    monkeypatch.setattr(store, "build_tables", slow)
    with pytest.raises(LedgerError, match="the shared log was mended while"):
        node.filter.settle()
    assert node.filter.ledger.get_meta(SNAPSHOT_KEY) is None
    monkeypatch.setattr(store, "build_tables", build)
    nodes.converge()
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 5)
    node.tables()
    node.log.cut(20)
    node.filter._store.save_if_long_tail()
    assert node.filter.ledger.get_meta(SNAPSHOT_KEY) is None


def test_a_node_that_is_far_behind_judges_by_the_snapshot_ahead_of_its_log(
    nodes: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_BEHIND", 20)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 20)
    first, late = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:100])
    first.turn()
    first.publish()

    async def begin(database: SharedDatabase) -> None:
        late.exchange.update_hold((await database.head()).last)
        await late.exchange.fetch(database)

    late.with_database(begin)
    assert late.verdicts(PROBES) == first.verdicts(PROBES)
    assert late.log.head().position == 0
    assert late.filter.find_loss() is None
    with pytest.raises(LedgerError, match="it is still being copied from the shared log"):
        late.filter.settle()
    teach(late.filter, MAIL[100:103])  # waits, and is in force when the copy is whole
    teach(first.filter, MAIL[103:140])
    first.turn()
    late.turn()
    assert late.log.counts().hold, "37 events are too much for the path of a message"
    assert late.wanted
    late.filter._refresh()
    late.filter.look_after_snapshot()
    assert late.log.counts().hold == ""
    assert late.stamp().seq == late.stamp().settled + 40, "saved, so that others need not fold"
    nodes.converge()
    assert late.tables() == first.tables()


def test_what_a_command_wants_settled_is_settled_for_all(nodes: Site) -> None:
    """An import or an undo is in force everywhere soon, due or not."""
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    nodes.converge()
    first.publish()
    nodes.converge()
    teach(first.filter, MAIL[60:62])
    assert not first.filter.is_settling_due()
    first.filter.settle_everywhere()
    assert first.stamp().settled == 60
    first.turn()
    assert first.wanted
    first.tables()
    assert first.filter.is_settling_due()
    assert first.settle()
    nodes.converge()
    assert first.stamp().settled == second.stamp().settled == 62
    first.turn()
    assert not first.filter.is_settling_due()


def test_mail_is_judged_while_events_move(nodes: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a node comes back with many lessons: others move them while they are read."""
    node, other = nodes.node(), nodes.node()
    teach(node.filter, MAIL[:20])
    nodes.converge()
    teach(node.filter, MAIL[20:60])
    monkeypatch.setattr("spamguard.ledger.sqlite._READ_BATCH", 8)
    read, moves = sqlite.read_changes, list[int]()

    def read_and_move(query: Query, seq: int, *values: Any) -> Any:
        if seq >= PROVISIONAL:
            moves.append(seq)
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(sqlite, "read_changes", read)
                teach(other.filter, [MAIL[100 + len(moves)]])
                other.turn()
            after = node.log.head().position
            node.log.apply(node.with_database(lambda database: database.read_page(after, 9)))
        return read(query, seq, *values)

    monkeypatch.setattr(sqlite, "read_changes", read_and_move)
    with opened(node.filter.directory) as judging:
        assert moves
        assert judging.judge(PROBES[0]).label
        assert 20 <= sum(judging.status().classes.values()) < 60
        monkeypatch.setattr(sqlite, "read_changes", read)
        assert sum(judging.status().classes.values()) == 60 + len(moves)
    nodes.converge()
    assert node.tables() == other.tables()
