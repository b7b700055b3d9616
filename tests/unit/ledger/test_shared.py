"""The copy of a shared log in a ledger: positions, what waits for one, and what readers see."""

from pathlib import Path

import pytest

from spamguard.errors import LedgerError
from spamguard.ledger.arriving import with_unique_node
from spamguard.ledger.events import MAX_BODY_BYTES, START, LogRow, Mark, decode_event, encode_event
from spamguard.ledger.schema import PROVISIONAL
from spamguard.ledger.senders import SenderWord, SenderWords, make_sender_vote
from spamguard.ledger.shared import ForkError
from spamguard.ledger.sqlite import SqliteLedger
from tests.contract.ledgers import foreign_vote, lessons, new_vote, packed, push


class Nodes:
    """Ledgers of nodes, and the log that they share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: list[LogRow] = []
        self.opened: list[SqliteLedger] = []

    def open(self, name: str) -> SqliteLedger:
        ledger = SqliteLedger.open(self.directory / name, "key", durable=False)
        self.opened.append(ledger)
        return ledger

    def new(self, name: str) -> SqliteLedger:
        ledger = self.open(name)
        ledger.join()
        return ledger

    def append(self, *votes) -> None:
        push(self.rows, [encode_event(vote) for vote in votes])

    def push(self, ledger) -> None:
        push(self.rows, ledger.shared.read_pending(1000, 1 << 30))

    def pull(self, ledger, number=1000):
        at = ledger.shared.head().position
        return ledger.shared.apply(self.rows[at : at + number])

    def turn(self, ledger):
        self.pull(ledger)
        self.push(ledger)
        return self.pull(ledger)


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    yield made
    for ledger in made.opened:
        ledger.close()


@pytest.fixture
def node(nodes):
    return nodes.new("a")


def seqs(ledger):
    return [seq for (seq,) in ledger._db.query("SELECT seq FROM events ORDER BY seq")]


# ---- joining and leaving


def test_joining_makes_all_that_was_learnt_wait(nodes):
    ledger = nodes.open("a")
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote("ham", digest=b"e")])
    ledger.compact(3)
    ledger.define_class("news", True)
    ledger.set_meta("tables.3", "numbers of events")
    ledger.set_meta("bits", "12")
    before, old_node = list(ledger.all_votes()), ledger.node
    taught = lessons(ledger, extractor=1)
    ledger.join()
    assert list(ledger.all_votes())[:2] == before
    assert lessons(ledger, extractor=1) == taught
    assert ledger.node != old_node
    assert ledger.get_meta("tables.3") is None
    assert ledger.get_meta("bits") == "12"
    assert ledger.last_seq() == max(seqs(ledger)) > PROVISIONAL
    assert ledger.last_position() == 0
    assert ledger.event_count() == 3
    nodes.turn(ledger)
    assert seqs(ledger) == [1, 2, 3]
    assert ledger.last_seq() == 3
    other = nodes.new("b")
    nodes.pull(other)
    assert lessons(other, extractor=1) == taught
    assert other.classes() == {"news": True}


def test_a_ledger_that_cannot_join_is_left_as_it_was(nodes):
    ledger = nodes.open("a")
    ledger.append([new_vote("spam"), new_vote("ham")._replace(origin="x" * MAX_BODY_BYTES)])
    before = list(ledger.all_votes())
    with pytest.raises(LedgerError, match="no shared log can hold it"):
        ledger.join()
    assert nodes.open("a").shared is None
    assert list(ledger.all_votes()) == before


def test_leaving(nodes, node):
    node.append([new_vote("spam")])
    with pytest.raises(LedgerError, match="1 events have not reached"):
        node.shared.leave()
    nodes.turn(node)
    node.append([new_vote("ham"), new_vote("ham", digest=b"e")])
    taught = lessons(node)
    node.shared.leave(force=True)
    alone = nodes.open("a")
    assert alone.shared is None
    assert len(seqs(alone)) == 3
    assert lessons(alone) == taught
    last = alone.last_seq()
    alone.append([new_vote("news")])
    assert alone.last_seq() == last + 1 < PROVISIONAL
    alone.join()  # what has been pushed before is known there
    nodes.turn(alone)
    other = nodes.new("b")
    nodes.pull(other)
    assert lessons(other) == lessons(alone)
    assert len(nodes.rows) == len(list(other.all_votes())) == 4


# ---- applying


def test_rows_that_do_not_go_on_change_nothing(nodes, node):
    nodes.append(*(foreign_vote("spam", b"d", clock=clock) for clock in range(1, 5)))
    nodes.pull(node, 2)
    third, fourth = nodes.rows[2:]
    for rows, problem in (
        ([fourth], "does not go on from position 2"),
        ([third, fourth._replace(position=5)], "does not go on from position 3"),
        ([third, fourth._replace(chain=b"x")], "does not go on from position 3"),
        ([third, fourth._replace(event=third.event)], "does not go on from position 3"),
        ([nodes.rows[1]._replace(chain=b"x")], "another row at position 2"),
    ):
        with pytest.raises(ForkError, match=problem):
            node.shared.apply(rows)
        assert node.shared.head() == Mark(2, nodes.rows[1].chain)
        assert seqs(node) == [1, 2]
    assert nodes.pull(node) == []


def test_where_the_log_was_compacted_it_may_have_gaps(nodes, node):
    nodes.append(*(foreign_vote("spam", b"d", clock=clock) for clock in range(1, 9)))
    kept = [nodes.rows[number - 1] for number in (2, 3, 7, 8)]
    with pytest.raises(ForkError):
        node.shared.apply(kept, 3)
    with pytest.raises(ForkError):
        node.shared.apply([kept[0], kept[1]._replace(chain=b"x")], 6)
    assert node.shared.apply(kept, 6) == []
    assert seqs(node) == [2, 3, 7, 8]
    assert node.shared.head() == Mark(8, nodes.rows[-1].chain)
    with pytest.raises(ForkError):
        node.shared.apply([nodes.rows[7]._replace(position=10)], 6)
    with pytest.raises(ForkError, match="does not go on"):
        node.shared.apply([nodes.rows[7]._replace(position=PROVISIONAL)], 2**63 - 1)


def test_marks_are_the_last_and_every_thousandth(nodes, node, monkeypatch):
    votes = [foreign_vote(None, b"d", clock=clock) for clock in range(1, 2503)]
    nodes.append(*votes)
    for _ in range(26):
        nodes.pull(node, 100)
    positions = [mark.position for mark in node.shared.marks()]
    assert positions == [*range(2502, 1502, -1), 1000]
    assert node.shared.holds_mark(Mark(1000, nodes.rows[999].chain))
    assert not node.shared.holds_mark(Mark(1000, b"x"))
    assert not node.shared.holds_mark(Mark(999, nodes.rows[998].chain))
    assert node.shared.holds_mark(START)
    assert node.shared.apply(nodes.rows[900:910]) == []  # they are there, without their marks
    assert node.last_position() == 2502


def test_of_two_votes_of_one_version_the_earlier_position_keeps_it(nodes, node):
    """Whatever waits where: the outcome is a function of the log alone."""
    clone = nodes.new("b")
    clone.close()
    (nodes.directory / "b").write_bytes(b"")
    node._db.query("PRAGMA wal_checkpoint(TRUNCATE)")
    (nodes.directory / "b").write_bytes(node.path.read_bytes())
    clone = nodes.open("b")
    assert clone.node == node.node
    node.append([new_vote("spam", tokens=(1,))])
    clone.append([new_vote("ham", tokens=(2,))])
    first, second = (next(ledger.all_votes()) for ledger in (node, clone))
    assert first.version == second.version
    nodes.push(node)
    nodes.pull(clone)  # its own vote is in the way
    assert list(clone.all_votes()) == [first, with_unique_node(second)]
    assert [decode_event(event) for event in clone.shared.read_pending(9, 999)] == [second]
    nodes.turn(clone)
    nodes.pull(node)
    fresh = nodes.new("c")
    nodes.pull(fresh)
    for ledger in (node, clone, fresh):
        assert list(ledger.all_votes()) == [first, with_unique_node(second)]
        assert seqs(ledger) == [1, 2]
        assert ledger.get_vote(b"d", "").label == "ham"
    assert len(nodes.rows) == 2


def test_a_vote_that_comes_in_two_shapes_is_one(nodes, node):
    vote, other = foreign_vote("spam"), foreign_vote("ham")._replace(packed=packed(9))
    nodes.append(vote, with_unique_node(other), other)
    nodes.pull(node)
    assert list(node.all_votes()) == [vote, with_unique_node(other)]
    assert node.last_position() == 3


def test_a_third_vote_of_a_version_that_is_made_up_is_skipped(nodes, node):
    vote, other = foreign_vote("spam"), foreign_vote("ham")._replace(packed=packed(9))
    made_up = with_unique_node(other)._replace(label="spam")
    nodes.append(vote, made_up, other)
    assert nodes.pull(node) == [(3, "its version is taken by other votes")]
    long = foreign_vote("spam", b"e", node="n" * 250)
    nodes.append(long, long._replace(label="ham"))
    assert nodes.pull(node) == [(5, "its version is taken by other votes")]
    node.shared.cut(0)
    nodes.turn(node)
    assert seqs(node) == [1, 2, 4]


# ---- readers


# ---- classes


def test_classes_follow_the_winning_vote(nodes, node):
    other = nodes.new("b")
    node.define_class("news", True)
    assert node.classes() == {"news": True}
    node.define_class("news", True)
    assert node.shared.waiting()[0] == 1
    nodes.turn(node)
    other.define_class("news", False)
    nodes.turn(other)
    for ledger in (node, other):
        nodes.pull(ledger)
        ((label,),) = ledger._db.query(
            "SELECT label FROM events ORDER BY clock DESC, node DESC LIMIT 1"
        )
        assert ledger.classes() == {"news": label == "(class unwanted)"}
    node.define_class("news", True)
    nodes.turn(node)
    nodes.pull(other)
    assert other.classes() == {"news": True}
    assert other.shared.classes_upto(0) == {}
    assert other.shared.classes_upto(other.last_seq()) == {"news": True}
    assert other.lesson_counts() == other.users.count_lessons() == {}
    standing = other.get_vote(b"class:news", "")
    nodes.append(standing._replace(clock=standing.clock + 1, label=None))
    nodes.pull(other)
    assert other.classes() == {}


# ---- words about senders


@pytest.mark.parametrize("name", ["news@shop.example", "shop.example"])
def test_a_word_about_a_sender_counts_on_every_node_until_one_takes_it_back(nodes, name):
    ledgers = [nodes.new(node) for node in "ab"]
    first, second = words = [SenderWords(ledger, b"k" * 32, ["mx"]) for ledger in ledgers]
    sender = first.digest("news@shop.example") + second.digest("shop.example")
    for ledger, nats in zip(ledgers, (-6, None), strict=True):
        (changed,) = ledger.append([make_sender_vote(first.digest(name), "anna", nats, "web", 1)])
        assert changed
        for node in ledgers * 2:
            nodes.turn(node)
        said = SenderWord(nats, name == "shop.example") if nats else SenderWord()
        expected = {"anna": said, "ben": SenderWord()}
        assert [each.find(sender, ["anna", "ben"]) for each in words] == [expected, expected]
