"""Tables line up, JSON is JSON, and the CSV is what other programs expect."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spamguard.errors import UsageError
from spamguard.evaluation import report
from spamguard.evaluation.metrics import Interval, Measures, confusion, learning_curve, measures, paired_bootstrap, roca
from spamguard.evaluation.report import Scored, confusion_table, document, read_scores, table, write_scores


def some(noise: float = 1.0) -> Measures:
    rng = np.random.default_rng(1)
    gold = np.arange(200) % 2 == 0
    score = gold + rng.normal(scale=noise, size=200)
    return measures(gold, score, np.where(score > 1, "spam", "ham"), probability=1 / (1 + np.exp(-score)), resamples=20)


def test_table_shows_a_run_in_line() -> None:
    lines = table("all experts", some()).splitlines()
    assert lines[0].split() == ["all", "experts"]
    assert len({len(line) for line in lines}) == 1
    assert any(line.startswith("1-ROCA") for line in lines)


def test_what_is_missing_is_a_dash() -> None:
    text = table("ham only", measures([False] * 3, [0.1] * 3, ["ham"] * 3))
    assert "nan" not in text
    assert text.count("–") == 8


def test_confusion_table() -> None:
    text = confusion_table(confusion(["ham", "spam", "spam"], ["ham", "spam", "unsure"]))
    assert text == "called \\ truly  ham  spam\nham               1     0\nspam              0     1\nunsure            0     1\n"


def test_document_is_json() -> None:
    matrix = confusion(["ham", "spam"], ["ham", "unsure"])
    curve = learning_curve([True, True, False], [1, 2, 3], ["spam"] * 3, window=2)
    found = json.loads(json.dumps(document({"run": some()}, matrix, curve), allow_nan=False))
    assert found["confusion"] == {"predicted": ["ham", "spam", "unsure"], "actual": ["ham", "spam"], "counts": [[1, 0], [0, 0], [0, 1]]}
    assert found["learning_curve"] == {"last": [2, 3], "roca": [None, None], "error": [0.0, 100.0]}
    assert found["runs"]["run"]["messages"] == 200
    assert set(document({})) == {"runs"}


def test_scores_keep_every_digit(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    gold, score = rng.random(100) < 0.5, rng.normal(size=100) * 1e-9
    rows = [Scored(n, "spam" if g else "ham", "unsure", s, n % 2 == 0) for n, (g, s) in enumerate(zip(gold, score, strict=True), 1)]
    write_scores(tmp_path / "scores.csv", rows)
    assert (tmp_path / "scores.csv").read_bytes().startswith(b"n,gold,label,score,trained\n1,")
    with (tmp_path / "scores.csv").open() as stream:
        read = list(csv.DictReader(stream))
    assert [row["trained"] for row in read[:2]] == ["0", "1"]
    assert roca([row["gold"] == "spam" for row in read], [float(row["score"]) for row in read]) == roca(gold, score)


def test_scores_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    def failing() -> Iterator[Scored]:
        yield Scored(1, "ham", "ham", 0.1, False)
        raise RuntimeError("the filter fell over")

    with pytest.raises(RuntimeError):
        write_scores(tmp_path / "scores.csv", failing())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="cannot be written"):
        write_scores(tmp_path / "no such directory" / "scores.csv", [])


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        report.check_writable(pipe)
        write_scores(pipe, [Scored(1, "ham", "ham", -2.5, True)])
        assert os.read(reader, 1000) == b"n,gold,label,score,trained\n1,ham,ham,-2.5,1\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_scores_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [Scored(1, "spam", "unsure", 0.1 + 0.2, True), Scored(7, "ham", "newsletter", -1e-300, False)]
    write_scores(tmp_path / "s.csv", rows)
    assert read_scores(tmp_path / "s.csv") == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n,gold\n1,spam\n",
        "n,gold,label,score,trained\n1,spam,spam,high,1\n",
        "n,gold,label,score,trained\n1,ham,ham,nan,1\n",
        "\x00\n\x00",
    ],
)
def test_what_is_no_file_of_scores_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(UsageError, match=r"n,gold,label,score,trained|no scores"):
        read_scores(tmp_path / "s.csv")
    with pytest.raises(UsageError, match="cannot be read"):
        read_scores(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    ("gain", "word"),
    [(Interval(-0.1, -0.2, -0.05), "better"), (Interval(0.1, 0.05, 0.2), "worse"), (Interval(-0.1, -0.2, 0.01), "no evidence")],
)
def test_a_gain_is_told_in_words_and_numbers(gain: Interval, word: str) -> None:
    assert report.gained(gain, "other.csv").endswith(word if word != "no evidence" else "no evidence of a difference")
    assert document({}, gain=gain)["against"] == {"roca": gain.value, "low": gain.low, "high": gain.high}


def test_where_there_is_one_kind_of_mail_nothing_is_gained() -> None:
    gain = paired_bootstrap([False] * 3, [1, 2, 3], [3, 2, 1])
    assert report.gained(gain, "other.csv") == "1-ROCA minus that of other.csv: –, as there is mail of one kind only"
