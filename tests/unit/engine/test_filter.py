"""Judging and explaining with a filter in a directory, and directories that are damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from spamguard.engine import policy
from spamguard.engine.filter import Filter
from spamguard.errors import LedgerError, SpamguardError, TableError, UnknownClassError, UsageError
from spamguard.records import EXTRACTOR
from tests.support.waiting import PATIENCE
from tests.unit.filters import KEY, files, mail, opened, python, serve, teach

MAIL = mail(90)
HAM, SPAM = ([raw for label, raw in MAIL if label == kind] for kind in ("ham", "spam"))
ODD = (
    b"",
    b"\n",
    b"\r\n",
    b"no header",
    b"\0" * 500,
    b": \n :\n",
    b"x" * 100_000,
    b"A: b\n\n" + bytes(range(256)) * 9,
)


@pytest.fixture
def spam_filter(tmp_path: Path) -> Iterator[Filter]:
    with opened(tmp_path / "state") as spam_filter:
        yield spam_filter


# Judging


def test_it_learns_to_tell_spam_from_ham(tmp_path: Path) -> None:
    much = mail(400, seed=2)
    with opened(tmp_path, bits=18) as spam_filter:
        teach(spam_filter, much[:300])
        for settles in (False, True):
            if settles:
                spam_filter.settle()
            judged = [(label, spam_filter.judge(raw).label) for label, raw in much[300:]]
            assert sum(label == gold for gold, label in judged) >= 65
            assert sum(label not in (gold, "unsure") for gold, label in judged) <= 3


def test_a_new_filter_is_unsure(spam_filter: Filter) -> None:
    for raw in (MAIL[0][1], *ODD):
        verdict = spam_filter.judge(raw)
        assert (verdict.label, verdict.probability, verdict.log_odds) == ("unsure", 0.5, 0.0)
        assert verdict.probabilities == {"ham": 0.5, "spam": 0.5}


def test_probabilities_sum_to_one_and_probability_to_those_unwanted(taught: Filter) -> None:
    assert taught.unwanted == {"spam", "promo"}
    for raw in (*HAM, *SPAM, *ODD):
        verdict = taught.judge(raw)
        assert list(verdict.probabilities) == ["ham", "spam", "news", "promo"]
        assert sum(verdict.probabilities.values()) == pytest.approx(1.0)
        bad = verdict.probabilities["spam"] + verdict.probabilities["promo"]
        assert verdict.probability == pytest.approx(bad, abs=1e-9)
        if verdict.label != "unsure":
            side = [
                name for name in verdict.probabilities if (name in taught.unwanted) == (bad > 0.5)
            ]
            assert verdict.label == max(side, key=verdict.probabilities.__getitem__)


@pytest.mark.parametrize("label", ["ham", "spam"])
def test_one_class_alone_ranks_but_gives_no_label(spam_filter: Filter, label: str) -> None:
    mine, others = (SPAM, HAM) if label == "spam" else (HAM, SPAM)
    teach(spam_filter, [(label, raw) for raw in mine[:20]])
    spam_filter.settle()
    judged = [[spam_filter.judge(raw) for raw in some] for some in (mine[20:], others)]
    assert {verdict.label for some in judged for verdict in some} == {"unsure"}
    means = [sum(verdict.log_odds for verdict in some) / len(some) for some in judged]
    assert (means[0] > means[1]) is (label == "spam")
    assert all(0 < verdict.probability < 1 for some in judged for verdict in some)


def test_few_lessons_are_unsure(spam_filter: Filter) -> None:
    for number in range(policy.MIN_LESSONS):
        assert spam_filter.judge(SPAM[-1]).label == "unsure"
        teach(spam_filter, [("ham", HAM[number]), ("spam", SPAM[number])])
    assert {spam_filter.judge(raw).label for raw in (*HAM[20:], *SPAM[20:])} > {"unsure"}


def test_odd_messages_are_judged_taught_and_taken_back(spam_filter: Filter) -> None:
    teach(spam_filter, MAIL[:10])
    for raw in ODD:
        assert isinstance(spam_filter.judge(raw).probability, float)
        assert spam_filter.learn(raw, "spam")
        assert spam_filter.forget(raw)


@pytest.mark.parametrize("profile", ["default", "multinomial"])
def test_a_message_is_bytes_and_a_user_is_text(tmp_path: Path, profile: str) -> None:
    with opened(tmp_path, profile=profile) as spam_filter:
        text: Any = HAM[0].decode("latin-1")
        for use in (
            spam_filter.judge,
            spam_filter.scan,
            spam_filter.forget,
            lambda raw: spam_filter.learn(raw, "ham"),
            lambda raw: list(spam_filter.judge_all([raw])),
        ):
            with pytest.raises(TypeError, match="a message is bytes, as it came, and this is str"):
                use(text)
        for user in (None, b"anna", 7):
            odd: Any = user
            with pytest.raises(TypeError, match="the name of a user is a str"):
                spam_filter.learn(HAM[0], "ham", user=odd)
            with pytest.raises(TypeError, match="the name of a user is a str"):
                spam_filter.forget(HAM[0], user=odd)
        assert spam_filter.status().events == 0
    with opened(tmp_path) as spam_filter, pytest.raises(TypeError, match="and this is str"):
        spam_filter.explain(text)


def test_judging_and_explaining_never_write(tmp_path: Path) -> None:
    with opened(tmp_path / "state") as first:
        teach(first, MAIL[:30])
        first.settle()
        teach(first, MAIL[30:40])
        before = files(first.directory)
        with opened(tmp_path / "state") as second:
            for raw in (*HAM[-5:], *SPAM[-5:], *ODD):
                second.judge(raw)
                second.explain(raw)
            second.status()
            assert files(first.directory) == before


def test_judging_goes_on_while_another_process_holds_the_lock_and_after_its_snapshot_is_gone(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as first, opened(tmp_path) as second:
        teach(first, MAIL[:30])
        first.settle()
        verdict = second.judge(HAM[-1])
        for path in tmp_path.glob("tables-*"):
            path.unlink()
        db = sqlite3.connect(tmp_path / "ledger.sqlite")
        db.execute("BEGIN IMMEDIATE")
        assert second.judge(HAM[-1]) == verdict
        db.close()


def test_a_lesson_is_in_force_at_the_next_judgement_of_another_process(tmp_path: Path) -> None:
    context = get_context("spawn")
    here, there = context.Pipe()
    with opened(tmp_path) as spam_filter:
        process = context.Process(target=serve, args=(str(tmp_path), there))
        process.start()
        try:
            for step in range(8):
                teach(spam_filter, MAIL[4 * step : 4 * step + 4])
                if step == 5:
                    spam_filter.settle()
                for raw in (HAM[-1], SPAM[-1]):
                    here.send(raw)
                    assert here.poll(30)
                    verdict = spam_filter.judge(raw)
                    assert here.recv() == (verdict.label, verdict.log_odds)
        finally:
            here.send(b"")
            process.join(PATIENCE)
    assert process.exitcode == 0


def test_a_class_that_another_process_makes_unwanted_counts_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as first, opened(tmp_path) as second:
        teach(first, [("ham", raw) for raw in HAM[:10]] + [("promo", raw) for raw in SPAM[:10]])
        assert second.judge(SPAM[0]).probability < 0.5
        first.define_class("promo", unwanted=True)
        assert second.judge(SPAM[0]).probability > 0.5
        assert second.judge(SPAM[0]).label == "promo"


# The directory


def test_a_filter_is_made_where_there_is_none_and_found_again(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    with Filter.open(place, _bits=12, _durable=False) as spam_filter:
        assert spam_filter.learn(SPAM[0], "spam")
        assert spam_filter.status().buckets == 1 << 12
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}
    with Filter.open(str(place)) as spam_filter:
        assert spam_filter.status().buckets == 1 << 12  # chosen once
        assert spam_filter.status().classes == {"ham": 0, "spam": 1}


def test_a_filter_stays_where_it_is_when_its_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(Path("state")) as first, opened(Path("state")) as second:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        teach(first, MAIL[:20])
        first.settle()
        assert second.judge(SPAM[-1]) == first.judge(SPAM[-1])
        assert first.status().tables_bytes
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_durable_is_a_setting_of_the_ledger(tmp_path: Path) -> None:
    for durable, level in ((True, 2), (False, 1)):
        with opened(tmp_path, durable=durable) as spam_filter:
            assert spam_filter.ledger._db.execute("PRAGMA synchronous").fetchone()[0] == level
            teach(spam_filter, MAIL[:3])
            spam_filter.settle()


def test_status_counts(taught: Filter) -> None:
    status = taught.status()
    assert status.classes == taught.ledger.lesson_counts()
    assert sum(status.classes.values()) == 60
    assert (status.events, status.unsettled, status.extractor) == (60, 0, EXTRACTOR)
    assert set(status.vocabulary) == set(status.used) == {"words", "clues", "pairs", "grams"}
    assert all(
        status.used[name] == status.vocabulary[name] / (status.buckets / 4) for name in status.used
    )
    assert 0 < status.used["words"] < 1
    assert 10_000 < status.tables_bytes < 40 * status.buckets
    assert status.fingerprint == taught.ledger.fingerprint
    taught.close()
    assert status.ledger_bytes == taught.ledger.path.stat().st_size, (
        "what is in the log counts, which the last to close writes back"
    )


def _remove_key(place: Path) -> None:
    (place / "key").unlink()


def _cut_key(place: Path) -> None:
    (place / "key").write_bytes(KEY[:-1])


def _change_key(place: Path) -> None:
    (place / "key").write_bytes(KEY[::-1])


def _other_version(place: Path) -> None:
    with sqlite3.connect(place / "ledger.sqlite") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


def _no_ledger(place: Path) -> None:
    for path in place.glob("ledger.sqlite*"):
        path.unlink()
    (place / "ledger.sqlite").write_bytes(b"something else" * 100)


def _cut_tables(place: Path) -> None:
    (path,) = place.glob("tables-*")
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_remove_key, "the key is missing.*backup"),
        (_cut_key, "not a key of 32 bytes"),
        (_change_key, "was taught with key .*restore its key"),
        (_other_version, "schema 99, this program reads 2 only"),
        (_no_ledger, "not a spamguard ledger"),
        (_cut_tables, "run `spamguard rebuild`"),
    ],
)
def test_damage_is_one_clear_line_and_nothing_is_changed(
    tmp_path: Path, damage: object, told: str
) -> None:
    with opened(tmp_path) as spam_filter:
        teach(spam_filter, MAIL[:10])
        spam_filter.settle()
    damage(tmp_path)
    before = files(tmp_path)
    with pytest.raises((LedgerError, TableError), match=told) as error:
        Filter.open(tmp_path)
    assert "\n" not in str(error.value)
    assert {
        name: content for name, content in files(tmp_path).items() if "wal" not in name
    } == before


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LedgerError, match="choose a state directory"):
            Filter.open(place)
    assert (tmp_path / "file").read_bytes() == b"mine"


NOBODY = """
import os
from spamguard.errors import SpamguardError
opened(Path(sys.argv[2])).close()
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Filter.open(sys.argv[1])
except SpamguardError as error:
    print(error)
