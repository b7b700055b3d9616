"""What every ledger says about its users: their votes, and numbers for people.

The numbers are the same as going through every vote would give.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from spamguard.ledger.votes import (
    LastVote,
    MessageStanding,
    NewVote,
)
from spamguard.records import EXTRACTOR
from spamguard.users import Origin
from tests.contract.ledgers import packed, resolve_lesson, winning_votes

PACKED = packed(1, 2)


def cast(ledger, *votes):
    """Each: digest, user, label, origin, time."""
    ledger.append(
        [
            NewVote(digest, user, label, PACKED if label else b"", b"", origin, at, 1)
            for digest, user, label, origin, at in votes
        ]
    )


def test_lessons_in_force(ledger):
    assert ledger.users.count_lessons() == {}
    cast(
        ledger,
        (b"a", "anna", "spam", "cli", 1),
        (b"b", "anna", "spam", "cli", 1),
        (b"c", "anna", "ham", "cli", 1),
    )
    cast(
        ledger,
        (b"a", "anna", "ham", "cli", 2),
        (b"a", "ben", "spam", "cli", 2),
        (b"d", "cleo", "ham", "cli", 2),
    )
    cast(
        ledger,
        (b"d", "cleo", None, "cli", 3),
        (b"b", "anna", None, "cli", 3),
        (b"b", "anna", "spam", "cli", 4),
    )
    assert ledger.users.count_lessons() == {"anna": {"ham": 2, "spam": 1}, "ben": {"spam": 1}}


def test_how_many_were_cast_since(ledger):
    places = ("folder Junk", "folder", "folders x", "cli", "folder INBOX")
    cast(
        ledger,
        *((bytes([at]), "anna", "spam", place, at) for at, place in enumerate(places, 1)),
    )
    cast(
        ledger,
        (b"z", "ben", "spam", "folder Junk", 9),
        (b"\1", "anna", None, "folder Junk", 9),
    )
    count = ledger.users.count_votes
    assert [count("anna", "folder", since, 9, 100) for since in (0, 1, 2, 5, 6)] == [3, 3, 2, 1, 0]
    assert [count("anna", "folder", 0, until, 100) for until in (0, 1, 4, 5)] == [0, 1, 2, 3]
    assert count("anna", "folder", 0, 9, 2) == 2
    assert count("anna", "folder Junk", 0, 9, 9) == 1
    assert ledger.users.last_vote("anna", "folder") == LastVote(5, "folder INBOX")
    assert ledger.users.last_vote("anna", "cli") == LastVote(4, "cli")
    assert ledger.users.last_vote("cleo", "folder") is None


def test_a_lesson_of_an_older_extractor_counts_when_it_is_given_again(ledger):
    """For `append` it is a change: it is cast anew."""
    cast(ledger, (b"old", "anna", "spam", "cli", 1), (b"known", "anna", "spam", "cli", 1))
    ledger.append([NewVote(b"known", "anna", "spam", PACKED, b"", "cli", 2, EXTRACTOR)])
    lessons = [b"old", b"known", b"new"]
    within = ledger.users.apply_quota(
        3, "anna", ("cli",), 2, lessons, lambda digest: (digest, "spam")
    )
    assert within == ([b"known"], [b"old", b"new"])


def test_beyond_the_limit_ones_own_word_can_be_taken_back(ledger):
    """Whoever has dragged a whole folder to Junk by a slip drags it back on the same day; as often
    again, and no more.
    """

    def within(label: str, *lessons: bytes) -> tuple[list[bytes], list[bytes]]:
        return ledger.users.apply_quota(
            3, "anna", ("cli",), 2, lessons, lambda digest: (digest, label)
        )

    cast(
        ledger,
        *((name, "anna", "spam", "cli", 1) for name in (b"a", b"b", b"c")),
        (b"d", "ben", "spam", "cli", 1),
    )
    assert within("ham", b"d", b"a", b"b", b"c") == ([b"a", b"b", b"c"], [b"d"])
    cast(ledger, (b"a", "anna", "ham", "cli", 1), (b"b", "anna", "ham", "cli", 1))
    assert within("spam", b"d", b"a", b"b") == ([b"a"], [b"d", b"b"])
    cast(ledger, (b"c", "anna", "ham", "cli", 1))
    assert within("spam", b"a", b"c") == ([], [b"a", b"c"])


def test_votes_of_a_user_and_on_a_message(ledger):
    cast(
        ledger,
        (b"a", "anna", "spam", "cli", 1),
        (b"a", "anna", "ham", "cli", 5),
        (b"a", "ben", "ham", "cli", 5),
    )
    cast(ledger, (b"a", "ben", None, "cli", 6), (b"b", "anna", "ham", "cli", 2))
    assert [vote.label for vote in ledger.users.all_votes("anna", b"a")] == ["ham", "spam"]
    assert sorted(ledger.users.voted_digests("anna", 2)) == [b"a", b"b"]
    assert ledger.users.voted_digests("anna", 3) == [b"a"]
    assert [(vote.user, vote.label) for vote in ledger.users.votes_on_message(b"a")] == [
        ("anna", "ham")
    ]


def latest(ledger, user, upto, most=9):
    return sorted(
        vote.label
        for vote in ledger.users.read_receipts(ledger.users.latest_seqs(user, upto, 1, most))
    )


def test_the_latest_votes_of_a_user_as_of_an_event(shelf, ledger):
    last = shelf.start + 6
    cast(
        ledger,
        (b"a", "anna", "spam", "cli", 1),
        (b"b", "anna", "promo", "cli", 3),
        (b"c", "anna", "ham", "cli", 2),
    )
    cast(
        ledger,
        (b"a", "ben", "ham", "cli", 9),
        (b"a", "anna", "news", "cli", 4),
        (b"b", "anna", None, "cli", 5),
    )
    assert [latest(ledger, "anna", shelf.start + upto) for upto in range(7)] == [
        [],
        ["spam"],
        ["promo", "spam"],
        ["ham", "promo", "spam"],
        ["ham", "promo", "spam"],
        ["ham", "news", "promo"],
        ["ham", "news"],
    ]
    assert [latest(ledger, "anna", last, most) for most in (0, 1)] == [[], ["news"]]
    assert latest(ledger, "cleo", last) == []
    assert ledger.users.latest_seqs("anna", last, 2, 9) == []
    (seq,) = ledger.users.latest_seqs("ben", last, 1, 9)
    assert ledger.users.read_receipts([seq, 99]) == [(seq, "ham", PACKED)]


def test_who_was_heard_between_two_events(shelf, ledger):
    cast(
        ledger,
        (b"a", "anna", "spam", "cli", 1),
        (b"b", "ben", "ham", "cli", 1),
        (b"a", "anna", None, "cli", 1),
    )
    pairs = ((0, 0), (0, 2), (1, 3), (2, 3))
    assert [
        sorted(ledger.users.users_between(shelf.start + after, shelf.start + upto))
        for after, upto in pairs
    ] == [
        [],
        ["anna", "ben"],
        ["anna", "ben"],
        ["anna"],
    ]


@pytest.mark.parametrize("shelf", ["sqlite", "connected"], indirect=True)
def test_compacting_keeps_what_was_replaced_lately(ledger):
    cast(
        ledger,
        (b"a", "anna", "spam", "cli", 10),
        (b"a", "anna", "ham", "cli", 20),
        (b"a", "anna", "spam", "cli", 30),
    )
    cast(ledger, (b"b", "anna", "spam", "cli", 30))
    assert ledger.compact(4, 20) == 0
    assert ledger.compact(4, 21) == 1
    assert [vote.label for vote in ledger.users.all_votes("anna", b"a")] == ["spam", "ham"]


# ---- numbers

USERS = ("", "anna", "ben", "ben@example.org", "zoe")


@pytest.fixture(scope="module")
def crowded(lasting_shelf):
    """400 votes of five users on 60 messages within ten days, many replaced, many taken back."""
    ledger = lasting_shelf.open("a")
    dice = random.Random(3)
    for _ in range(400):
        label = dice.choice(("spam", "ham", "news", None))
        digest, user = bytes([dice.randrange(60)]) * 16, dice.choice(USERS)
        when = dice.randrange(864_000)
        scores = dice.randbytes(4) if label and dice.random() < 0.5 else b""
        features, extractor = PACKED if label else b"", dice.choice((1, 1, 1, 2))
        ledger.append([NewVote(digest, user, label, features, scores, "cli", when, extractor)])
    return ledger


def cast_votes(ledger):
    return [vote for vote in ledger.all_votes() if vote.label is not None]


def standing(ledger, user=""):
    """By going through everything."""
    votes = list(ledger.all_votes())
    won = winning_votes(votes)
    found = {}
    for digest in {vote.digest for vote in votes}:
        taught = resolve_lesson([vote for vote in votes if vote.digest == digest])
        own = won.get((digest, user))
        found[digest] = MessageStanding(
            taught.label if taught else None, own.label if own else None
        )
    return found


@pytest.mark.parametrize("user", USERS)
def test_how_messages_stand(crowded, user):
    expected = standing(crowded, user)
    assert crowded.users.find_standings([*expected, b"nobody"] * 3, user) == expected
    assert crowded.users.find_standings([], user) == {}


def test_what_has_changed(crowded):
    expected, last = (
        {digest: one.label for digest, one in standing(crowded).items()},
        crowded.last_seq(),
    )
    found = {
        digest: label
        for digest, label in crowded.users.changed_labels(0, last).items()
        if digest in expected
    }
    assert found == expected
    pieces = {}
    start = 0
    while start < last:
        upto = crowded.next_step(start, 7)
        pieces |= crowded.users.changed_labels(start, upto)
        start = upto
    assert {digest: label for digest, label in pieces.items() if digest in expected} == expected
    (newest,) = crowded.users.changed_labels(last - 1, last)
    assert newest == list(crowded.all_votes())[-1].digest
    assert crowded.users.changed_labels(last, last) == {}


@pytest.mark.parametrize("user", [None, "anna", "ben", "nobody"])
def test_by_hour(crowded, user):
    since, until = 100_000, 400_000
    expected = [
        vote
        for vote in cast_votes(crowded)
        if since <= vote.time < until and user in (None, vote.user)
    ]
    assert crowded.users.count_by_hour(user, since, until) == dict(
        Counter((vote.time - since) // 3600 for vote in expected)
    )


def test_those_in_force_and_those_that_have_aged(crowded):
    won = [vote for vote in winning_votes(crowded.all_votes()).values() if vote.label is not None]
    cast(crowded, (b"aged", "anna", None, Origin.AGEING, 1))
    assert crowded.users.find_kept() == (min(vote.time for vote in won), 0)
    cast(crowded, (b"aged", "anna", "ham", "cli", 1))
    assert crowded.users.find_kept()[0] == 1
    cast(crowded, (b"aged", "anna", None, Origin.AGEING, 2))
    assert crowded.users.find_kept() == (min(vote.time for vote in won), 1)
    assert len(won) == sum(
        number for labels in crowded.users.count_lessons().values() for number in labels.values()
    )


def test_the_oldest_votes_in_force(crowded):
    """Those that do not count for their user alone come first, then by hours."""
    numbers = [seq for (seq,) in crowded._db.query("SELECT seq FROM events ORDER BY seq")]
    events = dict(zip(numbers, crowded.all_votes(), strict=True))
    winning = winning_votes(events.values())
    seqs = {(vote.digest, vote.user, vote.version): seq for seq, vote in events.items()}
    in_force = [
        (seq, vote)
        for seq, vote in events.items()
        if winning[vote.digest, vote.user] == vote and vote.label is not None
    ]
    for personal, before, number in product((0, 5), (None, 400_000), (0, 1, 50, -1)):
        order = {}
        for user in USERS:
            own = [(vote.time, seq) for seq, vote in in_force if vote.user == user]
            for place, (when, seq) in enumerate(sorted(own, reverse=True), 1):
                if before is None or when < before:
                    order[seq] = (bool(user) and place <= personal, when // 3600)
        keys = crowded.users.oldest_votes(
            crowded.last_seq(), number=number, before=before, personal=personal
        )
        found = [seqs[digest, user, winning[digest, user].version] for digest, user, _ in keys]
        count = len(order) if number < 0 else min(number, len(order))
        assert len(found) == len(set(found)) == count
        assert [order[seq] for seq in found] == sorted(order.values())[:count]
        assert keys == [
            (events[seq].digest, events[seq].user, events[seq].extractor) for seq in found
        ]


def test_when_everybody_last_said_anything(crowded):
    expected: dict[str, int] = {}
    for vote in crowded.all_votes():
        expected[vote.user] = max(expected.get(vote.user, 0), vote.time)
    assert crowded.users.last_vote_times() == expected


def test_nobody_has_said_anything(ledger):
    users = ledger.users
    assert users.changed_labels(0, 0) == users.count_by_hour(None, 0, 9) == {}
    assert users.last_vote_times() == {}
    assert users.find_kept() == (None, 0)
