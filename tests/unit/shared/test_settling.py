"""Tables of nodes that share a log: each settles for itself, the same bits everywhere."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from spamguard.config.values import KeptLessons
from spamguard.daemon.settle import settle_if_due
from spamguard.engine import store
from spamguard.engine.snapshot import SNAPSHOT_KEY
from spamguard.engine.store import disown_tables, is_settler_wanted
from spamguard.errors import LedgerError
from spamguard.ledger.queries import UserQueries
from spamguard.ledger.schema import PROVISIONAL
from spamguard.shared.status import NodeStatus, SharedStatus, write_status
from tests.support.postgres import needs_postgres
from tests.unit.filters import READER, mail, opened, teach
from tests.unit.shared.nodes import Site, set_back

pytestmark = needs_postgres
MAIL = mail(160)
PROBES = [raw for _, raw in mail(190)[160:]]


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
    for node in nodes.nodes:
        node.settle()
        assert not is_settler_wanted(node.filter.ledger)
    assert all(node.stamp().lineage == first.stamp().lineage for node in others)
    assert len({node.tables() for node in nodes.nodes}) == 1
    assert all(node.verdicts(PROBES) == first.verdicts(PROBES) for node in others)
    assert first.filter._store.seq > first.stamp().settled, "nothing was folded online"


def test_where_to_settle_follows_from_the_log_alone(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:108])
    nodes.converge()
    assert first.settle()
    assert first.stamp().settled == 100
    teach(second.filter, MAIL[108:109])
    nodes.converge()
    assert not first.settle(), "it has not grown by a tenth"
    assert second.settle()
    assert second.stamp().lineage == first.stamp().lineage != ""
    assert not second.filter.settle_if_due(), "a command leaves it to the daemon"
    teach(second.filter, MAIL[109:110])
    nodes.converge()
    assert [node.settle() for node in nodes.nodes] == [True, True]
    assert {node.stamp().settled for node in nodes.nodes} == {110}
    assert len({node.stamp().lineage for node in nodes.nodes}) == 1


def test_what_has_no_position_is_in_force_and_in_no_snapshot(nodes: Site) -> None:
    node, other = nodes.node(), nodes.node()
    teach(node.filter, MAIL[:20])
    node.turn()
    assert node.settle()
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
    for each in nodes.nodes:
        each.settle()
    assert node.tables() == other.tables()
    assert node.filter._store.seq == 43


# ---- log and tables that do not fit


def test_old_tables_judge_until_there_are_new_ones(
    nodes: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database was lost; the nodes fill an empty one, which takes a while."""
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    first.turn()
    first.settle()
    teach(second.filter, MAIL[60:65])
    nodes.converge()
    before = first.verdicts(PROBES)
    set_back(nodes.database, 0)
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 20)
    disown_tables(first.filter.ledger, first.filter.ledger.get_meta(SNAPSHOT_KEY))
    first.log.cut(0)
    assert first.verdicts(PROBES) == before, "cut, but not pushed"
    assert first.filter.find_loss() is None
    assert not first.settle(), "what waits would be missing"
    with opened(first.filter.directory) as another:  # a process that begins now
        assert sum(another.status().classes.values()) == 60, "the snapshot"
    first.turn()
    assert first.verdicts(PROBES) == before
    assert first.wanted, "the process that settles is asked for"
    assert first.settle()
    assert first.stamp().settled == 60
    nodes.converge()
    second.settle()
    assert first.tables() == second.tables()
    assert first.verdicts(PROBES) == second.verdicts(PROBES)
    for node in nodes.nodes:
        assert node.filter.find_loss() is None
        teach(node.filter, [MAIL[70]])


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


