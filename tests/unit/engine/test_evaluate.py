"""Trials, their protocols, and their results as files and text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from corpora.synthetic import generate
from spamguard.engine import evaluate
from spamguard.engine.evaluate import (
    PROTOCOLS,
    ScoredMessage,
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
)
from spamguard.sources import SourceMessage

pytestmark = pytest.mark.slow

MAIL = [
    SourceMessage(f"mail {number}", raw, label)
    for number, (label, raw) in enumerate(generate(80, 7))
]
every = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones only cost time here."""
    whole = Filter.open
    monkeypatch.setattr(
        Filter, "open", lambda directory, **settings: whole(directory, _bits=14, **settings)
    )


def tried(
    protocol: str, profile: str = "default", mail: Iterable[SourceMessage] = MAIL
) -> list[ScoredMessage]:
    return list(evaluate.run_trial(protocol, lambda: iter(mail), profile, share=0.6))


@every
def test_the_same_mail_gives_the_same_figures(protocol: str) -> None:
    assert tried(protocol) == tried(protocol)


@every
def test_classes_of_similar_names_are_each_a_class_of_their_own(protocol: str) -> None:
    named = [
        one._replace(label="ham2") if one.label == "ham" and number % 2 else one
        for number, one in enumerate(MAIL)
    ]
    assert {trial.gold for trial in tried(protocol, mail=named)} == {"ham", "ham2", "spam"}


def test_whoever_stops_early_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trials = evaluate.run_trial("online", lambda: iter(MAIL), "default")
    next(iter(trials))
    assert len(list(tmp_path.iterdir())) == 1
    trials.close()
    assert list(tmp_path.iterdir()) == []


def some(noise: float = 1.0) -> Measures:
    rng = np.random.default_rng(1)
    gold = np.arange(200) % 2 == 0
    score = gold + rng.normal(scale=noise, size=200)
    return measures(
        gold,
        score,
        np.where(score > 1, "spam", "ham"),
        probability=1 / (1 + np.exp(-score)),
    )


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
