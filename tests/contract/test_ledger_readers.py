"""What every ledger promises to who reads it, in any order and while it grows or is compacted."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.errors import LedgerError
from spamguard.ledger.votes import Lesson, NewVote
from spamguard.records import Vote
from tests.contract.ledgers import fixed, fold, foreign_vote, lessons, new_vote, packed

# Folding


def test_changes_tell_before_and_after(shelf, ledger):
    first, second, third = (shelf.start + number for number in (1, 2, 3))
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote(None)])
    spam, ham = (Lesson(b"d", label, packed(1, 2), b"\1\0") for label in ("spam", "ham"))
    changes = [(first, None, spam), (second, spam, ham), (third, ham, None)]
    assert list(ledger.changes_after(0)) == changes
    assert list(ledger.changes_after(first)) == changes[1:]
    assert list(islice(ledger.changes_after(first), 1)) == changes[1:2]
    assert list(ledger.changes_after(third)) == []


def test_a_reader_ahead_of_the_ledger_is_told(shelf, ledger):
    ledger.append([new_vote("spam")])
    with pytest.raises(LedgerError, match="run `spamguard rebuild`"):
        list(ledger.changes_after(shelf.start + 2))


def test_walks_over_many_events_while_the_same_object_writes(shelf, ledger):
    ledger.append(
        [new_vote(("spam", "ham")[index % 2], digest=index.to_bytes(2)) for index in range(1, 701)]
    )
    tables, seen = {}, 0
    for change in ledger.changes_after(0):
        seen += 1
        fold(tables, [change])
        if seen % 100 == 0:
            ledger.append([new_vote("news", digest=seen.to_bytes(2))])
    assert seen == 700
    for _ in zip(ledger.all_votes(), ledger.lessons(), strict=False):
        ledger.set_meta("note", "x")
    fold(tables, ledger.changes_after(shelf.start + 700))
    assert tables == lessons(ledger)
    assert ledger.lesson_counts() == {"spam": 343, "ham": 350, "news": 7}


def test_lessons_as_of_an_earlier_event(shelf, ledger):
    ledger.append(
        [
            new_vote("spam"),
            new_vote("ham", digest=b"e"),
            new_vote("ham"),
            new_vote(None, digest=b"e"),
        ]
    )
    for upto in range(5):
        tables = {}
        fold(tables, islice(ledger.changes_after(0), upto))
        assert lessons(ledger, upto_seq=shelf.start + upto) == tables


votes_from_anywhere = st.lists(
    st.builds(
        foreign_vote,
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
    assert here.merge(there.all_votes()) == 3
    assert there.merge(here.all_votes()) == 2
    assert lessons(here) == lessons(there)
    assert here.get_vote(b"d", "") == there.get_vote(b"d", "")


def test_a_version_that_was_given_twice_is_two_votes(shelf):
    """As where a node's files were copied, or set back by a power cut or an old copy."""
    here, there = shelf.new(), shelf.new()
    assert here.node == there.node
    here.append([new_vote("spam"), new_vote("ham", digest=b"the same")])
    there.append([new_vote("ham"), new_vote("ham", digest=b"the same")])
    assert (here.merge(there.all_votes()), there.merge(here.all_votes())) == (1, 1)
    assert here.get_vote(b"d", "") == there.get_vote(b"d", "")
    assert lessons(here) == lessons(there)
    assert (here.merge(there.all_votes()), there.merge(here.all_votes())) == (0, 0)
    assert [vote.digest for vote in here.all_votes()].count(b"the same") == 1


steps_of_nodes = st.lists(
    st.one_of(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["spam", "ham", "news", None]),
            st.sampled_from([b"d", b"e"]),
            st.sampled_from(["", "anna"]),
        ),
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)),
    ),
    max_size=20,
)


@pytest.mark.slow
@fixed
@given(steps_of_nodes, st.randoms(use_true_random=False))
def test_copies_of_one_node_that_were_apart_agree_once_they_have_met(shelf, steps, shuffler):
    """Whatever each was taught meanwhile, and whatever some had heard of others; the log comes in
    any order and twice.
    """
    nodes = [shelf.new() for _ in range(3)]

    def hear(here, there, most=None):
        found = list(there.all_votes())[:most]
        here.merge(shuffler.sample(found, len(found)))

    for number, *step in steps:
        if len(step) == 3:
            nodes[number].append([new_vote(step[0], step[1], step[2], tokens=(number, 9))])
        else:
            hear(nodes[number], nodes[step[0]], step[1])
    for here in [*nodes, *nodes]:
        for there in nodes:
            hear(here, there)
    first, *others = (
        {
            (digest, user): node.get_vote(digest, user)
            for digest in (b"d", b"e")
            for user in ("", "anna")
        }
        for node in nodes
    )
    assert others == [first, first]
    for node in nodes:
        tables = {}
        fold(tables, node.changes_after(0))
        assert tables == lessons(node) == lessons(nodes[0])


