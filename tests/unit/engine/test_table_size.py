"""Tables that grow when they are settled: their size follows from the lessons alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from spamguard.bayes.tables import DEFAULT_BITS
from spamguard.engine import store
from spamguard.engine.filter import Filter
from spamguard.engine.snapshot import read_snapshot
from spamguard.ledger import codec
from spamguard.mail.content import NUMBERS, TRAITS
from spamguard.records import EXTRACTOR, Explanation, Features, Verdict, Vote
from tests.support.waiting import PATIENCE
from tests.unit.filters import BITS, bits_of, held, mail, opened, serve, teach
from tests.unit.native.both import both, needs_kernel

pytestmark = pytest.mark.slow

MAIL = mail(150)
PROBES = [raw for _, raw in MAIL[130:]]
FEW, MANY = 60, 120  # 64 lessons fill 2**14 buckets; 128 would fill 2**15, but tables grow once
Open = Callable[..., Filter]


@pytest.fixture
def open_filter(tmp_path: Path) -> Iterator[Open]:
    """Opens the same filter again and again, as other processes would."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened(tmp_path / "state", **settings))


@pytest.fixture
def grown(open_filter: Open) -> Filter:
    """Of two users, too."""
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:MANY])
    teach(
        spam_filter,
        [("ham" if label == "spam" else "spam", raw) for label, raw in MAIL[:6]],
        "anna",
    )
    teach(spam_filter, MAIL[:6], "ben")
    spam_filter.settle()
    assert bits(spam_filter) == BITS + 1
    return spam_filter


def bits(spam_filter: Filter) -> int:
    return spam_filter.status().buckets.bit_length() - 1


def judged(spam_filter: Filter, user: str = "") -> list[Verdict]:
    return [spam_filter.judge(raw, user=user) for raw in PROBES]


def nothing_turned(before: list[Verdict], after: list[Verdict]) -> bool:
    """Whether no message went from one answer to the other; doubt may come and go, since other
    words collide.
    """
    return {"ham", "spam"} not in [
        {old.label, new.label} for old, new in zip(before, after, strict=True)
    ]


def forget(spam_filter: Filter, some: list[tuple[str, bytes]]) -> None:
    spam_filter.forget_digests([spam_filter._reader.digest(raw) for _, raw in some])


def parts(why: Explanation) -> tuple[float, float]:
    by_feature = (
        sum(clue.part for clue in why.clues)
        + sum(why.traits.values())
        + sum(why.numbers.values())
        + why.biases
    )
    return why.prior + sum(why.shares.values()), why.prior + by_feature


def test_only_settling_changes_the_size(open_filter: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:MANY])
    assert bits(spam_filter) == bits(open_filter()) == BITS
    spam_filter.settle()
    assert bits(spam_filter) == bits(open_filter()) == BITS + 1
    monkeypatch.setattr(store, "_MAX_TAIL_EVENTS", 1)
    forget(spam_filter, MAIL[FEW:MANY])
    assert spam_filter._store.stamp.seq > spam_filter._store.stamp.settled  # saved as they are
    assert bits(spam_filter) == bits(open_filter()) == BITS + 1
    spam_filter.settle()
    assert bits(spam_filter) == bits(open_filter()) == BITS


def test_what_was_forgotten_leaves_no_trace_in_the_size_either(open_filter: Open) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:FEW])
    spam_filter.settle()
    before, verdicts = held(spam_filter), judged(spam_filter)
    teach(spam_filter, MAIL[FEW:MANY])
    spam_filter.settle()
    assert judged(spam_filter) != verdicts
    forget(spam_filter, MAIL[FEW:MANY])
    spam_filter.settle()
    assert held(spam_filter) == before
    assert judged(spam_filter) == verdicts


def test_they_are_as_if_they_had_always_been_so_large(grown: Filter, tmp_path: Path) -> None:
    with opened(tmp_path / "large", bits=BITS + 1) as large:
        large.ledger.merge(grown.ledger.all_votes())
        large.settle()
        assert held(large) == held(grown)
        assert judged(large) == judged(grown)
        for spam_filter in (large, grown):
            teach(spam_filter, MAIL[MANY:125])
            forget(spam_filter, MAIL[:3])
        assert held(large)["rows"] == held(grown)["rows"]
        assert bits(large) == bits(grown)


def test_mail_is_judged_as_before(open_filter: Open) -> None:
    spam_filter = open_filter()
    teach(spam_filter, MAIL[:64])
    spam_filter.settle()
    before = judged(spam_filter)
    teach(spam_filter, MAIL[64:65])
    spam_filter.settle()
    assert bits(spam_filter) == BITS + 1
    after = judged(spam_filter)
    assert nothing_turned(before, after)
    assert list(spam_filter.judge_all(PROBES)) == after
    assert [spam_filter.scan(raw).verdict for raw in PROBES] == after
    for raw, verdict in zip(PROBES, after, strict=True):
        why = spam_filter.explain(raw)
        assert parts(why) == pytest.approx((verdict.log_odds, verdict.log_odds))
        assert all(clue.text for clue in why.clues)


