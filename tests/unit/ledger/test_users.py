"""The ledger asked by users."""

from __future__ import annotations

import pytest

from spamguard.ledger import codec, schema
from spamguard.ledger.queries import origin_patterns
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import LastVote, NewVote
from spamguard.records import EXTRACTOR
from tests.unit.filters import mail, opened


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> bytes:
    with opened(tmp_path_factory.mktemp("state")) as one:
        return codec.pack(one._reader.read_example(mail(1)[0][1]).features)


@pytest.fixture
def ledger(tmp_path):
    with SqliteLedger.open(tmp_path / "ledger", "key", durable=False) as one:
        yield one


def cast(ledger, packed, *votes):
    """Each: digest, user, label, origin, time."""
    ledger.append(
        [
            NewVote(digest, user, label, packed if label else b"", b"", origin, at, 1)
            for digest, user, label, origin, at in votes
        ]
    )


def test_lessons_in_force(ledger, packed):
    assert ledger.users.count_lessons() == {}
    cast(
        ledger,
        packed,
        (b"a", "anna", "spam", "cli", 1),
        (b"b", "anna", "spam", "cli", 1),
        (b"c", "anna", "ham", "cli", 1),
    )
    cast(
        ledger,
        packed,
        (b"a", "anna", "ham", "cli", 2),
        (b"a", "ben", "spam", "cli", 2),
        (b"d", "cleo", "ham", "cli", 2),
    )
    cast(
        ledger,
        packed,
        (b"d", "cleo", None, "cli", 3),
        (b"b", "anna", None, "cli", 3),
        (b"b", "anna", "spam", "cli", 4),
    )
    assert ledger.users.count_lessons() == {"anna": {"ham": 2, "spam": 1}, "ben": {"spam": 1}}


def test_how_many_were_cast_since(ledger, packed):
    places = ("folder Junk", "folder", "folders x", "cli", "folder INBOX")
    cast(
        ledger,
        packed,
        *((bytes([at]), "anna", "spam", place, at) for at, place in enumerate(places, 1)),
    )
    cast(
        ledger,
        packed,
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
    assert origin_patterns("folder") == ("folder", "folder ")


def test_a_lesson_of_an_older_extractor_counts_when_it_is_given_again(ledger, packed):
    """For `append` it is a change: it is cast anew."""
    cast(ledger, packed, (b"old", "anna", "spam", "cli", 1), (b"known", "anna", "spam", "cli", 1))
    ledger.append([NewVote(b"known", "anna", "spam", packed, b"", "cli", 2, EXTRACTOR)])
    lessons = [b"old", b"known", b"new"]
    within = ledger.users.apply_quota(
        3, "anna", ("cli",), 2, lessons, lambda digest: (digest, "spam")
    )
    assert within == ([b"known"], [b"old", b"new"])


def test_beyond_the_limit_ones_own_word_can_be_taken_back(ledger, packed):
    """Whoever has dragged a whole folder to Junk by a slip drags it back on the same day; as often
    again, and no more.
    """

    def within(label: str, *lessons: bytes) -> tuple[list[bytes], list[bytes]]:
        return ledger.users.apply_quota(
            3, "anna", ("cli",), 2, lessons, lambda digest: (digest, label)
        )

    cast(
        ledger,
        packed,
        *((name, "anna", "spam", "cli", 1) for name in (b"a", b"b", b"c")),
        (b"d", "ben", "spam", "cli", 1),
    )
    assert within("ham", b"d", b"a", b"b", b"c") == ([b"a", b"b", b"c"], [b"d"])
    cast(ledger, packed, (b"a", "anna", "ham", "cli", 1), (b"b", "anna", "ham", "cli", 1))
    assert within("spam", b"d", b"a", b"b") == ([b"a"], [b"b", b"d"])
    cast(ledger, packed, (b"c", "anna", "ham", "cli", 1))
    assert within("spam", b"a", b"c") == ([], [b"a", b"c"])


def test_votes_of_a_user_and_on_a_message(ledger, packed):
    cast(
        ledger,
        packed,
        (b"a", "anna", "spam", "cli", 1),
        (b"a", "anna", "ham", "cli", 5),
        (b"a", "ben", "ham", "cli", 5),
    )
    cast(ledger, packed, (b"a", "ben", None, "cli", 6), (b"b", "anna", "ham", "cli", 2))
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


def test_the_latest_votes_of_a_user_as_of_an_event(ledger, packed):
    cast(
        ledger,
        packed,
        (b"a", "anna", "spam", "cli", 1),
        (b"b", "anna", "promo", "cli", 3),
        (b"c", "anna", "ham", "cli", 2),
    )
    cast(
        ledger,
        packed,
        (b"a", "ben", "ham", "cli", 9),
        (b"a", "anna", "news", "cli", 4),
        (b"b", "anna", None, "cli", 5),
    )
    assert [latest(ledger, "anna", upto) for upto in range(7)] == [
        [],
        ["spam"],
        ["promo", "spam"],
        ["ham", "promo", "spam"],
        ["ham", "promo", "spam"],
        ["ham", "news", "promo"],
        ["ham", "news"],
    ]
    assert [latest(ledger, "anna", 6, most) for most in (0, 1)] == [[], ["news"]]
    assert latest(ledger, "cleo", 6) == []
    assert ledger.users.latest_seqs("anna", 6, 2, 9) == []
    (seq,) = ledger.users.latest_seqs("ben", 6, 1, 9)
    assert ledger.users.read_receipts([seq, 99]) == [(seq, "ham", packed)]


def test_who_was_heard_between_two_events(ledger, packed):
    cast(
        ledger,
        packed,
        (b"a", "anna", "spam", "cli", 1),
        (b"b", "ben", "ham", "cli", 1),
        (b"a", "anna", None, "cli", 1),
    )
    assert [
        sorted(ledger.users.users_between(*events)) for events in ((0, 0), (0, 2), (1, 3), (2, 3))
    ] == [
        [],
        ["anna", "ben"],
        ["anna", "ben"],
        ["anna"],
    ]


def test_no_question_walks_the_log(ledger):
    """What would take minutes in a large ledger."""
    for statement, values in (
        (schema.LABELS_BY_USER, ()),
        (schema.SUPERSEDED_BY_USER, ()),
        (schema.COUNT_VOTES_OF_USER, ("", 0, 1, "", "", 1)),
        (schema.LAST_VOTE_OF_USER, ("", "", "")),
        (schema.DIGESTS_OF_USER, ("", 0)),
        (schema.LATEST_SEQS_OF_USER, ("", 1, 1, 1)),
        (schema.RECEIPTS_BY_SEQ.format("?, ?"), (1, 2)),
        (schema.USERS_BETWEEN, (1, 2)),
        (schema.VOTES_OF_KEY, (b"", "")),
        (schema.USERS_OF_DIGEST, (b"",)),
    ):
        plan = [row[3] for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        walks = [
            line for line in plan if line.startswith("SCAN events") and "COVERING INDEX" not in line
        ]
        assert walks == [], (statement, plan)


def test_compacting_keeps_what_was_replaced_lately(ledger, packed):
    cast(
        ledger,
        packed,
        (b"a", "anna", "spam", "cli", 10),
        (b"a", "anna", "ham", "cli", 20),
        (b"a", "anna", "spam", "cli", 30),
    )
    cast(ledger, packed, (b"b", "anna", "spam", "cli", 30))
    assert ledger.compact(4, 20) == 0
    assert ledger.compact(4, 21) == 1
    assert [vote.label for vote in ledger.users.all_votes("anna", b"a")] == ["spam", "ham"]
