"""What every ledger promises to who writes, run on every implementation: add one to `SHELVES` and
it must pass all of this.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.errors import LedgerError
from spamguard.ledger.votes import Lesson
from spamguard.records import Vote
from tests.contract.ledgers import fold, lessons, new_vote
from tests.support.waiting import COMMAND_SECONDS

ROOT = Path(__file__).parents[2]


# Voting


def test_a_new_ledger_is_empty(ledger):
    assert ledger.last_seq() == 0
    assert list(ledger.changes_after(0)) == list(ledger.lessons()) == list(ledger.all_votes()) == []
    assert ledger.get_vote(b"d", "") is None
    assert ledger.lesson_counts() == ledger.classes() == {}
    assert ledger.append([]) == []
    assert ledger.merge([]) == ledger.compact(9) == 0


def test_a_vote_is_kept_as_it_was_cast(ledger):
    cast = new_vote("spam", user="anna")
    assert ledger.append([cast]) == [True]
    kept = ledger.get_vote(b"d", "anna")
    assert kept == Vote(
        b"d", "anna", 1, ledger.node, "spam", cast.packed, cast.scores, "cli", 1_700_000_000, 1
    )
    assert list(ledger.all_votes()) == [kept]
    assert lessons(ledger) == {b"d": Lesson(b"d", "spam", cast.packed, cast.scores)}


def test_teaching_twice_and_forgetting_twice_succeed_and_change_nothing(ledger):
    assert ledger.append([new_vote("spam")]) == [True]
    assert ledger.append([new_vote("spam", tokens=(9,))]) == [False]
    assert ledger.append([new_vote(None)]) == [True]
    assert ledger.append([new_vote(None)]) == [False]
    assert ledger.append([new_vote(None, digest=b"never taught")]) == [False]
    assert ledger.event_count() == 2


def test_later_votes_of_a_batch_see_earlier_ones(ledger):
    batch = [
        new_vote("spam"),
        new_vote("spam"),
        new_vote("ham"),
        new_vote("spam", user="anna"),
        new_vote(None),
        new_vote(None),
    ]
    assert ledger.append(batch) == [True, False, True, True, True, False]
    assert [vote.clock for vote in ledger.all_votes()] == [1, 2, 3, 4]
    assert lessons(ledger)[b"d"].label == "spam"


def test_votes_are_cast_in_view_of_what_nobody_else_changes_meanwhile(ledger):
    with ledger.exclusive() as cast:
        assert ledger.get_vote(b"d", "") is None
        assert cast([new_vote("spam")]) == [True]
        assert cast([new_vote("spam"), new_vote("ham")]) == [False, True]
    with pytest.raises(LedgerError), ledger.exclusive() as cast:
        cast([new_vote("news"), new_vote("news", digest=b"")])
    assert ledger.get_vote(b"d", "").label == "ham"
    assert ledger.append([new_vote("spam")]) == [True]
    assert [vote.clock for vote in ledger.all_votes()] == [1, 2, 3]


def test_what_gives_way_to_anything_that_its_user_has_ever_said(ledger):
    ledger.append(
        [
            new_vote("spam"),
            new_vote("spam", digest=b"taken back"),
            new_vote(None, digest=b"taken back"),
        ]
    )
    batch = [
        new_vote("ham"),
        new_vote("ham", digest=b"taken back"),
        new_vote("ham", digest=b"new"),
        new_vote("spam", digest=b"new"),
    ]
    assert ledger.append(batch, unless_voted_since=0) == [False, False, True, False]
    assert ledger.append([new_vote("ham", user="somebody else")], unless_voted_since=0) == [True]


def test_what_gives_way_to_what_its_user_has_said_since(ledger):
    ledger.append([new_vote("ham"), new_vote("ham", digest=b"e")])
    decided = ledger.voting_moment()
    ledger.append([new_vote("news"), new_vote("spam", user="somebody else", digest=b"e")])
    batch = [new_vote("spam"), new_vote("spam", digest=b"e"), new_vote("spam", digest=b"new")]
    assert ledger.append(batch, unless_voted_since=decided) == [False, True, True]
    assert ledger.append(batch, unless_voted_since=decided) == [False, False, False]
    assert ledger.get_vote(b"d", "").label == "news"


def test_a_vote_that_is_taken_back_keeps_no_features(ledger):
    ledger.append([new_vote("spam"), new_vote(None)])
    standing = ledger.get_vote(b"d", "")
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
    ledger.append(
        [
            new_vote(label, digest=bytes([index]))
            for index, label in enumerate(["spam", "ham", "ham", "spam", "ham"], 1)
        ]
    )
    ledger.append([new_vote("spam", digest=b"\2", user="anna"), new_vote(None, digest=b"\1")])
    assert ledger.lesson_counts() == {"ham": 2, "spam": 1}


@pytest.mark.parametrize(
    "bad",
    [
        new_vote("spam", user="\udc80"),
        new_vote("spam", extractor=2**70),
        new_vote("spam", digest=b""),
    ],
)
def test_a_value_that_cannot_be_kept_fails_the_whole_batch(ledger, bad):
    with pytest.raises(LedgerError):
        ledger.append([new_vote("spam"), bad])
    assert ledger.last_seq() == 0
    assert ledger.append([new_vote("spam")]) == [True]


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
    assert again.get_vote(b"d", "").clock == 2


def test_another_key_is_refused(shelf, ledger):
    with pytest.raises(LedgerError, match=r"taught with key key.* restore its key"):
        shelf.open("a", "another")


def test_a_closed_ledger_says_so(ledger):
    ledger.close()
    for call in (lambda: ledger.append([new_vote("spam")]), ledger.last_seq, ledger.has_grown):
        with pytest.raises(LedgerError, match="closed"):
            call()


# Several processes

APPENDS = """
import sys
from itertools import islice
from tests.contract.ledgers import packed
me = sys.argv[1]
for batch in range(30):
    label = "spam" if batch % 2 else "ham"
    votes = [NewVote(b"shared%d" % (batch % 5), me, label, packed(1), b"", "", 0, 1)]
    for index in range(4):
        digest = f"{me} {batch} {index}".encode()
        votes.append(NewVote(digest, "", "spam", packed(*range(300)), b"", "", 0, 1))
    ledger.append(votes)
    ledger.has_grown() and list(islice(ledger.changes_after(0), 20))
ledger.close()
"""


@pytest.mark.slow
def test_four_processes_that_create_and_append_at_once_lose_nothing(shelf):
    code = shelf.code("busy") + APPENDS
    workers = [
        subprocess.Popen([sys.executable, "-c", code, name], cwd=ROOT, stderr=subprocess.PIPE)
        for name in "abcd"
    ]
    for worker in workers:
        assert worker.communicate(timeout=COMMAND_SECONDS)[1] == b""
        assert worker.returncode == 0
    ledger = shelf.open("busy")
    votes = list(ledger.all_votes())
    assert len({vote.clock for vote in votes}) == len(votes) == ledger.event_count()
    assert [vote.clock for vote in votes] == sorted(vote.clock for vote in votes)
    own = {vote.digest for vote in votes if vote.user == ""}
    assert own == {
        f"{name} {batch} {index}".encode()
        for name in "abcd"
        for batch in range(30)
        for index in range(4)
    }
    assert len(votes) == 480 + 4 * 30  # five shared digests, and the label turns at every visit
    tables = {}
    fold(tables, ledger.changes_after(0))
    assert tables == lessons(ledger)