def test_mail_does_not_wait_for_much_of_the_log(
    nodes: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables stand still until the process that settles has made others."""
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 20)
    first, late = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:10])
    nodes.converge()
    late.settle()
    before = late.verdicts(PROBES)
    teach(first.filter, MAIL[10:135])
    first.turn()
    late.turn()
    assert late.verdicts(PROBES) == before
    assert late.log.counts().joining
    assert late.wanted
    late.settle()
    assert late.stamp().settled == late.stamp().seq == 133
    first.settle()
    assert late.tables() == first.tables()
    assert late.verdicts(PROBES) == first.verdicts(PROBES) != before
    late.turn()
    assert not late.log.counts().joining
    teach(first.filter, MAIL[135:136])
    nodes.converge()
    assert late.tables() == first.tables()


def test_what_a_command_wants_settled_all_settle(nodes: Site) -> None:
    """An import or an undo is in force everywhere soon, due or not."""
    first, second = nodes.node(), nodes.node()
    teach(first.filter, MAIL[:60])
    nodes.converge()
    first.settle()
    teach(first.filter, MAIL[60:62])
    nodes.converge()
    assert not is_settler_wanted(first.filter.ledger)
    first.filter.settle_everywhere()
    nodes.converge()
    assert [node.settle() for node in nodes.nodes] == [True, True]
    assert first.stamp().settled == second.stamp().settled == 63
    assert first.stamp().lineage == second.stamp().lineage
    assert sum(first.filter.status().classes.values()) == 62
    assert not is_settler_wanted(first.filter.ledger)


def test_one_node_forgets_the_oldest_lessons_and_all_settle(nodes: Site) -> None:
    first, second = nodes.node(), nodes.node()
    now = time.time()
    for label, raw in MAIL[:30]:
        (vote,) = first.filter.make_votes([READER.read_example(raw)], label)
        first.filter.cast_votes([vote._replace(time=int(now) - 40 * 86_400)])
    teach(second.filter, MAIL[30:60])
    nodes.converge()
    rows = [NodeStatus(node.ledger.node, "", "", "", 0, 0, now, "") for node in nodes.nodes]
    for node in nodes.nodes:
        status = SharedStatus(node=node.ledger.node, written=now, nodes=tuple(rows))
        write_status(node.filter.directory, status)
        settle_if_due(node.filter.directory, KeptLessons(days=30))
    nodes.converge()
    for node in nodes.nodes:
        settle_if_due(node.filter.directory)
        assert sum(node.filter.status().classes.values()) == 30
    assert first.log.head().position == 60 + 30 + 1, "one has forgotten, and asked for settling"
    assert first.stamp().settled == second.stamp().settled == 91
    assert first.stamp().lineage == second.stamp().lineage


def test_mail_is_judged_while_events_move(nodes: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a node comes back with many lessons: others move them while they are read."""
    node, other = nodes.node(), nodes.node()
    teach(node.filter, MAIL[:20])
    nodes.converge()
    teach(node.filter, MAIL[20:60])
    monkeypatch.setattr("spamguard.ledger.sqlite._READ_BATCH", 8)
    read, moves = UserQueries.read_changes, list[int]()

    def read_and_move(queries: UserQueries, seq: int, *values: Any) -> Any:
        if seq >= PROVISIONAL:
            moves.append(seq)
            with monkeypatch.context() as undisturbed:
                undisturbed.setattr(UserQueries, "read_changes", read)
                teach(other.filter, [MAIL[100 + len(moves)]])
                other.turn()
            after = node.log.head().position
            node.log.apply(node.with_database(lambda database: database.read_page(after, 9)))
        return read(queries, seq, *values)

    monkeypatch.setattr(UserQueries, "read_changes", read_and_move)
    with opened(node.filter.directory) as judging:
        assert moves
        assert judging.judge(PROBES[0]).label
        assert 20 <= sum(judging.status().classes.values()) < 60
        monkeypatch.setattr(UserQueries, "read_changes", read)
        assert sum(judging.status().classes.values()) == 60 + len(moves)
    nodes.converge()
    assert node.tables() == other.tables()