"""


@pytest.mark.parametrize(("mode", "exists"), [*product((0o500, 0o000), (True, False))])
def test_a_directory_that_another_user_may_not_write_or_enter(
    tmp_path: Path, mode: int, exists: bool
) -> None:
    place = tmp_path / "state"
    if exists:
        opened(place).close()
    else:
        place.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    place.chmod(mode)
    done = python(NOBODY, str(place), str(tmp_path / "other"))
    place.chmod(0o700)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert str(place) in done.stdout


def test_an_unknown_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of default, bernoulli"):
        Filter.open(tmp_path / "state", profile="magic")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Spam", "cannot be a class"),
        ("", "cannot be a class"),
        ("unsure", "cannot be a class"),
        ("not-scanned", "cannot be a class"),
        ("any", "cannot be a class"),
        ("a" * 33, "cannot be a class"),
        ("a b", "cannot be a class"),
        ("spma", r"did you mean 'spam'.*define_class"),
        (b"spam", "cannot be a class"),
        (None, "cannot be a class"),
    ],
)
def test_class_names(spam_filter: Filter, name: Any, told: str) -> None:
    with pytest.raises(UnknownClassError, match=told):
        spam_filter.learn(MAIL[0][1], name)
    assert spam_filter.status().events == 0


def test_a_name_that_looks_like_a_slip_can_be_meant(spam_filter: Filter) -> None:
    spam_filter.define_class("spam2", unwanted=True)
    assert spam_filter.learn(MAIL[0][1], "spam2")
    assert spam_filter.unwanted == {"spam", "spam2"}
    with pytest.raises(UnknownClassError, match="did you mean 'spam2'"):
        spam_filter.learn(MAIL[1][1], "sspam2")
    for name, unwanted in (("ham", True), ("spam", False)):
        with pytest.raises(UnknownClassError, match="is always"):
            spam_filter.define_class(name, unwanted=unwanted)


def test_a_class_defined_but_never_taught_changes_no_verdict(spam_filter: Filter) -> None:
    teach(spam_filter, MAIL[:20])
    before = spam_filter.judge(SPAM[-1])
    spam_filter.define_class("promo", unwanted=True)
    assert spam_filter.status().classes["promo"] == 0
    assert spam_filter.judge(SPAM[-1]) == before
    spam_filter.settle()
    assert list(spam_filter.judge(SPAM[-1]).probabilities) == ["ham", "spam"]


def test_all_errors_are_of_one_family() -> None:
    assert all(
        issubclass(kind, SpamguardError)
        for kind in (LedgerError, TableError, UnknownClassError, UsageError)
    )


@pytest.mark.parametrize("profile", ["default", "multinomial"])
def test_many_are_judged_as_each_would_be(tmp_path: Path, profile: str) -> None:
    with opened(tmp_path) as teacher:
        teach(teacher, MAIL[:40])
    with opened(tmp_path, profile=profile) as spam_filter:
        messages = [raw for _, raw in MAIL[30:]]
        assert list(spam_filter.judge_all(messages)) == [spam_filter.judge(raw) for raw in messages]
        assert list(spam_filter.judge_all([])) == []


def test_a_lesson_between_two_of_many_counts_from_the_next_on(tmp_path: Path) -> None:
    with opened(tmp_path) as first, opened(tmp_path) as second:
        teach(first, MAIL[:40])
        for teacher in (first, second):  # the same process, or another
            raw = next(
                raw
                for label, raw in MAIL[40:]
                if label == "spam" and first.judge(raw).label != "ham"
            )
            verdicts = first.judge_all([raw, raw])
            before = next(verdicts)
            teach(teacher, [("ham", raw)])
            assert next(verdicts) == first.judge(raw) != before
            teacher.forget(raw)


def test_a_class_that_turns_unwanted_between_two_of_many_does_so_from_the_next_on(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as spam_filter:
        spam_filter.define_class("promo", unwanted=False)
        teach(
            spam_filter, [("promo" if label == "spam" else label, raw) for label, raw in MAIL[:40]]
        )
        spam_filter.settle()
        raw = next(raw for label, raw in MAIL[40:] if label == "spam")
        verdicts = spam_filter.judge_all([raw, raw])
        before = next(verdicts)
        spam_filter.define_class("promo", unwanted=True)
        assert next(verdicts) == spam_filter.judge(raw)
        assert spam_filter.judge(raw).probability > 0.5 > before.probability
