"""The ledger's numbers for people: by hour, by day, by message; the same as going through every
vote would give.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from spamguard.ledger import codec
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import (
    WORD_LIST_LABEL,
    MessageStanding,
    NewVote,
    WordListInfo,
    is_word_list,
    make_list_vote,
    resolve_lesson,
    winning_votes,
)
from tests.unit.filters import mail, opened

USERS = ("", "anna", "ben", "ben@example.org", "zoe")


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> bytes:
    with opened(tmp_path_factory.mktemp("state")) as one:
        return codec.pack(one._reader.read_example(mail(1)[0][1]).features)


@pytest.fixture
def ledger(tmp_path, packed):
    """400 votes of five users on 60 messages within ten days, many replaced, many taken back; and a
    word list.
    """
    dice = random.Random(3)
    with SqliteLedger.open(tmp_path / "ledger", "key", durable=False) as one:
        about = WordListInfo("bogofilter", "00", 1, 1, 1, 1)
        one.append(
            [make_list_vote("words", about, np.array([7], np.uint32), np.array([1], np.int8), 5, 1)]
        )
        for _ in range(400):
            label = dice.choice(("spam", "ham", "news", None))
            digest, user, when = (
                bytes([dice.randrange(60)]) * 16,
                dice.choice(USERS),
                dice.randrange(864_000),
            )
            scores = dice.randbytes(4) if label and dice.random() < 0.5 else b""
            one.append(
                [
                    NewVote(
                        digest,
                        user,
                        label,
                        packed if label else b"",
                        scores,
                        "cli",
                        when,
                        dice.choice((1, 1, 1, 2)),
                    )
                ]
            )
        yield one


def cast(ledger):
    return [vote for vote in ledger.all_votes() if vote.label not in (None, WORD_LIST_LABEL)]


def standing(ledger, user=""):
    """By going through everything."""
    votes = [vote for vote in ledger.all_votes() if not is_word_list(vote.extractor)]
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
def test_how_messages_stand(ledger, user):
    expected = standing(ledger, user)
    assert ledger.users.find_standings([*expected, b"nobody"] * 3, user) == expected
    assert ledger.users.find_standings([], user) == {}


def test_what_has_changed(ledger):
    expected, last = (
        {digest: one.label for digest, one in standing(ledger).items()},
        ledger.last_seq(),
    )
    found = {
        digest: label
        for digest, label in ledger.users.changed_labels(0, last).items()
        if digest in expected
    }
    assert found == expected
    pieces = {}
    for start in range(0, last, 7):
        pieces |= ledger.users.changed_labels(start, min(last, start + 7))
    assert {digest: label for digest, label in pieces.items() if digest in expected} == expected
    (newest,) = ledger.users.changed_labels(last - 1, last)
    assert newest == list(ledger.all_votes())[-1].digest
    assert ledger.users.changed_labels(last, last) == {}


@pytest.mark.parametrize("user", [None, "anna", "ben", "nobody"])
def test_by_hour_and_one_by_one(ledger, user):
    since, until = 100_000, 400_000
    expected = [
        vote for vote in cast(ledger) if since <= vote.time < until and user in (None, vote.user)
    ]
    assert ledger.users.count_by_hour(user, since, until) == dict(
        Counter((vote.time - since) // 3600 for vote in expected)
    )
    found = ledger.users.latest_votes(user, since, until, 1000)
    assert sorted(found) == sorted(
        (vote.digest, vote.user, vote.label, vote.time) for vote in expected
    )
    assert [one.time for one in found] == sorted((one.time for one in found), reverse=True)
    assert ledger.users.latest_votes(user, since, until, 5) == found[:5]


def test_by_day_those_in_force(ledger):
    won = [
        vote
        for vote in winning_votes(ledger.all_votes()).values()
        if vote.label not in (None, WORD_LIST_LABEL)
    ]
    expected = Counter(vote.time // 86_400 for vote in won)
    assert {
        day: number for day, number in ledger.users.count_by_day().items() if number
    } == expected
    assert sum(expected.values()) == sum(
        number for labels in ledger.users.count_lessons().values() for number in labels.values()
    )


def test_when_everybody_last_said_anything(ledger):
    expected: dict[str, int] = {}
    for vote in ledger.all_votes():
        expected[vote.user] = max(expected.get(vote.user, 0), vote.time)
    assert ledger.users.last_vote_times() == expected


def test_scores_of_the_last_votes(ledger):
    """Not of those that were replaced, or taken back: nobody says any more that they are right."""
    after = ledger.last_seq() - 100
    expected = {}
    later = list(ledger.all_votes())[after:]
    for number, vote in enumerate(later):
        again = any(
            (vote.digest, vote.user) == (other.digest, other.user) for other in later[number + 1 :]
        )
        if not again and vote.label is not None and vote.extractor == 1 and vote.scores:
            expected[vote.digest] = (vote.label, vote.scores)
    assert len(expected) > 10
    assert ledger.users.scores_after(after, 1) == expected


def test_nobody_has_said_anything(tmp_path):
    with SqliteLedger.open(tmp_path / "ledger", "key", durable=False) as one:
        users = one.users
        assert (
            users.changed_labels(0, 0),
            users.count_by_hour(None, 0, 9),
            users.latest_votes(None, 0, 9, 9),
        ) == ({}, {}, [])
        assert (users.count_by_day(), users.last_vote_times(), users.scores_after(0, 1)) == (
            {},
            {},
            {},
        )


@pytest.mark.parametrize("statement", ["VOTES_BY_HOUR", "LAST_TIME_BY_USER"])
def test_by_the_index_of_users_alone(ledger, statement):
    from spamguard.ledger import schema

    sql = getattr(schema, statement)
    plan = " ".join(
        row[3]
        for row in ledger._db.query(
            f"EXPLAIN QUERY PLAN {sql}", (None, 1, 2)[: sql.count("?3") and 3]
        )
    )
    assert "SCAN events" not in plan
    assert "COVERING INDEX events_of_users" in plan
