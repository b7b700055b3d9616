"""Several nodes and one log, in any order of events: in the end all hold the same.

The database is a list of rows here, with the rule that an event which is there already keeps its
position. It may lose its last rows, as after a failover, or all of them. State directories are
copied, and both copies go on. A second program of each node casts votes and is killed before it
waits for them. Readers fold each node's log all the while.
"""

import shutil
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spamguard.errors import LedgerError
from spamguard.ledger import sqlite
from spamguard.ledger.arriving import with_unique_node
from spamguard.ledger.events import START, decode_event
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.records import Vote
from tests.contract.ledgers import fold, lessons, new_vote, push

LABELS = st.sampled_from(["spam", "ham", None])
DIGESTS = st.sampled_from([b"d", b"e", b"f"])
USERS = st.sampled_from(["", "anna"])


class KilledProgram(SqliteLedger):
    """What casts votes and ends before they have a position."""

    def _pushing(self):
        return nullcontext()


class Reader:
    """Folds one node's log by changes, as the tables do."""

    def __init__(self, path: Path) -> None:
        self.ledger = SqliteLedger.open(path, "key", durable=False)
        self.reset()

    def reset(self):
        self.tables, self.seq, self.state = {}, 0, self.ledger.read_end()[1]

    def catch_up(self, disturb=lambda: None):
        """disturb: called after the first change."""
        _, state = self.ledger.read_end()
        if self.ledger.valid_upto(self.seq, self.state) < self.seq:
            self.reset()
        self.state = state
        for number, change in enumerate(self.ledger.changes_after(self.seq, state=state)):
            self.seq = fold(self.tables, [change])
            if number == 0:
                disturb()

    def check(self):
        try:
            self.catch_up()
        except LedgerError:
            self.reset()
            self.catch_up()
        assert self.tables == lessons(self.ledger)


