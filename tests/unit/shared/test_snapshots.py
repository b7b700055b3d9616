"""Tables of nodes that share a log: the same bits everywhere, settled once."""

from __future__ import annotations

import hashlib
import random
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from spamguard.engine import store
from spamguard.engine.fold import HAM_SCORES_KEY
from spamguard.engine.snapshot import SNAPSHOT_KEY, SnapshotStamp
from spamguard.ledger.shared import PROVISIONAL
from spamguard.shared import snapshots
from spamguard.shared.snapshots import SnapshotAlarmError
from tests.support.postgres import TestDatabase, needs_postgres
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


def test_a_node_that_begins_later_has_the_same_bits(nodes: Site) -> None:
    first = nodes.node()
    teach(first.filter, MAIL[:60])
    first.turn()
    first.publish()
    teach(first.filter, MAIL[60:75])
    first.turn()
    late = nodes.node()
    nodes.converge()
    assert late.stamp().lineage == first.stamp().lineage
    assert late.tables() == first.tables()
    with opened(late.filter.directory) as again:
        assert again.judge(PROBES[0]).log_odds == first.filter.judge(PROBES[0]).log_odds


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


def test_a_users_own_votes_follow_the_order_of_the_log(nodes: Site) -> None:
    """A vote that came in below one that was in force already counts for its user too."""
    node, other = nodes.node(), nodes.node()
    teach(node.filter, MAIL[:40])
    nodes.converge()
    teach(other.filter, [("spam", raw) for _, raw in MAIL[40:50]], "anna")
    teach(node.filter, [MAIL[50]], "anna")
    before = node.filter.judge(PROBES[0], user="anna")
    nodes.converge()
    after = [each.filter.judge(PROBES[0], user="anna").log_odds for each in nodes.nodes]
    assert after[0] == after[1] != before.log_odds


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


def test_how_good_mail_looked_travels_with_the_tables(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL)
    first.turn()
    first.publish()
    note = first.filter.ledger.get_meta(HAM_SCORES_KEY)
    assert note
    nodes.converge()
    assert second.filter.ledger.get_meta(HAM_SCORES_KEY) == note


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


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM spamguard.chunks WHERE number = 0", "a part of it is missing"),
        ("UPDATE spamguard.chunks SET data = 'x' WHERE number = 0", "a part of it is damaged"),
        ("UPDATE spamguard.snapshots SET bytes = bytes + 1", "a part of it has another size"),
        ("UPDATE spamguard.snapshots SET bytes = 1 << 40", "it has 1,099,511,627,776 bytes"),
    ],
)
def test_a_snapshot_that_is_not_whole_is_refused(
    nodes: Site, statement: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:20])
    first.turn()
    first.publish()
    nodes.database.query(statement.replace("1 << 40", "1::bigint << 40"))
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
    second.turn()
    assert second.exchange.alarms
    assert second.filter.ledger.get_meta(SNAPSHOT_KEY) is None
    assert not list(second.filter.directory.glob("tables-*"))
