"""Trials, their protocols, and their results as files and text."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpora.synthetic import generate
from spamguard.engine import evaluate, prepare
from spamguard.engine.evaluate import (
    PROTOCOLS,
    ScoredMessage,
    Trial,
    TrialSettings,
    interleave,
    write_scores,
)
from spamguard.engine.filter import Filter
from spamguard.engine.measures import (
    Measures,
    confusion,
    confusion_table,
    measures,
    measures_table,
    report_document,
    roca,
)
from spamguard.sources import SourceMessage

pytestmark = pytest.mark.slow

MAIL = [
    SourceMessage(f"mail {number}", raw, label)
    for number, (label, raw) in enumerate(generate(80, 7))
]
SETTINGS = TrialSettings("default", share=0.6)
every = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones only cost time here."""
    whole = Filter.open
    monkeypatch.setattr(
        Filter, "open", lambda directory, **settings: whole(directory, _bits=14, **settings)
    )


class Spy:
    """Notes what a filter judges and is taught, by the number of the message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.judged: list[int] = []
        self.taught: list[tuple[int, str]] = []
        self.settled = 0
        self._numbers: dict[bytes, int] = {}
        judge, learn, ready = (
            Filter.judge_features,
            Filter.learn_examples,
            prepare.ExampleReader.read_example,
        )
        settle = Filter.settle

        def noting_ready(preparer: Any, raw: bytes) -> Any:
            found = ready(preparer, raw)
            self._numbers[found.features.tokens.tobytes()] = next(
                at for at, one in enumerate(MAIL) if one.raw == raw
            )
            return found

        def noting_all(preparer: Any, messages: list[bytes]) -> Any:
            return [noting_ready(preparer, raw) for raw in messages]

        def noting_judge(spam_filter: Filter, features: Any) -> Any:
            self.judged.append(self._numbers[features.tokens.tobytes()])
            assert self.judged[-1] not in {number for number, _ in self.taught}, (
                "judged after it was taught"
            )
            return judge(spam_filter, features)

        def noting_learn(spam_filter: Filter, lessons: Any, label: str) -> Any:
            self.taught += [
                (self._numbers[lesson.features.tokens.tobytes()], label) for lesson in lessons
            ]
            return learn(spam_filter, lessons, label)

        def noting_settle(spam_filter: Filter) -> None:
            self.settled += 1
            settle(spam_filter)

        monkeypatch.setattr(prepare.ExampleReader, "read_example", noting_ready)
        monkeypatch.setattr(prepare.ExampleReader, "read_examples", noting_all)
        monkeypatch.setattr(Filter, "judge_features", noting_judge)
        monkeypatch.setattr(Filter, "learn_examples", noting_learn)
        monkeypatch.setattr(Filter, "settle", noting_settle)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def tried(
    protocol: str, settings: TrialSettings = SETTINGS, mail: Iterable[SourceMessage] = MAIL
) -> list[Trial]:
    return list(evaluate.run_trial(protocol, lambda: iter(mail), settings))


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.row.n for trial in trials]


@every
def test_every_message_is_judged_once_and_never_after_it_was_taught(
    protocol: str, spy: Spy
) -> None:
    trials = tried(protocol)
    first = 48 if protocol == "split" else 0
    assert spy.judged == list(range(first, 80))
    assert numbers(trials) == list(range(first + 1, 81))
    assert [trial.row.gold for trial in trials] == [message.label for message in MAIL[first:]]
    assert all(label == MAIL[number].label for number, label in spy.taught)
    assert all(0.0 <= trial.probability <= 1.0 for trial in trials)


def test_online_teaches_every_message_at_once(spy: Spy) -> None:
    assert all(trial.row.trained for trial in tried("online"))
    assert [number for number, _ in spy.taught] == list(range(80))


def test_corrections_teach_what_was_wrong_or_unsure_and_nothing_else(spy: Spy) -> None:
    trials = tried("corrections")
    assert [trial.row.trained for trial in trials] == [
        trial.row.label != trial.row.gold for trial in trials
    ]
    assert [number + 1 for number, _ in spy.taught] == [
        trial.row.n for trial in trials if trial.row.trained
    ]
    assert 0 < len(spy.taught) < 80


def test_split_teaches_the_first_part_and_settles_and_learns_no_more(spy: Spy) -> None:
    trials = tried("split")
    assert [number for number, _ in spy.taught] == list(range(48))
    assert spy.settled == 1
    assert not any(trial.row.trained for trial in trials)


@pytest.mark.parametrize(("share", "judged"), [(0.0, 80), (1.0, 0)])
def test_a_split_may_lie_at_either_end(share: float, judged: int) -> None:
    assert len(tried("split", TrialSettings("default", share=share))) == judged


@every
def test_no_mail_gives_no_rows(protocol: str) -> None:
    assert tried(protocol, mail=[]) == []


@every
def test_the_same_mail_gives_the_same_figures(protocol: str) -> None:
    assert tried(protocol) == tried(protocol)


@every
def test_classes_of_similar_names_are_each_a_class_of_their_own(protocol: str) -> None:
    named = [
        replace(one, label="ham2") if one.label == "ham" and number % 2 else one
        for number, one in enumerate(MAIL)
    ]
    assert {trial.row.gold for trial in tried(protocol, mail=named)} == {"ham", "ham2", "spam"}


def test_a_profile_is_tried_by_name() -> None:
    assert [trial.row.score for trial in tried("online")] != [
        trial.row.score for trial in tried("online", TrialSettings("bernoulli"))
    ]


@every
def test_nothing_is_written_but_in_a_directory_of_its_own_that_is_gone_afterwards(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []
    whole = Filter.open

    def noting(directory: str, **settings: Any) -> Filter:
        places.append(Path(directory))
        return whole(directory, **settings)

    monkeypatch.setattr(Filter, "open", noting)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("SPAMGUARD_STATE", str(tmp_path / "mine"))
    tried(protocol)
    assert [place.parent for place in places] == [tmp_path]
    assert list(tmp_path.iterdir()) == []


def test_whoever_stops_early_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trials = evaluate.run_trial("online", lambda: iter(MAIL), SETTINGS)
    next(iter(trials))
    assert len(list(tmp_path.iterdir())) == 1
    trials.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ham", "spam"), [(6, 3), (3, 6), (5, 5), (0, 4), (4, 0), (1, 100), (0, 0)]
)
def test_two_folders_keep_their_order_and_their_proportions(ham: int, spam: int) -> None:
    mixed = list(interleave(*_folder("h", ham), *_folder("s", spam)))
    assert [message.name for message in mixed if message.label == "ham"] == [
        f"h{at}" for at in range(ham)
    ]
    assert [message.name for message in mixed if message.label == "spam"] == [
        f"s{at}" for at in range(spam)
    ]
    for length in range(len(mixed)):
        given = sum(message.label == "ham" for message in mixed[:length])
        assert abs(given - length * ham / (ham + spam)) <= 1


def _folder(name: str, size: int) -> tuple[list[SourceMessage], int]:
    return [SourceMessage(f"{name}{at}", b"", None) for at in range(size)], size


@pytest.mark.parametrize("counts", [(0, 0), (1, 9), (100, 2)])
def test_folders_that_were_miscounted_still_come_whole(counts: tuple[int, int]) -> None:
    (ham, _), (spam, _) = _folder("h", 5), _folder("s", 7)
    mixed = list(interleave(ham, counts[0], spam, counts[1]))
    assert sorted(message.name for message in mixed) == sorted(
        message.name for message in (*ham, *spam)
    )


def some(noise: float = 1.0) -> Measures:
    rng = np.random.default_rng(1)
    gold = np.arange(200) % 2 == 0
    score = gold + rng.normal(scale=noise, size=200)
    return measures(
        gold,
        score,
        np.where(score > 1, "spam", "ham"),
        probability=1 / (1 + np.exp(-score)),
        resamples=20,
    )


def test_table_shows_a_run_in_line() -> None:
    lines = measures_table("all experts", some()).splitlines()
    assert lines[0].split() == ["all", "experts"]
    assert len({len(line) for line in lines}) == 1
    assert any(line.startswith("1-ROCA") for line in lines)


def test_what_is_missing_is_a_dash() -> None:
    text = measures_table("ham only", measures([False] * 3, [0.1] * 3, ["ham"] * 3))
    assert "nan" not in text
    assert text.count("–") == 8


def test_confusion_table() -> None:
    text = confusion_table(confusion(["ham", "spam", "spam"], ["ham", "spam", "unsure"]))
    assert (
        text == "called \\ truly  ham  spam\n"
        "ham               1     0\n"
        "spam              0     1\n"
        "unsure            0     1\n"
    )


def test_document_is_json() -> None:
    matrix = confusion(["ham", "spam"], ["ham", "unsure"])
    document = json.loads(json.dumps(report_document({"run": some()}, matrix), allow_nan=False))
    assert document["confusion"] == {
        "predicted": ["ham", "spam", "unsure"],
        "actual": ["ham", "spam"],
        "counts": [[1, 0], [0, 0], [0, 1]],
    }
    assert document["runs"]["run"]["messages"] == 200


def test_scores_keep_every_digit(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    gold, score = rng.random(100) < 0.5, rng.normal(size=100) * 1e-9
    rows = [
        ScoredMessage(n, "spam" if g else "ham", "unsure", s, n % 2 == 0)
        for n, (g, s) in enumerate(zip(gold, score, strict=True), 1)
    ]
    write_scores(tmp_path / "scores.csv", rows)
    assert (tmp_path / "scores.csv").read_bytes().startswith(b"n,gold,label,score,trained\n1,")
    with (tmp_path / "scores.csv").open() as stream:
        read = list(csv.DictReader(stream))
    assert [row["trained"] for row in read[:2]] == ["0", "1"]
    assert roca(
        [row["gold"] == "spam" for row in read], [float(row["score"]) for row in read]
    ) == roca(gold, score)


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        evaluate.check_writable(pipe)
        write_scores(pipe, [ScoredMessage(1, "ham", "ham", -2.5, True)])
        assert os.read(reader, 1000) == b"n,gold,label,score,trained\n1,ham,ham,-2.5,1\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