class Node:
    """A node, and the votes that it has acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = SqliteLedger.open(path, "key", durable=False)
        if self.ledger.shared is None:
            self.ledger.join()
        self.log = self.ledger.shared
        self.reader = Reader(path)

    def close(self):
        self.ledger.close()
        self.reader.ledger.close()

    def look_for_fork(self, rows):
        """As the courier does: cut behind the last position that both have."""
        chains = {row.position: row.chain for row in rows} | {0: START.chain}
        common = next(
            mark for mark in [*self.log.marks(), START] if chains.get(mark.position) == mark.chain
        )
        self.log.cut(common.position)

    def pull(self, rows, number):
        self.look_for_fork(rows)
        at = self.log.head().position
        assert self.log.apply(rows[at : at + number]) == []

    def push(self, rows, number):
        push(rows, self.log.read_pending(number, 1 << 20))

    def events(self):
        return self.ledger._db.query("SELECT * FROM events ORDER BY seq")


class Cluster(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.directory = TemporaryDirectory()
        self.names = count()
        self.rows = []
        self.nodes: list[Node] = []
        self.acknowledged: set[Vote] = set()
        self.has_copies = False
        self.usual, sqlite._READ_BATCH = sqlite._READ_BATCH, 2

    @initialize(votes=st.lists(st.tuples(LABELS, DIGESTS, USERS), max_size=4))
    def begin(self, votes):
        """Two nodes; the first one was alone before, and has learnt something."""
        first = self.new_path()
        with SqliteLedger.open(first, "key", durable=False) as alone:
            alone.append([new_vote(*vote) for vote in votes])
            alone.define_class("news", True)
        self.nodes = [Node(first), Node(self.new_path())]
        self.remember(self.nodes[0].ledger)

    def new_path(self):
        return Path(self.directory.name) / f"{next(self.names)}"

    def node(self, number) -> Node:
        return self.nodes[number % len(self.nodes)]

    def remember(self, ledger):
        """The votes that are there now have been acknowledged."""
        self.acknowledged |= {
            decode_event(event) for event in ledger.shared.read_pending(999, 1 << 30)
        }

    @rule(
        number=st.integers(0, 9), vote=st.tuples(LABELS, DIGESTS, USERS), tokens=st.integers(1, 3)
    )
    def cast(self, number, vote, tokens):
        ledger = self.node(number).ledger
        ledger.append([new_vote(*vote, tokens=(tokens, 9))])
        self.remember(ledger)

    @rule(number=st.integers(0, 9), vote=st.tuples(LABELS, DIGESTS, USERS))
    def cast_and_be_killed(self, number, vote):
        with KilledProgram.open(self.node(number).path, "key", durable=False) as ledger:
            ledger.append([new_vote(*vote, tokens=(7,)), new_vote("spam", b"g")])
            self.remember(ledger)

    @rule(number=st.integers(0, 9), name=st.sampled_from(["news", "ads"]), unwanted=st.booleans())
    def define(self, number, name, unwanted):
        ledger = self.node(number).ledger
        ledger.define_class(name, unwanted)
        self.remember(ledger)

    @rule(number=st.integers(0, 9), other=st.integers(0, 9))
    def exchange(self, number, other):
        """What a node has is exported and imported elsewhere."""
        ledger = self.node(number).ledger
        ledger.merge(self.node(other).ledger.all_votes())
        self.remember(ledger)

    @rule(number=st.integers(0, 9), events=st.integers(1, 5))
    def push(self, number, events):
        self.node(number).look_for_fork(self.rows)
        self.node(number).push(self.rows, events)

    @rule(number=st.integers(0, 9), events=st.integers(1, 5))
    def pull(self, number, events):
        self.node(number).pull(self.rows, events)

    @rule(number=st.integers(0, 9), since=st.sampled_from([None, 5]))
    def note_away(self, number, since):
        self.node(number).log.set_away(since)

    @rule(kept=st.integers(0, 9))
    def fail_over(self, kept):
        """Another server takes over, without the last rows."""
        del self.rows[kept:]

    @precondition(lambda self: len(self.nodes) < 4)
    @rule(number=st.integers(0, 9))
    def copy(self, number):
        """A state directory is copied, and both copies are used."""
        path = self.new_path()
        node = self.node(number)
        node.ledger._db.query("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(node.path, path)
        self.nodes.append(Node(path))
        self.has_copies = True

    @rule(number=st.integers(0, 9), events=st.integers(1, 5))
    def pull_while_a_reader_reads(self, number, events):
        reader = self.node(number).reader
        try:
            reader.catch_up(lambda: self.pull(number, events))
        except LedgerError:
            reader.reset()

    @rule(number=st.integers(0, 9))
    def read(self, number):
        self.node(number).reader.check()

    @invariant()
    def what_waits_counts_while_the_log_is_away(self):
        for node in self.nodes:
            counts_here = node.ledger.last_seq() >= sqlite.PROVISIONAL
            assert counts_here == (node.log.state().away != "" and self.has_provisional(node))

    @staticmethod
    def has_provisional(node):
        ((last,),) = node.ledger._db.query("SELECT coalesce(max(seq), 0) FROM events")
        return last >= sqlite.PROVISIONAL

    def teardown(self):
        try:
            if self.nodes:
                self.nodes.append(Node(self.new_path()))  # which holds what the log says, no more
                self.heal_and_compare()
        finally:
            sqlite._READ_BATCH = self.usual
            for node in self.nodes:
                node.close()
            self.directory.cleanup()

    def heal_and_compare(self):
        for _ in range(3):
            for node in self.nodes:
                node.look_for_fork(self.rows)
                node.push(self.rows, 999)
                node.pull(self.rows, 999)
        fresh = self.nodes[-1]
        for node in self.nodes:
            assert node.log.waiting() == (0, 0)
            assert node.events() == fresh.events()
            assert node.ledger.classes() == fresh.ledger.classes()
            node.reader.check()
        there = set(fresh.ledger.all_votes())
        for vote in self.acknowledged:
            assert vote in there or with_unique_node(vote) in there
        if not self.has_copies:
            assert there == self.acknowledged
            assert len(self.rows) == len(there)


TestCluster = Cluster.TestCase
TestCluster.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
