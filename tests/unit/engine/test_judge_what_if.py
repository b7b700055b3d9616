"""What if: the verdicts shown are those that the lesson brings about; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from spamguard.engine import store
from spamguard.engine.filter import Filter
from spamguard.engine.what_if import open_what_if
from spamguard.errors import LedgerError
from spamguard.ledger.shared import LogRow
from spamguard.records import Verdict
from tests.contract.ledgers import push
from tests.unit.filters import files, held, mail, opened, teach

MAIL = mail(140)
LONG = time.monotonic() + 3600


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with opened(tmp_path / "state") as spam_filter:
        teach(spam_filter, MAIL[:60])
        spam_filter.settle()
        teach(spam_filter, MAIL[60:70])
        teach(spam_filter, MAIL[:8], "anna")
        teach(
            spam_filter,
            [("ham" if label == "spam" else "spam", raw) for label, raw in MAIL[8:12]],
            "anna",
        )
    return tmp_path / "state"


def judged(spam_filter: Filter, user: str = "") -> list[Verdict]:
    return [spam_filter.judge(raw, user=user) for _, raw in MAIL[70:]]


def supposed(
    spam_filter: Filter, raw: bytes, label: str, user: str = ""
) -> tuple[bool, Sequence[Verdict], Sequence[Verdict]]:
    features = [spam_filter._reader.read_example(message).features for _, message in MAIL[70:]]
    with open_what_if(spam_filter) as apart:
        before = apart.judge(features, user, LONG)
        changed = apart.overlay(spam_filter._reader.read_example(raw), label, user)
        return changed, before, apart.judge(features, user, LONG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "label", "user"),
    [
        pytest.param(80, "spam", "", id="new"),
        pytest.param(80, "ham", "anna", id="of a person"),
        pytest.param(3, "other", "", id="another class"),
        pytest.param(62, "ham", "", id="lately taught"),
        pytest.param(62, "spam", "", id="lately taught as spam"),
        pytest.param(9, "ham", "anna", id="against herself"),
        pytest.param(9, "ham", "", id="two of one mind"),
        pytest.param(81, "new", "anna", id="a new class"),
    ],
)
def test_it_is_what_teaching_does(state: Path, number: int, label: str, user: str) -> None:
    with opened(state) as spam_filter:
        expected, bits = judged(spam_filter, user), held(spam_filter)
        changed, before, after = supposed(spam_filter, MAIL[number][1], label, user)
        assert before == expected
        assert held(spam_filter) == bits
        assert judged(spam_filter, user) == expected
        assert spam_filter.learn_examples(
            [spam_filter._reader.read_example(MAIL[number][1])], label, user=user
        ) == [changed]
        assert judged(spam_filter, user) == after


def test_what_is_known_changes_nothing(state: Path) -> None:
    with opened(state) as spam_filter:
        changed, before, after = supposed(spam_filter, MAIL[3][1], MAIL[3][0], "anna")
        assert not changed
        assert before == after


def test_it_writes_nothing(state: Path) -> None:
    with opened(state) as spam_filter:
        before = files(state)
        assert supposed(spam_filter, MAIL[80][1], "spam")[0]
        assert files(state) == before


def test_what_is_taught_meanwhile_is_not_seen(state: Path) -> None:
    features = []
    with opened(state) as first, opened(state) as second:
        features = [first._reader.read_example(raw).features for _, raw in MAIL[70:]]
        with open_what_if(first) as apart:
            before = apart.judge(features, "", LONG)
            teach(second, [("spam", raw) for _, raw in MAIL[100:120]])
            second.settle()
            assert apart.judge(features, "", LONG) == before
            assert apart.overlay(first._reader.read_example(MAIL[80][1]), "spam", "")
            assert apart.judge(features, "", LONG) != before


@pytest.mark.parametrize("moment", ["read", "opened"])
def test_who_settles_while_it_begins_is_no_hindrance(
    state: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Settling takes the tables away that were current when the ledger was looked at, and puts
    others there that hold more events.
    """
    read, seen_through = store.read_snapshot, Filter.with_ledger

    def settle_elsewhere() -> None:
        monkeypatch.undo()
        with opened(state) as second:
            teach(second, [("spam", raw) for _, raw in MAIL[100:120]])
            second.settle()

    with opened(state) as first:
        if moment == "read":
            monkeypatch.setattr(
                store, "read_snapshot", lambda path: (settle_elsewhere(), read(path))[1]
            )
        else:
            monkeypatch.setattr(
                Filter,
                "with_ledger",
                lambda self, ledger: (settle_elsewhere(), seen_through(self, ledger))[1],
            )
        changed, before, after = supposed(first, MAIL[80][1], "spam")
        assert changed
        assert before == judged(first)
        first.learn_examples([first._reader.read_example(MAIL[80][1])], "spam")
        assert after == judged(first)
        assert after != before


def test_it_ends_in_time(state: Path) -> None:
    with opened(state) as spam_filter, open_what_if(spam_filter) as apart:
        features = [spam_filter._reader.read_example(raw).features for _, raw in MAIL[70:]]
        assert len(apart.judge(features, "", time.monotonic())) == 1


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_filter_that_shares_its_lessons(state: Path, is_cut_off: bool) -> None:
    """Also while other nodes' lessons come in."""
    rows: list[LogRow] = []
    with opened(state) as alone:
        alone.ledger.join()
    with opened(state) as spam_filter:
        log = spam_filter.ledger.shared
        if not is_cut_off:
            push(rows, log.read_pending(10_000, 1 << 30))
            log.apply(rows)
        expected = judged(spam_filter)
        changed, before, after = supposed(spam_filter, MAIL[80][1], "spam")
        assert changed
        assert before == expected
        spam_filter.learn_examples([spam_filter._reader.read_example(MAIL[80][1])], "spam")
        assert judged(spam_filter) == after != before
        features = [spam_filter._reader.read_example(raw).features for _, raw in MAIL[70:]]
        with open_what_if(spam_filter) as apart:
            push(rows, log.read_pending(10_000, 1 << 30))
            log.apply(rows)  # all events have other numbers now
            assert apart.judge(features, "", LONG) == after
            assert apart.overlay(spam_filter._reader.read_example(MAIL[81][1]), "ham", "")
            with pytest.raises(LedgerError, match="try again"):
                apart.judge(features, "", LONG)