def test_the_clock_rises_to_the_highest_seen(ledger):
    ledger.merge([foreign_vote("ham", clock=40)])
    assert ledger.append([new_vote("spam")]) == [True]
    assert ledger.get_vote(b"d", "").clock == 41
    assert ledger.merge([foreign_vote("ham", clock=7, node="late")]) == 1
    assert ledger.get_vote(b"d", "").label == "spam"


@pytest.mark.parametrize("clock", [0, -1, 2**62, 2**80])
def test_an_impossible_clock_is_refused(ledger, clock):
    with pytest.raises(LedgerError, match="clock"):
        ledger.merge([foreign_vote(None, clock=clock)])


def test_an_unreadable_receipt_from_elsewhere_is_refused(ledger):
    damaged = foreign_vote("ham").packed[:-1]
    with pytest.raises(LedgerError, match="damaged"):
        ledger.merge(
            [foreign_vote("ham", b"e"), Vote(b"d", "", 1, "n", "ham", damaged, b"", "", 0, 1)]
        )
    assert ledger.last_seq() == 0


# Growing


def test_grown_is_true_once_after_each_change_here(ledger):
    assert not ledger.has_grown()
    writes = [
        lambda: ledger.append([new_vote("spam")]),
        lambda: ledger.merge([foreign_vote("ham", clock=9)]),
        lambda: ledger.define_class("spam", True),
        lambda: ledger.set_meta("note", "x"),
        lambda: ledger.append([new_vote(None), new_vote("ham")]),
    ]
    for write in writes:
        write()
        assert ledger.has_grown()
        assert not ledger.has_grown()
    ledger.append([new_vote("ham")])
    ledger.merge([foreign_vote("ham", clock=9)])
    assert not ledger.has_grown()


@pytest.mark.parametrize("shelf", ["sqlite", "connected"], indirect=True)
def test_grown_is_true_after_events_were_dropped(ledger):
    ledger.append([new_vote("spam"), new_vote(None), new_vote("ham")])
    assert ledger.has_grown()
    assert ledger.compact(3) == 2
    assert ledger.has_grown()
    assert ledger.compact(3) == 0
    assert not ledger.has_grown()


def test_first_scores_are_those_of_the_oldest_vote_in_force(ledger):
    def first(label, scores, user="", extractor=1):
        ledger.append([NewVote(b"d", user, label, packed(1), scores, "cli", 5, extractor)])
        return ledger.users.first_scores([b"other", b"d"], extractor).get(b"d")

    assert ledger.users.first_scores([b"d"], 1) == {}
    assert first("spam", b"\1\0") == b"\1\0"
    assert first("ham", b"\2\0", "anna") == b"\1\0"
    assert first("ham", b"\3\0") == b"\2\0"
    assert first(None, b"", "anna") == b"\3\0"
    assert first(None, b"") is None
    assert first("spam", b"") == b""
    assert ledger.users.first_scores([b"other"], 1) == ledger.users.first_scores([], 1) == {}
    assert (
        first("ham", b"\4\0", "ben", 2) == b"\4\0"
    )  # what experts say of other features is another thing
    assert ledger.users.first_scores([b"d"], 1) == {b"d": b""}


def test_touched_tells_of_events_on_one_message_between_two_others(shelf, ledger):
    for digest in (b"a", b"b", b"a"):
        ledger.append([new_vote("spam" if ledger.last_seq() else "ham", digest)])
    for after, before, touched in (
        (0, 2, True),
        (1, 3, False),
        (1, 4, True),
        (0, 1, False),
        (3, 9, False),
    ):
        numbers = shelf.start + after, shelf.start + before
        assert ledger.has_event_between(b"a", *numbers) is touched
    assert not ledger.has_event_between(b"c", 0, shelf.start + 9)


def test_grown_is_true_once_after_a_change_elsewhere(shelf, ledger):
    other = shelf.open("a")
    for label in ("spam", "ham"):
        other.append([new_vote(label)])
        assert ledger.has_grown()
        assert not ledger.has_grown()
    assert ledger.get_vote(b"d", "").label == "ham"
    other.append([new_vote("ham")])
    assert not ledger.has_grown()


# Compacting: only events that have their numbers for good

compacting = pytest.mark.parametrize("shelf", ["sqlite", "connected"], indirect=True)


@compacting
def test_compact_drops_what_was_superseded_and_keeps_tombstones(ledger):
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote(None), new_vote("ham", digest=b"e")])
    assert ledger.compact(2) == 1
    assert ledger.compact(4) == 1
    assert ledger.compact(4) == 0
    assert [vote.label for vote in ledger.all_votes()] == [None, "ham"]
    ledger.merge([foreign_vote("spam", clock=1, node="late")])
    assert list(lessons(ledger)) == [b"e"]


