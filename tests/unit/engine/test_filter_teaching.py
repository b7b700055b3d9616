"""Teaching and undoing: repetition changes nothing, users may disagree, undoing leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, log1p
from pathlib import Path
from typing import Any

import pytest

from spamguard.bayes.fusion import score_message
from spamguard.bayes.tables import make_evidence
from spamguard.engine.filter import Filter
from spamguard.errors import UnknownClassError
from spamguard.ledger import codec
from spamguard.ledger.votes import NewVote
from spamguard.mail.message import add_fields
from spamguard.records import EXTRACTOR
from tests.unit.filters import held, mail, opened, teach

MAIL = mail(60)
HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))


@pytest.fixture
def spam_filter(tmp_path: Path) -> Iterator[Filter]:
    with opened(tmp_path / "state") as spam_filter:
        yield spam_filter


def classes(spam_filter: Filter) -> dict[str, int]:
    return dict(spam_filter.status().classes)


def test_learning_relearning_and_forgetting(spam_filter: Filter) -> None:
    raw = SPAM[0]
    assert [spam_filter.learn(raw, "spam"), spam_filter.learn(raw, "spam")] == [True, False]
    assert classes(spam_filter) == {"ham": 0, "spam": 1}
    assert [spam_filter.learn(raw, "ham"), spam_filter.learn(raw, "ham")] == [True, False]
    assert classes(spam_filter) == {"ham": 1, "spam": 0}
    assert [spam_filter.learn(raw, "news"), spam_filter.forget(raw), spam_filter.forget(raw)] == [
        True,
        True,
        False,
    ]
    assert classes(spam_filter) == {"ham": 0, "spam": 0, "news": 0}
    assert spam_filter.learn(raw, "spam")
    assert not spam_filter.forget(HAM[0])
    assert classes(spam_filter) == {"ham": 0, "spam": 1, "news": 0}


def test_many_messages_are_taught_in_one_transaction(spam_filter: Filter) -> None:
    pairs = [(SPAM[0], "spam"), (HAM[0], "ham"), (SPAM[1], "news"), (SPAM[0], "spam")]
    before = spam_filter.ledger.last_seq()
    assert spam_filter.learn_all(iter(pairs), user="anna") == [True, True, True, False]
    assert classes(spam_filter) == {"ham": 1, "spam": 1, "news": 1}
    assert spam_filter.ledger.last_seq() == before + 3
    assert spam_filter.learn_all(
        [(SPAM[0], "ham"), (SPAM[0], "spam"), (SPAM[0], "ham")], user="anna"
    )
    assert classes(spam_filter) == {"ham": 2, "spam": 0, "news": 1}
    assert spam_filter.learn_all([]) == []


@pytest.mark.parametrize(
    ("pair", "error"), [((HAM[1], "Ham"), UnknownClassError), (("text", "ham"), TypeError)]
)
def test_of_many_messages_all_are_taught_or_none(
    spam_filter: Filter, pair: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        spam_filter.learn_all([(SPAM[0], "spam"), pair])
    assert spam_filter.status().events == 0


def test_a_batch_is_taught_in_one_transaction_and_sees_itself(spam_filter: Filter) -> None:
    ready = [spam_filter._reader.read_example(raw) for raw in (SPAM[0], SPAM[1], SPAM[0])]
    assert spam_filter.learn_examples(ready, "spam") == [True, True, False]
    digests = [example.digest for example in ready]
    assert spam_filter.forget_digests([*digests, b"0123456789abcdef"]) == [True, True, False, False]
    assert spam_filter.learn_examples([], "spam") == []
    assert spam_filter.status().events == 4


def test_what_was_taken_back_is_settled_soon(spam_filter: Filter) -> None:
    """Two people who disagree leave steps behind, by which the filter would judge until a tenth
    more was taught.
    """
    teach(spam_filter, mail(200, seed=5))
    spam_filter.settle()
    before = spam_filter.judge(SPAM[0])
    taught = [(SPAM[1], "spam", "anna"), (SPAM[2], "ham", "ben"), (SPAM[1], "ham", "ben")]
    for raw, label, user in taught:
        assert not spam_filter.is_settling_due()
        spam_filter.learn_examples([spam_filter._reader.read_example(raw)], label, user=user)
    assert spam_filter.settle_if_due()
    spam_filter.learn(SPAM[2], "spam", user="anna")
    assert spam_filter.judge(SPAM[0]) == before


def test_a_class_is_known_to_the_ledger_once_it_is_taught(spam_filter: Filter) -> None:
    """By which the pages and the API say what mail may be taught as."""
    assert spam_filter.learn(SPAM[0], "newsletter")
    assert spam_filter.learn(SPAM[1], "spam")
    assert spam_filter.ledger.classes() == {"newsletter": False}


def test_a_message_is_the_same_after_delivery(spam_filter: Filter) -> None:
    assert spam_filter.learn(SPAM[0], "spam")
    delivered = add_fields(SPAM[0], [b"Received: from a by b", b"X-Spamguard: spam"], []).replace(
        b"\n", b"\r\n"
    )
    assert not spam_filter.learn(delivered, "spam")
    assert spam_filter.forget(delivered)


def test_the_majority_of_users_teaches_and_a_tie_teaches_nothing(spam_filter: Filter) -> None:
    raw = SPAM[0]
    steps = [
        ("anna", "spam", {"ham": 0, "spam": 1}),
        ("bob", "ham", {"ham": 0, "spam": 0}),
        ("cleo", "spam", {"ham": 0, "spam": 1}),
        ("", "spam", {"ham": 0, "spam": 1}),
        ("anna", "ham", {"ham": 0, "spam": 0}),
        ("cleo", "ham", {"ham": 1, "spam": 0}),
    ]
    for user, label, expected in steps:
        assert spam_filter.learn(raw, label, user=user)
        assert classes(spam_filter) == expected
    assert not spam_filter.forget(raw, user="dora")
    for user in ("anna", "bob", "cleo"):
        assert spam_filter.forget(raw, user=user)
    assert classes(spam_filter) == {"ham": 0, "spam": 1}
    assert spam_filter.forget(raw)
    assert not spam_filter._store.tables.rows[:, :2].any()


def test_receipts_say_who_where_and_what_was_thought_before(spam_filter: Filter) -> None:
    teach(spam_filter, MAIL[:10])
    spam_filter.learn(SPAM[-1], "spam", user="anna", origin="Junk")
    vote = spam_filter.ledger.get_vote(spam_filter._reader.digest(SPAM[-1]), "anna")
    assert vote is not None
    assert (vote.label, vote.user, vote.origin, vote.extractor) == (
        "spam",
        "anna",
        "Junk",
        EXTRACTOR,
    )
    assert len(vote.scores) == 2 * 10
    assert any(vote.scores)


def test_first_scores_are_taken_before_the_lesson(tmp_path: Path) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:20])
        features = spam_filter._reader.read_example(SPAM[-1]).features
        before = score_message(
            spam_filter._store.tables,
            spam_filter._parameters(),
            make_evidence(features, spam_filter._store.tables.bits),
        ).scores
        spam_filter.learn(SPAM[-1], "spam")
        vote = spam_filter.ledger.get_vote(spam_filter._reader.digest(SPAM[-1]), "")
        assert vote is not None
        assert codec.unpack_scores(vote.scores) == tuple(score / 256 for score in before[0])


def test_a_slip_of_the_hand_that_is_taken_back_leaves_no_trace_even_before_settling(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:50])
        spam_filter.settle()
        for gold, raw in MAIL[50:]:
            before = spam_filter.judge(raw).log_odds
            wrong = "spam" if gold == "ham" else "ham"
            teach(spam_filter, [(wrong, raw)])
            assert abs(spam_filter.judge(raw).log_odds - before) > 1
            spam_filter.forget_digests([spam_filter._reader.digest(raw)])
            assert spam_filter.judge(raw).log_odds == pytest.approx(before, abs=0.2)
            teach(
                spam_filter, [(wrong, raw), (gold, raw)]
            )  # said wrongly, corrected, and all taken back
            spam_filter.forget_digests([spam_filter._reader.digest(raw)])
            assert spam_filter.judge(raw).log_odds == pytest.approx(before, abs=0.4)


def test_whoever_teaches_a_message_again_keeps_what_was_thought_of_it_first(
    spam_filter: Filter,
) -> None:
    teach(spam_filter, MAIL[:20])
    name = spam_filter._reader.digest(SPAM[-1])
    teach(spam_filter, [("ham", SPAM[-1])], user="anna")
    first = spam_filter.ledger.scores.first_scores([name], EXTRACTOR)[name]
    teach(spam_filter, [("spam", SPAM[-1])], user="bob")
    teach(spam_filter, [("spam", SPAM[-1])], user="anna")
    for user in ("anna", "bob"):
        vote = spam_filter.ledger.get_vote(name, user)
        assert vote is not None
        assert vote.scores == first


def test_no_scores_are_taken_of_a_message_that_came_without(spam_filter: Filter) -> None:
    teach(spam_filter, MAIL[:20])
    ready = spam_filter._reader.read_example(SPAM[-1])
    spam_filter.ledger.append(
        [
            NewVote(
                ready.digest,
                "anna",
                "spam",
                codec.pack(ready.features),
                b"",
                "import",
                0,
                EXTRACTOR,
            )
        ]
    )
    teach(spam_filter, [("spam", SPAM[-1])], user="bob")
    vote = spam_filter.ledger.get_vote(ready.digest, "bob")
    assert vote is not None
    assert vote.scores == b""


def test_settling_comes_when_it_is_due(spam_filter: Filter) -> None:
    settled = []
    for label, raw in MAIL:
        spam_filter.learn(raw, label)
        settled.append(spam_filter.status().unsettled == 0)
    assert [number for number, was in enumerate(settled, start=1) if was] == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    assert not spam_filter.settle_if_due()


def test_what_was_poisoned_and_undone_was_never_there(tmp_path: Path) -> None:
    poison = [raw for label, raw in mail(500, seed=9) if label == "spam"][:150]
    with opened(tmp_path / "poisoned") as first, opened(tmp_path / "clean") as clean:
        for spam_filter in (first, clean):
            teach(spam_filter, MAIL[:40])
        first.learn_examples([first._reader.read_example(raw) for raw in poison], "ham")
        first.settle()
        teach(first, MAIL[40:50])
        teach(clean, MAIL[40:50])
        assert first.judge(SPAM[-1]) != clean.judge(SPAM[-1])
        assert all(first.forget_digests([first._reader.digest(raw) for raw in poison]))
        for spam_filter in (first, clean):
            spam_filter.settle()
        assert held(first) == held(clean)
        assert [first.judge(raw) for _, raw in MAIL] == [clean.judge(raw) for _, raw in MAIL]


@pytest.mark.slow
def test_poison_that_is_taken_back_does_no_more_harm_before_settling_than_it_did(
    tmp_path: Path,
) -> None:
    lessons, later = mail(400, seed=3), mail(300, seed=4)
    poison = [raw for label, raw in mail(500, seed=9) if label == "spam"][:150]
    with opened(tmp_path) as spam_filter:
        spam_filter.learn_examples([spam_filter._reader.read_example(raw) for raw in poison], "ham")
        teach(spam_filter, lessons)
        spam_filter.settle()
        left = log_loss(spam_filter, later)
        assert all(spam_filter.forget_digests([spam_filter._reader.digest(raw) for raw in poison]))
        taken_back = log_loss(spam_filter, later)
        spam_filter.settle()
        assert log_loss(spam_filter, later) < taken_back <= left


def log_loss(spam_filter: Filter, messages: list[tuple[str, bytes]]) -> float:
    verdicts = spam_filter.judge_all(raw for _, raw in messages)
    odds = [
        verdict.log_odds * (1 if label == "spam" else -1)
        for verdict, (label, _) in zip(verdicts, messages, strict=True)
    ]
    return sum(log1p(exp(-min(each, 500.0))) for each in odds) / len(odds)


def test_teaching_class_by_class_and_settling_is_teaching_them_mixed(tmp_path: Path) -> None:
    lessons = [*MAIL[:50], *(("news", raw) for _, raw in mail(12, seed=5))]
    with opened(tmp_path / "sorted") as first, opened(tmp_path / "mixed") as second:
        teach(first, sorted(lessons))
        teach(second, lessons)
        second.settle()
        teach(second, lessons)  # nothing new
        assert held(first) != held(second)
        for spam_filter in (first, second):
            spam_filter.settle()
        assert held(first) == held(second)


def test_relearning_by_many_users_and_settling_depends_on_the_lessons_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "quarrel") as first, opened(tmp_path / "plain") as second:
        for label, raw in MAIL[:20]:
            teach(first, [("spam" if label == "ham" else "ham", raw), (label, raw)], user="anna")
            teach(first, [("news", raw)], user="bob")
            first.forget(raw, user="bob")
        teach(second, MAIL[:20])
        for spam_filter in (first, second):
            spam_filter.settle()
        assert held(first) == held(second)


@pytest.mark.slow
def test_forty_classes(spam_filter: Filter) -> None:
    lessons = [(f"class{number % 40:02}", raw) for number, (_, raw) in enumerate(mail(80, seed=3))]
    for label, _ in lessons:
        spam_filter.define_class(label, unwanted=label > "class30")
    teach(spam_filter, lessons)
    spam_filter.settle()
    with opened(spam_filter.directory) as other:
        verdict = other.judge(lessons[0][1])
        assert len(verdict.probabilities) == 42
        assert held(other) == held(spam_filter)
        for _, raw in lessons:
            spam_filter.forget(raw)
        assert list(other.judge(lessons[0][1]).probabilities) == ["ham", "spam"]


def test_a_hundred_thousand_tokens(spam_filter: Filter) -> None:
    raw = b"Subject: long\n\n" + b" ".join(b"w%d" % number for number in range(100_000))
    teach(spam_filter, MAIL[:6])
    before = spam_filter._store.tables.rows[:, :2].copy()
    spam_filter.learn(raw, "spam")
    assert spam_filter.judge(raw).log_odds > 0
    assert (spam_filter._store.tables.rows[:, 1] > before[:, 1]).mean() > 0.1
    spam_filter.forget(raw)
    assert (spam_filter._store.tables.rows[:, :2] == before).all()