def test_whoever_holds_the_old_ones_judges_by_the_new_ones_next(
    open_filter: Open, tmp_path: Path
) -> None:
    context = get_context("spawn")
    here, there = context.Pipe()
    spam_filter, other = open_filter(), open_filter()
    process = context.Process(target=serve, args=(str(tmp_path / "state"), there))
    process.start()

    def compare() -> None:
        expected = judged(spam_filter)
        assert judged(other) == judged(open_filter()) == expected
        for raw, verdict in zip(PROBES[:4], expected, strict=False):
            here.send(raw)
            assert here.poll(60)
            assert here.recv() == (verdict.label, verdict.log_odds)

    try:
        for first, last, size in ((0, FEW, BITS), (FEW, MANY, BITS + 1), (MANY, 130, BITS + 1)):
            teach(other, MAIL[first:last])
            spam_filter.settle()
            assert bits(spam_filter) == size
            compare()
            teach(other, [("news", MAIL[first][1])])  # folded into tables of this size by all
            compare()
        assert held(spam_filter) == held(other)
    finally:
        here.send(b"")
        process.join(PATIENCE)
    assert process.exitcode == 0


def test_a_bulk_that_is_being_judged_goes_on_with_the_new_ones(open_filter: Open) -> None:
    spam_filter, other = open_filter(), open_filter()
    teach(spam_filter, MAIL[:MANY])
    verdicts = spam_filter.judge_all(PROBES)
    first = next(verdicts)
    other.settle()
    rest = list(verdicts)
    assert [first.label, *(verdict.label for verdict in rest)] == [
        verdict.label for verdict in judged(spam_filter)
    ]
    assert rest == judged(spam_filter)[1:]


def test_what_a_user_has_said_lies_where_the_tables_have_it(
    open_filter: Open, tmp_path: Path
) -> None:
    spam_filter, teacher = open_filter(), open_filter()
    teach(teacher, MAIL[:64])
    teach(teacher, [("ham" if label == "spam" else "spam", raw) for label, raw in MAIL[:6]], "anna")
    teach(teacher, MAIL[:6], "ben")
    teacher.settle()
    contested = [raw for _, raw in MAIL[:6]]

    def compare() -> list[Verdict]:
        fresh = open_filter()
        for user in ("anna", "ben", "emma"):
            assert judged(spam_filter, user) == judged(fresh, user)
        verdicts = [spam_filter.judge(raw, user="anna") for raw in contested]
        assert (
            verdicts
            == [fresh.judge(raw, user="anna") for raw in contested]
            != [spam_filter.judge(raw) for raw in contested]
        )
        assert verdicts == [
            spam_filter.scan(raw, users=("anna",)).personal["anna"] for raw in contested
        ]
        for raw, verdict in zip(contested, verdicts, strict=True):
            assert parts(spam_filter.explain(raw, user="anna")) == pytest.approx(
                (verdict.log_odds, verdict.log_odds)
            )
        return verdicts

    before = compare()
    teach(teacher, MAIL[64:MANY])
    compare()
    teacher.settle()
    assert bits(spam_filter) == BITS + 1
    after = compare()
    assert nothing_turned(before, after)
    forget(teacher, MAIL[FEW:MANY])
    teacher.settle()
    assert bits(spam_filter) == BITS
    compare()


def test_tables_that_are_made_anew_from_the_ledger_alone(grown: Filter, open_filter: Open) -> None:
    before = held(grown)
    for path in grown.directory.glob("tables-*"):
        path.write_bytes(b"damaged")
    open_filter(load=False).settle()
    assert held(open_filter()) == held(grown) == before


@needs_kernel
def test_with_and_without_the_kernel(grown: Filter) -> None:
    def work() -> tuple[object, list[Verdict], list[Verdict]]:
        grown.settle()
        return held(grown), judged(grown), judged(grown, "anna")

    compiled, plain = both(work)
    assert compiled == plain


def votes(number: int, label: str) -> Iterator[Vote]:
    """Of other messages, all alike: a word and a pair of their class."""
    words = np.array(
        [7, 1 << 31 | 7] if label == "ham" else [9 << 20, 1 << 31 | 9 << 20], np.uint32
    )
    packed = codec.pack(
        Features(words, np.zeros(len(TRAITS), np.uint8), np.zeros(len(NUMBERS), np.int16))
    )
    for at in range(number):
        yield Vote(
            b"%s %d" % (label.encode(), at),
            "",
            1 + at,
            "elsewhere",
            label,
            packed,
            b"",
            "",
            0,
            EXTRACTOR,
        )


def test_a_ledger_of_before_grows_at_its_next_settling(tmp_path: Path) -> None:
    with opened(tmp_path / "state", bits=DEFAULT_BITS) as spam_filter:
        spam_filter.ledger.merge(votes(8192, "ham"))
        spam_filter.ledger.merge(votes(8192, "spam"))
        spam_filter.settle()
        assert bits(spam_filter) == DEFAULT_BITS
        spam_filter.learn(PROBES[0], "ham")
        before = judged(spam_filter)
        spam_filter.settle()
        assert bits(spam_filter) == DEFAULT_BITS + 1
        assert nothing_turned(before, judged(spam_filter))
        assert held(spam_filter) == bits_of(
            read_snapshot(next(spam_filter.directory.glob("tables-*")))
        )