@compacting
def test_compact_drops_what_has_aged_with_its_tombstone(ledger):
    """Unless an event of its key is not folded yet, or is the last of all."""
    ageing = new_vote(None)._replace(origin="ageing", time=100)
    ledger.append([new_vote("spam"), new_vote("ham")._replace(time=50), ageing])
    ledger.append([new_vote("ham", digest=b"e")])
    tables = {}
    fold(tables, ledger.changes_after(0))
    assert ledger.compact(2, 101) == 1
    assert ledger.compact(4, 100) == 0
    assert ledger.compact(4, 101) == 2
    assert [vote.digest for vote in ledger.all_votes()] == [b"e"]
    assert lessons(ledger) == tables
    ledger.append([ageing._replace(digest=b"e")])
    assert ledger.compact(5) == 1
    assert [vote.label for vote in ledger.all_votes()] == [None]


@compacting
@pytest.mark.parametrize(
    "late", [foreign_vote("spam", clock=2, node="m"), foreign_vote("spam", clock=1, node="z")]
)
def test_compact_goes_by_version_not_by_arrival(ledger, late):
    ledger.merge([foreign_vote("ham", clock=2, node="n")])
    ledger.merge([late])
    ledger.append([new_vote("news", digest=b"e")])
    assert ledger.compact(3) == 1
    assert [vote.label for vote in ledger.all_votes()] == ["ham", "news"]


@compacting
def test_a_number_is_never_given_twice(ledger):
    ledger.append([new_vote("spam")])
    ledger.append([new_vote("ham")])
    ledger.merge([foreign_vote("spam", clock=1, node="late")])
    assert (
        ledger.compact(3) == 1
    )  # the late one is superseded too, but it carries the highest number
    ledger.append([new_vote("news")])
    assert ledger.last_seq() == 4


@compacting
def test_a_reader_that_had_folded_less_starts_again(ledger):
    ledger.append([new_vote("spam"), new_vote("ham"), new_vote("ham", digest=b"e")])
    ledger.compact(3)
    with pytest.raises(LedgerError, match="run `spamguard rebuild`"):
        list(ledger.changes_after(1))
    for backwards in (False, True):
        with pytest.raises(LedgerError, match="run `spamguard rebuild`"):
            list(ledger.lessons(upto_seq=2, backwards=backwards))
    tables = {}
    assert fold(tables, ledger.changes_after(0)) == 3
    assert tables == lessons(ledger)


@compacting
def test_a_reader_that_begins_anew_reads_all_of_a_long_log_that_was_compacted(ledger):
    """As the first program of another extractor does; hundreds of events are not read at once."""
    for label in ("spam", "ham"):
        ledger.append([new_vote(label, digest=number.to_bytes(2)) for number in range(600)])
    assert ledger.compact(900) > 0
    tables = {}
    assert fold(tables, ledger.changes_after(0)) == 1200
    assert tables == lessons(ledger)


@compacting
def test_what_is_compacted_under_a_reader_that_began_anew_is_noticed(ledger):
    ledger.append([new_vote("spam", digest=number.to_bytes(2)) for number in range(300)])
    ledger.append([new_vote("ham", digest=number.to_bytes(2)) for number in range(300)])
    assert ledger.compact(600, 0) == 0
    changes = ledger.changes_after(0)
    next(changes)
    assert ledger.compact(600) == 300
    with pytest.raises(LedgerError, match="run `spamguard rebuild`"):
        list(changes)


@compacting
@fixed
@given(votes_from_anywhere, st.integers(0, 12), st.integers(0, 12), st.sampled_from([None, 1, 2]))
def test_compacting_changes_nothing_for_readers_that_had_folded_as_much(
    shelf, votes, cut, behind, extractor
):
    whole, compacted = shelf.new(), shelf.new()
    for ledger in (whole, compacted):
        ledger.merge(votes[:cut])
    folded = compacted.last_seq()
    tables = {}
    fold(tables, compacted.changes_after(0, extractor=extractor))
    compacted.compact(max(folded - behind, 0))
    for ledger in (whole, compacted):
        ledger.merge(votes[cut:])
    assert list(compacted.changes_after(folded, extractor=extractor)) == list(
        whole.changes_after(folded, extractor=extractor)
    )
    fold(tables, compacted.changes_after(folded, extractor=extractor))
    from_nothing = {}
    fold(from_nothing, compacted.changes_after(0, extractor=extractor))
    assert (
        tables
        == from_nothing
        == lessons(compacted, extractor=extractor)
        == lessons(whole, extractor=extractor)
    )


def test_many_lessons_come_in_the_order_of_their_digests_and_the_other_way_round(ledger):
    ledger.append(
        [
            new_vote(("spam", "ham")[number % 3 == 0], b"%03d" % (number * 7 % 300))
            for number in range(300)
        ]
    )
    assert len(lessons(ledger)) == 300
