"""Pictures of a run: ROC near the corner, calibration, scores by class, the course of learning.

matplotlib is imported only when a figure is drawn. Figures are made directly on an Agg canvas: must
never open a window, choose a backend for the process, or change its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from spamguard.engine.measures import LearningCurve, reliability, roc, roca, share_interval
from spamguard.engine.policy import HAM_THRESHOLD, SPAM_THRESHOLD, logit
from spamguard.errors import UsageError, remedy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPAM, HAM = "#c0392b", "#2471a3"  # red and blue that the colour-blind can tell apart
OTHER, GRID = "#7f8c8d", "#e3e6e8"


def write_plots(
    directory: str | Path,
    gold: ArrayLike,
    score: ArrayLike,
    curve: LearningCurve,
    *,
    probability: ArrayLike,
    name: str,
) -> None:
    """Write all pictures of one run as PNG files in `directory`.

    They are roc.png (needs both kinds of mail), calibration.png, scores.png and learning.png. The
    scores are the log-odds of probability. UsageError: matplotlib is missing, or the directory
    cannot be written.
    """
    folder, truth = Path(directory), np.asarray(gold, dtype=np.bool_)
    if truth.any() and not truth.all():
        save_figure(roc_figure(gold, score, name), folder / "roc.png")
    save_figure(calibration_figure(gold, probability), folder / "calibration.png")
    thresholds = (logit(HAM_THRESHOLD), logit(SPAM_THRESHOLD))
    save_figure(score_figure(gold, score, thresholds=thresholds), folder / "scores.png")
    save_figure(learning_figure(curve), folder / "learning.png")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, 144 dots per inch, making its directory. UsageError: not possible."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="png", dpi=144)
    except OSError as error:
        advice = remedy(error, "choose another directory")
        raise UsageError(
            f"{target}: cannot be written ({error.strerror or error}); {advice}"
        ) from error
    return target


def check_drawable(directory: str | Path) -> None:
    """Raise UsageError if no picture could be written there now; makes the directory."""
    save_figure(_new_figure(1, 1), trial := Path(directory) / ".trial.png")
    trial.unlink()


def roc_figure(gold: ArrayLike, score: ArrayLike, name: str) -> Figure:
    """ROC curve near the corner, both axes logarithmic: lower and further left is better.

    Rates below the resolution of the corpus (half a message) lie on the border.
    """
    figure, axes = _single_figure(
        "ROC near the corner", "ham called spam, %", "spam not called spam, %"
    )
    hm, sm = roc(gold, score)
    truth = np.asarray(gold, dtype=np.bool_)
    least_hm, least_sm = (50 / max(1, int(np.sum(kind))) for kind in (~truth, truth))
    label = f"{name}  (1-ROCA {roca(gold, score):.3f} %)"
    rates = np.maximum(hm, least_hm), np.maximum(sm, least_sm)
    axes.plot(*rates, label=label, color=SPAM, linewidth=2.2, zorder=3)
    axes.set(xscale="log", yscale="log", xlim=(least_hm, 100), ylim=(least_sm, 100))
    for rate in (0.1, 0.5):
        axes.axvline(rate, color=OTHER, linewidth=0.8, linestyle=":", zorder=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    # good curves pass below left
    axes.legend(loc="upper right", framealpha=0.9, edgecolor="none", fontsize=9)
    return figure


def calibration_figure(gold: ArrayLike, probability: ArrayLike) -> Figure:
    """The share of spam by judged probability, with 95 % intervals, over the number of messages."""
    by_bin = reliability(gold, probability)
    figure, (curve, bars) = _stacked_figure("Calibration", "probability of spam, as judged")
    filled = by_bin.messages > 0
    predicted, observed = by_bin.predicted[filled], by_bin.observed[filled]
    intervals = [
        share_interval(round(part * whole), int(whole))
        for part, whole in zip(observed, by_bin.messages[filled], strict=True)
    ]
    low, high = ([getattr(each, bound) for each in intervals] for bound in ("low", "high"))
    curve.plot([0, 1], [0, 1], color=OTHER, linewidth=1, linestyle=":", label="perfect")
    curve.vlines(predicted, low, high, color=SPAM, linewidth=1.2, label="95 % interval")
    curve.plot(predicted, observed, "o", color=SPAM, label="observed", clip_on=False)
    curve.set(ylabel="share that was spam", xlim=(0, 1), ylim=(0, 1))
    curve.legend(loc="upper left", frameon=False, fontsize=9)
    edges = np.linspace(0, 1, len(by_bin.messages) + 1)
    widths = np.diff(edges)
    bars.bar(
        edges[:-1],
        by_bin.messages,
        widths,
        align="edge",
        color=OTHER,
        edgecolor="white",
        linewidth=0.8,
    )
    bars.set(yscale="log", ylabel="messages", ylim=(0.7, None))
    return figure


def score_figure(gold: ArrayLike, score: ArrayLike, *, thresholds: Sequence[float] = ()) -> Figure:
    """Histogram of the scores of ham and of spam; logarithmic, so that the few errors show.

    `thresholds` are drawn as lines, in units of the score.
    """
    truth, scores = np.asarray(gold, dtype=np.bool_), np.asarray(score, dtype=np.float64)
    edges = np.histogram_bin_edges(scores[np.isfinite(scores)], bins=60).tolist()
    scores = np.clip(scores, edges[0], edges[-1])  # infinite scores stand in the outermost bars
    figure, axes = _single_figure(
        "Scores by class", "score (higher is more likely spam)", "messages"
    )
    for name, chosen, colour in (("ham", ~truth, HAM), ("spam", truth, SPAM)):
        label = f"{name} ({int(chosen.sum())})"
        axes.hist(scores[chosen], bins=edges, color=colour, alpha=0.5, label=label)
        axes.hist(scores[chosen], bins=edges, color=colour, histtype="step", linewidth=1.4)
    for number, threshold in enumerate(thresholds):
        title = None if number else "where the answer changes"
        axes.axvline(threshold, color="black", linewidth=1, linestyle="--", zorder=0, label=title)
    axes.set(yscale="log", ylim=(0.7, None))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=9, ncols=3)
    return figure


def learning_figure(curve: LearningCurve) -> Figure:
    """Errors and 1-ROCA % per window of messages, over the number of messages judged."""
    figure, (errors, areas) = _stacked_figure(
        "Course of learning", "messages judged", ratios=(1, 1)
    )
    for axes, values, colour, name in (
        (errors, curve.error, SPAM, "errors, %"),
        (areas, curve.roca, HAM, "1-ROCA, %"),
    ):
        axes.plot(curve.last, values, color=colour, marker=".", linewidth=1.4)
        axes.set(ylabel=name, ylim=(0, None))
        axes.yaxis.set_label_coords(-0.09, 0.5)
    areas.set_yscale("symlog", linthresh=0.01)  # spans many powers of ten and may be zero
    areas.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    areas.set_xlim(0, None)
    return figure


# ---- the frame of every picture


def _new_figure(width: float, height: float) -> Figure:
    """An empty figure on an Agg canvas of its own, outside pyplot's global list."""
    try:
        # Loaded here because only pictures need its hundred modules.
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "pictures need matplotlib, which is not there; in the project's directory run: "
            "pip install '.[plots]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _single_figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = _new_figure(7, 5)
    axes = figure.add_subplot()
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    _style_axes(axes)
    return figure, axes


def _stacked_figure(
    title: str, x: str, *, ratios: tuple[int, int] = (3, 1)
) -> tuple[Figure, tuple[Axes, Axes]]:
    """Two pictures above one another that share the x axis."""
    figure = _new_figure(7, 6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
    upper.set_title(title, loc="left", fontsize=12, fontweight="bold")
    lower.set_xlabel(x)
    _style_axes(upper)
    _style_axes(lower)
    return figure, (upper, lower)


def _style_axes(axes: Axes) -> None:
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
