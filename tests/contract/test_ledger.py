"""What every ledger promises, run on every implementation: add one to `SHELVES` and it must pass all of this.

Longer than 400 lines because a contract is read, and run, as a whole.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.errors import LedgerError
from spamguard.ledger import Lesson, NewVote, SqliteLedger, codec
from spamguard.records import Features, Vote

fixed = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROOT = Path(__file__).parents[2]


@dataclass
class SqliteShelf:
    """Where ledgers of one implementation stand."""

    directory: Path
    opened: list = field(default_factory=list)
    numbers: count = field(default_factory=count)

    def new(self):
        """A fresh, empty ledger."""
        return self.open(f"{next(self.numbers)}.ledger")

    def open(self, name, fingerprint="key"):
        ledger = SqliteLedger.open(self.directory / name, fingerprint, durable=False)
        self.opened.append(ledger)
        return ledger

    def code(self, name) -> str:
        """Python that opens this ledger in another process, as `ledger`."""
        path = str(self.directory / name)
        return f"from spamguard.ledger import *; from pathlib import Path; ledger = SqliteLedger.open(Path({path!r}), 'key')"

    def close(self):
        for ledger in self.opened:
            ledger.close()


SHELVES = {"sqlite": SqliteShelf}


@pytest.fixture(params=SHELVES)
def shelf(request, tmp_path):
    made = SHELVES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def ledger(shelf):
    return shelf.open("a")


def packed(*tokens: int) -> bytes:
    return codec.pack(Features(np.array(tokens, np.uint32), np.zeros(1, np.uint8), np.zeros(1, np.int16)))


def new_vote(label, digest=b"d", user="", *, tokens=(1, 2), extractor=1) -> NewVote:
    return NewVote(digest, user, label, packed(*tokens), b"\1\0", "cli", 1_700_000_000, extractor)


def told(label, digest=b"d", user="", clock=1, *, node="elsewhere", extractor=1) -> Vote:
    features = packed(clock) if label else b""
    return Vote(digest, user, clock, node, label, features, b"", "folder", 5, extractor)


def fold(tables: dict[bytes, Lesson], found) -> int:
    """Folds changes into tables as a reader does, and gives the last seq; wrong subtraction is an assertion."""
    last = 0
    for seq, before, after in found:
        assert seq > last
        last = seq
        if before is not None:
            assert tables.pop(before.digest) == before
        if after is not None:
            assert after.digest not in tables
            tables[after.digest] = after
    return last


def lessons(ledger, **kwargs) -> dict[bytes, Lesson]:
    found = list(ledger.lessons(**kwargs))
    assert [one.digest for one in found] == sorted({one.digest for one in found})
    return {one.digest: one for one in found}


# Voting


def test_a_new_ledger_is_empty(ledger):
    assert ledger.last_seq() == 0
    assert list(ledger.changes_after(0)) == list(ledger.lessons()) == list(ledger.votes()) == []
    assert ledger.vote(b"d", "") is None
    assert ledger.lesson_counts() == ledger.classes() == {}
    assert ledger.append([]) == []
    assert ledger.merge([]) == ledger.compact(9) == 0


def test_a_vote_is_kept_as_it_was_cast(ledger):
    cast = new_vote("spam", user="anna")
    assert ledger.append([cast]) == [True]
    kept = ledger.vote(b"d", "anna")
    assert kept == Vote(b"d", "anna", 1, ledger.node, "spam", cast.packed, cast.scores, "cli", 1_700_000_000, 1)
    assert list(ledger.votes()) == [kept]
    assert lessons(ledger) == {b"d": Lesson(b"d", "spam", cast.packed, cast.scores)}


def test_teaching_twice_and_forgetting_twice_succeed_and_change_nothing(ledger):
    assert ledger.append([new_vote("spam")]) == [True]
    assert ledger.append([new_vote("spam", tokens=(9,))]) == [False]
    assert ledger.append([new_vote(None)]) == [True]
    assert ledger.append([new_vote(None)]) == [False]
    assert ledger.append([new_vote(None, digest=b"never taught")]) == [False]
    assert ledger.last_seq() == 2


def test_later_votes_of_a_batch_see_earlier_ones(ledger):
    batch = [new_vote("spam"), new_vote("spam"), new_vote("ham"), new_vote("spam", user="anna"), new_vote(None), new_vote(None)]
    assert ledger.append(batch) == [True, False, True, True, True, False]
    assert [vote.clock for vote in ledger.votes()] == [1, 2, 3, 4]
    assert lessons(ledger)[b"d"].label == "spam"


def test_votes_are_cast_in_view_of_what_nobody_else_changes_meanwhile(ledger):
    with ledger.alone() as cast:
        assert ledger.vote(b"d", "") is None
        assert cast([new_vote("spam")]) == [True]
        assert cast([new_vote("spam"), new_vote("ham")]) == [False, True]
    with pytest.raises(LedgerError), ledger.alone() as cast:
        cast([new_vote("news"), new_vote("news", digest=b"")])
    assert ledger.vote(b"d", "").label == "ham"
    assert ledger.append([new_vote("spam")]) == [True]
    assert [vote.clock for vote in ledger.votes()] == [1, 2, 3]


def test_what_gives_way_to_anything_that_its_user_has_ever_said(ledger):
    ledger.append([new_vote("spam"), new_vote("spam", digest=b"taken back"), new_vote(None, digest=b"taken back")])
    batch = [new_vote("ham"), new_vote("ham", digest=b"taken back"), new_vote("ham", digest=b"new"), new_vote("spam", digest=b"new")]
    assert ledger.append(batch, unheard=True) == [False, False, True, False]
    assert ledger.append([new_vote("ham", user="somebody else")], unheard=True) == [True]


def test_a_vote_that_is_taken_back_keeps_no_features(ledger):
    ledger.append([new_vote("spam"), new_vote(None)])
    standing = ledger.vote(b"d", "")
    assert standing.label is None
    assert standing.packed == standing.scores == b""
    assert lessons(ledger) == {}
    assert ledger.append([new_vote("spam")]) == [True]


def test_the_same_label_with_features_of_a_newer_extractor_is_news(ledger):
    assert ledger.append([new_vote("spam")]) == [True]
    assert ledger.append([new_vote("spam", extractor=2)]) == [True]
    assert ledger.append([new_vote("spam", extractor=1)]) == [False]
    assert lessons(ledger, extractor=1) == {}
    assert lessons(ledger, extractor=2)[b"d"].label == "spam"
    assert ledger.lesson_counts(extractor=1) == {}
    assert ledger.lesson_counts(extractor=2) == {"spam": 1}


def test_lesson_counts(ledger):
    ledger.append([new_vote(label, digest=bytes([index])) for index, label in enumerate(["spam", "ham", "ham", "spam", "ham"], 1)])
    ledger.append([new_vote("spam", digest=b"\2", user="anna"), new_vote(None, digest=b"\1")])
    assert ledger.lesson_counts() == {"ham": 2, "spam": 1}


@pytest.mark.parametrize("bad", [new_vote("spam", user="\udc80"), new_vote("spam", extractor=2**70), new_vote("spam", digest=b"")])
def test_a_value_that_cannot_be_kept_fails_the_whole_batch(ledger, bad):
    with pytest.raises(LedgerError):
        ledger.append([new_vote("spam"), bad])
    assert ledger.last_seq() == 0
    assert ledger.append([new_vote("spam")]) == [True]


# Folding


def test_changes_tell_before_and_after(ledger):
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote(None)])
    spam, ham = (Lesson(b"d", label, packed(1, 2), b"\1\0") for label in ("spam", "ham"))
    assert list(ledger.changes_after(0)) == [(1, None, spam), (2, spam, ham), (3, ham, None)]
    assert list(ledger.changes_after(1)) == [(2, spam, ham), (3, ham, None)]
    assert list(ledger.changes_after(1, limit=1)) == [(2, spam, ham)]
    assert list(ledger.changes_after(3)) == []


def test_a_reader_ahead_of_the_ledger_is_told(ledger):
    ledger.append([new_vote("spam")])
    with pytest.raises(LedgerError, match="again from the first"):
        list(ledger.changes_after(2))


def test_walks_over_many_events_while_the_same_object_writes(ledger):
    ledger.append([new_vote(("spam", "ham")[index % 2], digest=index.to_bytes(2)) for index in range(1, 701)])
    tables, seen = {}, 0
    for change in ledger.changes_after(0):
        seen += 1
        fold(tables, [change])
        if seen % 100 == 0:
            ledger.append([new_vote("news", digest=seen.to_bytes(2))])
    assert seen == 700
    for _ in zip(ledger.votes(), ledger.lessons(), strict=False):
        ledger.set_meta("note", "x")
    fold(tables, ledger.changes_after(700))
    assert tables == lessons(ledger)
    assert ledger.lesson_counts() == {"spam": 343, "ham": 350, "news": 7}


def test_lessons_as_of_an_earlier_event(ledger):
    ledger.append([new_vote("spam"), new_vote("ham", digest=b"e"), new_vote("ham"), new_vote(None, digest=b"e")])
    for upto in range(5):
        tables = {}
        fold(tables, ledger.changes_after(0, limit=upto))
        assert lessons(ledger, upto_seq=upto) == tables


votes_from_anywhere = st.lists(
    st.builds(
        told,
        st.sampled_from(["spam", "ham", "news", None]),
        st.sampled_from([b"d", b"e"]),
        st.sampled_from(["", "anna", "bert"]),
        st.integers(1, 5),
        node=st.sampled_from("mn"),
        extractor=st.sampled_from([1, 2]),
    ),
    max_size=12,
    unique_by=lambda vote: (vote.digest, vote.user, vote.version),
)


@fixed
@given(votes_from_anywhere, st.randoms(use_true_random=False), st.integers(0, 12))
def test_merging_in_any_order_and_twice_gives_the_same_lessons(shelf, votes, shuffler, cut):
    first, second = shelf.new(), shelf.new()
    assert first.merge(votes) == len(votes)
    shuffled = votes[:]
    shuffler.shuffle(shuffled)
    second.merge(shuffled[:cut])
    assert second.merge(shuffled) == len(votes) - len(shuffled[:cut])
    assert second.merge(iter(votes)) == 0
    for extractor in (None, 1, 2):
        tables = {}
        fold(tables, second.changes_after(0, extractor=extractor))
        assert tables == lessons(first, extractor=extractor) == lessons(second, extractor=extractor)


def test_two_nodes_that_exchange_their_logs_agree(shelf):
    here, there = shelf.open("here"), shelf.open("there")
    assert here.node != there.node
    here.append([new_vote("spam"), new_vote("spam", digest=b"e", user="anna")])
    there.append([new_vote("ham", digest=b"e", user="bert"), new_vote("ham"), new_vote(None)])
    assert here.merge(there.votes()) == 3
    assert there.merge(here.votes()) == 2
    assert lessons(here) == lessons(there)
    assert here.vote(b"d", "") == there.vote(b"d", "")


def test_the_clock_rises_to_the_highest_seen(ledger):
    ledger.merge([told("ham", clock=40)])
    assert ledger.append([new_vote("spam")]) == [True]
    assert ledger.vote(b"d", "").clock == 41
    assert ledger.merge([told("ham", clock=7, node="late")]) == 1
    assert ledger.vote(b"d", "").label == "spam"


@pytest.mark.parametrize("clock", [0, -1, 2**62, 2**80])
def test_an_impossible_clock_is_refused(ledger, clock):
    with pytest.raises(LedgerError, match="clock"):
        ledger.merge([told(None, clock=clock)])


def test_an_unreadable_receipt_from_elsewhere_is_refused(ledger):
    damaged = told("ham").packed[:-1]
    with pytest.raises(LedgerError, match="damaged"):
        ledger.merge([told("ham", b"e"), Vote(b"d", "", 1, "n", "ham", damaged, b"", "", 0, 1)])
    assert ledger.last_seq() == 0


# Growing


def test_grown_is_true_once_after_each_change_here(ledger):
    assert not ledger.grown()
    writes = [
        lambda: ledger.append([new_vote("spam")]),
        lambda: ledger.merge([told("ham", clock=9)]),
        lambda: ledger.define_class("spam", True),
        lambda: ledger.set_meta("note", "x"),
        lambda: ledger.append([new_vote(None), new_vote("ham")]),
    ]
    for write in writes:
        write()
        assert ledger.grown()
        assert not ledger.grown()
    ledger.append([new_vote("ham")])
    ledger.merge([told("ham", clock=9)])
    assert not ledger.grown()
    assert ledger.compact(4) == 3
    assert ledger.grown()
    assert ledger.compact(4) == 0
    assert not ledger.grown()


def test_first_scores_are_those_of_the_oldest_vote_in_force(ledger):
    def first(label, scores, user=""):
        ledger.append([NewVote(b"d", user, label, packed(1), scores, "cli", 5, 1)])
        return ledger.first_scores([b"other", b"d"]).get(b"d")

    assert ledger.first_scores([b"d"]) == {}
    assert first("spam", b"\1\0") == b"\1\0"
    assert first("ham", b"\2\0", "anna") == b"\1\0"
    assert first("ham", b"\3\0") == b"\2\0"
    assert first(None, b"", "anna") == b"\3\0"
    assert first(None, b"") is None
    assert first("spam", b"") == b""
    assert ledger.first_scores([b"other"]) == ledger.first_scores([]) == {}


def test_scored_lessons_come_as_first_heard_of_each_once(ledger):
    def vote(label, digest, user="", scores=b"\1\0", extractor=1) -> NewVote:
        return NewVote(digest, user, label, packed(1), scores, "cli", 5, extractor)

    ledger.append([vote("spam", b"z", "anna"), vote("ham", b"y"), vote("ham", b"x", scores=b""), vote("ham", b"w", extractor=2)])
    ledger.append([vote("ham", b"z", "anna", b"\2\0"), vote("ham", b"z", "ben", b"\3\0")])
    ledger.append([vote(None, b"y"), vote("ham", b"v", scores=b"\4\0")])
    ledger.append([vote("spam", digest.to_bytes(2)) for digest in range(300)])  # more than are read at a time
    assert list(ledger.scored_lessons(1)) == [("ham", b"\2\0"), ("ham", b"\4\0"), *[("spam", b"\1\0")] * 300]


def test_scored_lessons_are_each_told_once_although_votes_come_meanwhile(ledger):
    def vote(label, number) -> NewVote:
        return NewVote(number.to_bytes(2), "", label, packed(1), b"\1\0", "cli", 5, 1)

    ledger.append([vote("spam", number) for number in range(300)])
    walk = ledger.scored_lessons(1)
    found = [next(walk)]
    ledger.append([vote("ham", 0), vote("ham", 299), vote("ham", 300)])
    assert len([*found, *walk]) == 300


def test_touched_tells_of_events_on_one_message_between_two_others(ledger):
    for digest in (b"a", b"b", b"a"):
        ledger.append([new_vote("spam" if ledger.last_seq() else "ham", digest)])
    for after, before, touched in ((0, 2, True), (1, 3, False), (1, 4, True), (0, 1, False), (3, 9, False)):
        assert ledger.touched(b"a", after, before) is touched
    assert not ledger.touched(b"c", 0, 9)


def test_grown_is_true_once_after_a_change_elsewhere(shelf, ledger):
    other = shelf.open("a")
    for label in ("spam", "ham"):
        other.append([new_vote(label)])
        assert ledger.grown()
        assert not ledger.grown()
    assert ledger.vote(b"d", "").label == "ham"
    other.append([new_vote("ham")])
    assert not ledger.grown()


# Compacting


def test_compact_drops_what_was_superseded_and_keeps_tombstones(ledger):
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote(None), new_vote("ham", digest=b"e")])
    assert ledger.compact(2) == 1
    assert ledger.compact(4) == 1
    assert ledger.compact(4) == 0
    assert [vote.label for vote in ledger.votes()] == [None, "ham"]
    ledger.merge([told("spam", clock=1, node="late")])
    assert list(lessons(ledger)) == [b"e"]


@pytest.mark.parametrize("late", [told("spam", clock=2, node="m"), told("spam", clock=1, node="z")])
def test_compact_goes_by_version_not_by_arrival(ledger, late):
    ledger.merge([told("ham", clock=2, node="n")])
    ledger.merge([late])
    ledger.append([new_vote("news", digest=b"e")])
    assert ledger.compact(3) == 1
    assert [vote.label for vote in ledger.votes()] == ["ham", "news"]


def test_a_number_is_never_given_twice(ledger):
    ledger.append([new_vote("spam")])
    ledger.append([new_vote("ham")])
    ledger.merge([told("spam", clock=1, node="late")])
    assert ledger.compact(3) == 1  # the late one is superseded too, but it carries the highest number
    ledger.append([new_vote("news")])
    assert ledger.last_seq() == 4


def test_a_reader_that_had_folded_less_starts_again(ledger):
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote("ham", digest=b"e")])
    ledger.compact(3)
    with pytest.raises(LedgerError, match="again from the first"):
        list(ledger.changes_after(1))
    with pytest.raises(LedgerError, match="again from the first"):
        list(ledger.lessons(upto_seq=2))
    tables = {}
    assert fold(tables, ledger.changes_after(0)) == 3
    assert tables == lessons(ledger)


@fixed
@given(votes_from_anywhere, st.integers(0, 12), st.integers(0, 12), st.sampled_from([None, 1, 2]))
def test_compacting_changes_nothing_for_readers_that_had_folded_as_much(shelf, votes, cut, behind, extractor):
    whole, compacted = shelf.new(), shelf.new()
    for ledger in (whole, compacted):
        ledger.merge(votes[:cut])
    folded = compacted.last_seq()
    tables = {}
    fold(tables, compacted.changes_after(0, extractor=extractor))
    compacted.compact(max(folded - behind, 0))
    for ledger in (whole, compacted):
        ledger.merge(votes[cut:])
    assert list(compacted.changes_after(folded, extractor=extractor)) == list(whole.changes_after(folded, extractor=extractor))
    fold(tables, compacted.changes_after(folded, extractor=extractor))
    from_nothing = {}
    fold(from_nothing, compacted.changes_after(0, extractor=extractor))
    assert tables == from_nothing == lessons(compacted, extractor=extractor) == lessons(whole, extractor=extractor)


# Classes, notes, key


def test_classes(shelf, ledger):
    ledger.define_class("spam", True)
    ledger.define_class("ham", False)
    ledger.define_class("news", True)
    ledger.define_class("news", False)
    assert shelf.open("a").classes() == {"ham": False, "news": False, "spam": True}


def test_meta(shelf, ledger):
    assert ledger.get_meta("settled") is None
    ledger.set_meta("settled", "7")
    ledger.set_meta("settled", "8 ünïcode")
    assert shelf.open("a").get_meta("settled") == "8 ünïcode"
    with pytest.raises(LedgerError, match="its own"):
        ledger.set_meta("ledger.clock", "0")


def test_what_was_written_is_there_after_reopening(shelf):
    with shelf.open("b") as ledger:
        ledger.append([new_vote("spam")])
        node = ledger.node
    again = shelf.open("b")
    assert again.node == node
    assert again.append([new_vote("spam")]) == [False]
    again.append([new_vote("ham")])
    assert again.vote(b"d", "").clock == 2


def test_another_key_is_refused(shelf, ledger):
    with pytest.raises(LedgerError, match=r"taught with key key.* restore its key"):
        shelf.open("a", "another")


def test_a_closed_ledger_says_so(ledger):
    ledger.close()
    for call in (lambda: ledger.append([new_vote("spam")]), ledger.last_seq, ledger.grown):
        with pytest.raises(LedgerError, match="closed"):
            call()


# Several processes

APPENDS = """
import sys
me = sys.argv[1]
for batch in range(30):
    votes = [NewVote(b"shared%d" % (batch % 5), me, "spam" if batch % 2 else "ham", b"", b"", "", 0, 1)]
    votes += [NewVote(f"{me} {batch} {index}".encode(), "", "spam", b"x" * 900, b"", "", 0, 1) for index in range(4)]
    ledger.append(votes)
    ledger.grown() and list(ledger.changes_after(0, limit=20))
ledger.close()
"""


def test_four_processes_that_create_and_append_at_once_lose_nothing(shelf):
    code = shelf.code("busy") + APPENDS
    workers = [subprocess.Popen([sys.executable, "-c", code, name], cwd=ROOT, stderr=subprocess.PIPE) for name in "abcd"]
    for worker in workers:
        assert worker.communicate(timeout=60)[1] == b""
        assert worker.returncode == 0
    ledger = shelf.open("busy")
    votes = list(ledger.votes())
    assert len({vote.clock for vote in votes}) == len(votes) == ledger.last_seq()
    assert [vote.clock for vote in votes] == sorted(vote.clock for vote in votes)
    own = {vote.digest for vote in votes if vote.user == ""}
    assert own == {f"{name} {batch} {index}".encode() for name in "abcd" for batch in range(30) for index in range(4)}
    assert len(votes) == 480 + 4 * 30  # five shared digests, and the label turns at every visit
    tables = {}
    fold(tables, ledger.changes_after(0))
    assert tables == lessons(ledger)
