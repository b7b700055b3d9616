"""Pictures are PNG files, and drawing them leaves the global state of matplotlib alone."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from spamguard.engine import evaluate
from spamguard.engine.evaluate import (
    calibration_figure,
    roc_figure,
    save_figure,
    score_figure,
    write_plots,
)
from spamguard.engine.measures import learning_curve
from spamguard.errors import UsageError

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(1)
GOLD = RNG.random(400) < 0.4
SCORE = RNG.normal(size=400) + 3 * GOLD
LABEL = np.where(SCORE > 1.5, "spam", "ham")
CURVE = learning_curve(GOLD, SCORE, LABEL, window=50)
CHANCE = 1 / (1 + np.exp(-SCORE))
PNG = b"\x89PNG\r\n\x1a\n"


def test_all_pictures(tmp_path: Path) -> None:
    backend = matplotlib.get_backend()
    write_plots(tmp_path / "new", GOLD, SCORE, CURVE, probability=CHANCE, name="a run")
    written = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in written] == [
        "calibration.png",
        "learning.png",
        "roc.png",
        "scores.png",
    ]
    assert all(path.read_bytes().startswith(PNG) for path in written)
    assert matplotlib.get_backend() == backend
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_one_kind_of_mail_has_no_roc(tmp_path: Path) -> None:
    curve = learning_curve([False] * 3, [1, 2, 3], ["ham"] * 3)
    write_plots(tmp_path, [False] * 3, [1, 2, 3], curve, probability=[0.7, 0.8, 0.9], name="a run")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "calibration.png",
        "learning.png",
        "scores.png",
    ]


@pytest.mark.parametrize("score", [SCORE, np.round(SCORE), GOLD * 1.0])
def test_roc_shows_the_corner(tmp_path: Path, score: np.ndarray) -> None:
    figure = roc_figure(GOLD, score, "run")
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == pytest.approx(50 / np.sum(~GOLD))
    assert axes.get_ylim()[0] == pytest.approx(50 / np.sum(GOLD))
    assert [text.get_text().split("  ")[0] for text in axes.get_legend().get_texts()] == ["run"]
    assert save_figure(figure, tmp_path / "roc.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("score", [np.zeros(400), np.where(GOLD, np.inf, SCORE), SCORE * 1e-12])
def test_odd_scores_can_be_drawn(tmp_path: Path, score: np.ndarray) -> None:
    assert save_figure(score_figure(GOLD, score, thresholds=[1.5]), tmp_path / "s.png").exists()


def test_counts_in_the_histogram_are_complete() -> None:
    (axes,) = score_figure(GOLD, np.where(GOLD, np.inf, SCORE)).axes
    assert sum(
        bar.get_height() for container in axes.containers[:1] for bar in container
    ) == np.sum(~GOLD)


def test_points_of_few_messages_are_shown_to_be_of_few() -> None:
    """Two messages say little, however far from the diagonal they lie; four hundred much."""
    chance = np.concatenate([np.full(2, 0.7), np.full(400, 0.95)])
    figure = calibration_figure([False] * 2 + [True] * 380 + [False] * 20, chance)
    few, many = (np.ptp(line[:, 1]) for line in figure.axes[0].collections[0].get_segments())
    assert few > 0.6
    assert many < 0.1


def test_scores_show_where_mail_is_called_ham_and_spam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[object] = []
    monkeypatch.setattr(
        evaluate,
        "score_figure",
        lambda *given, thresholds: drawn.extend(thresholds) or score_figure(*given),
    )
    write_plots(tmp_path, GOLD, SCORE, CURVE, probability=CHANCE, name="a run")
    assert drawn == pytest.approx([-2.197, 2.944], abs=0.001)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        UsageError, match=r"in the project's directory run: pip install '\.\[plots\]'"
    ):
        score_figure(GOLD, SCORE)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        save_figure(score_figure(GOLD, SCORE), tmp_path / "file" / "s.png")
