"""Trials of a filter on labelled mail, and their results as files and pictures.

A protocol says when a message is taught after it was judged: as in the TREC spam track (Cormack &
Lynam 2005), or as people teach. Every trial has a filter of its own in a temporary directory, so
the user's filter is never touched. `measures` has the measures, and says them in words.

Pictures show ROC near the corner, calibration, scores by class, and the course of learning.
matplotlib is imported only when a figure is drawn. Figures are made directly on an Agg canvas: they
must never open a window, choose a backend for the process, or change its settings.

Must never judge a message that was taught before, never compare runs that judged different mail,
and never write any file but those it is given.
"""

from __future__ import annotations

import csv
import errno
import heapq
import math
import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamguard import keys
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.engine import measures
from spamguard.engine.filter import Filter
from spamguard.engine.measures import Interval, LearningCurve
from spamguard.engine.policy import HAM_THRESHOLD, SPAM_THRESHOLD, logit
from spamguard.engine.prepare import Example, ExampleReader, LabelledExample, extract_examples
from spamguard.errors import UsageError, remedy
from spamguard.sources import SourceMessage
from spamguard.storage import draft_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- trials

# The key decides which tokens collide and in which order lessons are replayed. The filter of a
# trial guards no secret, and with the same key for all, the same mail gives the same figures.
_TRIAL_KEY = b"the key of every filter on trial"
Messages = Callable[[], Iterable[SourceMessage]]
"""Returns the labelled messages of a trial, in their order, each time it is called."""


class ScoredMessage(NamedTuple):
    """One judged message.

    n: its number, from 1. gold: its true class. score: higher is more likely spam. trained: whether
    it was taught afterwards.
    """

    n: int
    gold: str
    label: str
    score: float
    trained: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One message judged: its row of scores, and its probability of being unwanted."""

    row: ScoredMessage
    probability: float


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Settings of a trial.

    profile: of the filter. delay: messages until feedback comes, in `delayed`. share: the part that
    is taught first, in `split`. unwanted: whether a class beside ham and spam is unwanted.
    """

    profile: str
    delay: int = 500
    share: float = 0.7
    unwanted: Callable[[str], bool] = lambda _: False


def run_trial(protocol: str, messages: Messages, settings: TrialSettings) -> Generator[Trial]:
    """Try a filter on messages by one of PROTOCOLS."""
    with tempfile.TemporaryDirectory(prefix="spamguard-evaluate-") as directory:
        keys.store_key(Path(directory) / "key", _TRIAL_KEY)
        with Filter.open(directory, profile=settings.profile, _durable=False) as subject:
            trial_filter = _TrialFilter(subject, settings.unwanted)
            yield from PROTOCOLS[protocol](trial_filter, messages, settings)


class _TrialFilter:
    """A filter under trial: reads each message once, for judging and for teaching."""

    def __init__(self, subject: Filter, unwanted: Callable[[str], bool]) -> None:
        self._filter = subject
        self._unwanted = unwanted
        self._reader = ExampleReader(subject.key)
        self._number = 0
        self._classes = {*BASE_CLASSES}

    def judge(self, message: SourceMessage, *, will_train: bool | None) -> tuple[Trial, Example]:
        """Judge a message that will be trained; None: only if the verdict is wrong or unsure."""
        example = self._reader.read_example(message.raw)
        return self.judge_example(example, str(message.label), will_train=will_train), example

    def judge_example(self, example: Example, gold: str, *, will_train: bool | None) -> Trial:
        """`judge` for a message that was read already."""
        verdict = self._filter.judge_features(example.features)
        self._number += 1
        trained = verdict.label != gold if will_train is None else will_train
        row = ScoredMessage(self._number, gold, verdict.label, verdict.log_odds, trained)
        return Trial(row, verdict.probability)

    def teach(self, example: Example, label: str) -> None:
        """Teach a message, and settle when the running daemon would."""
        self._learn(example, label)
        self._filter.settle_if_due()

    def teach_first(self, messages: Iterable[LabelledExample]) -> None:
        """Teach messages without judging them, then settle."""
        for message in messages:
            self._learn(message.example, str(message.label))
            self._number += 1
        self._filter.settle()

    def _learn(self, example: Example, label: str) -> None:
        """Learn, also as a class whose name looks like a slip of the pen: a corpus means it."""
        if label not in self._classes:
            self._filter.define_class(label, unwanted=self._unwanted(label))
            self._classes.add(label)
        self._filter.learn_examples([example], label)


def _run_online(
    pupil: _TrialFilter,
    messages: Messages,
    _settings: TrialSettings,
    *,
    will_train: bool | None = True,
) -> Iterator[Trial]:
    """Immediate feedback: every message is judged, then taught."""
    for message in messages():
        trial, example = pupil.judge(message, will_train=will_train)
        yield trial
        if trial.row.trained:
            pupil.teach(example, trial.row.gold)


def _run_delayed(
    pupil: _TrialFilter, messages: Messages, settings: TrialSettings
) -> Iterator[Trial]:
    """Feedback comes `delay` messages later; the last messages are not taught at all."""
    waiting: deque[tuple[Trial, Example]] = deque()
    for message in messages():
        waiting.append(pupil.judge(message, will_train=True))
        if len(waiting) > settings.delay:
            trial, example = waiting.popleft()
            yield trial
            pupil.teach(example, trial.row.gold)
    for trial, _ in waiting:
        yield Trial(trial.row._replace(trained=False), trial.probability)


def _run_split(pupil: _TrialFilter, messages: Messages, settings: TrialSettings) -> Iterator[Trial]:
    """The first part is taught; the settled filter judges the rest and learns no more."""
    border = int(settings.share * sum(1 for _ in messages()))
    later = extract_examples(_TRIAL_KEY, messages())  # on all cores: no lesson awaits a verdict
    pupil.teach_first(islice(later, border))
    for message in later:
        yield pupil.judge_example(message.example, str(message.label), will_train=False)


PROTOCOLS: dict[str, Callable[[_TrialFilter, Messages, TrialSettings], Iterator[Trial]]] = {
    "online": _run_online,
    "delayed": _run_delayed,
    # people teach only mail whose verdict was wrong or unsure
    "corrections": partial(_run_online, will_train=None),
    "split": _run_split,
}


def interleave(
    ham: Iterable[SourceMessage], ham_count: int, spam: Iterable[SourceMessage], spam_count: int
) -> Iterator[SourceMessage]:
    """Two folders as one stream: each keeps its own order, and both run out together."""

    def due(
        messages: Iterable[SourceMessage], count: int, label: str
    ) -> Iterator[tuple[float, SourceMessage]]:
        for number, message in enumerate(messages, 1):
            yield number / max(count, 1), SourceMessage(message.name, message.raw, label)

    both = heapq.merge(due(ham, ham_count, "ham"), due(spam, spam_count, "spam"), key=itemgetter(0))
    return (message for _, message in both)


# ---- files of scores

SCORE_COLUMNS = ("n", "gold", "label", "score", "trained")


def write_scores(path: str | Path, rows: Iterable[ScoredMessage]) -> None:
    """Write rows as CSV with the columns n,gold,label,score,trained.

    Scores have all their digits, so ties and measures survive. The file appears whole or not at
    all: rows are streamed into a neighbour that takes its name at the end. A pipe or a device is
    written as it is. UsageError: it cannot be written.
    """
    target = Path(path)
    with _draft_beside(target) as draft:
        with draft.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(SCORE_COLUMNS)
            for row in rows:
                score = repr(float(row.score))
                writer.writerow((row.n, row.gold, row.label, score, int(row.trained)))
        if draft != target:
            draft.replace(target)


def check_writable(path: str | Path) -> None:
    """Raise UsageError if `write_scores` could not write there now; changes nothing."""
    with _draft_beside(Path(path)) as draft:
        draft.touch()
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def _draft_beside(target: Path) -> Iterator[Path]:
    """A path to write before it takes the target's name; it is removed at the end.

    A target that is no file, such as /dev/stdout, is written itself.
    """
    is_special = target.exists() and not target.is_file()
    try:
        with nullcontext(target) if is_special else draft_file(target) as draft:
            yield draft
    except OSError as error:
        advice = remedy(error, "choose another file")
        raise UsageError(
            f"{target}: cannot be written ({error.strerror or error}); {advice}"
        ) from error


def read_scores(path: str | Path) -> list[ScoredMessage]:
    """Read a CSV file as `write_scores` writes it. UsageError: it has no such columns."""
    source = Path(path)
    try:
        with source.open(encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            if not set(SCORE_COLUMNS).issubset(rows.fieldnames or ()):
                raise ValueError(SCORE_COLUMNS)
            return [_parse_score(row) for row in rows]
    except OSError as error:
        raise UsageError(
            f"{source}: cannot be read ({error.strerror or error}); name a file of scores"
        ) from error
    except (TypeError, ValueError, csv.Error) as error:
        raise UsageError(
            f"{source}: holds no scores; its columns must be {','.join(SCORE_COLUMNS)}, "
            "as `--scores` writes them"
        ) from error


def _parse_score(row: Mapping[str, str]) -> ScoredMessage:
    score = float(row["score"])
    if math.isnan(score):
        raise ValueError("a score is not a number")
    return ScoredMessage(int(row["n"]), row["gold"], row["label"], score, bool(int(row["trained"])))


def roca_difference(
    rows: Sequence[ScoredMessage],
    other_rows: Sequence[ScoredMessage],
    unwanted: Collection[str] = (measures.SPAM,),
) -> Interval:
    """1-ROCA % of a run minus that of another, with its 95 % interval; below zero, it is better.

    unwanted names classes. UsageError: the runs did not judge the same messages, known by their
    number and true class.
    """
    if [(row.n, row.gold) for row in rows] != [(row.n, row.gold) for row in other_rows]:
        raise UsageError(
            f"{len(other_rows)} scores belong to other mail than these {len(rows)}: "
            "compare runs of one protocol on one corpus in one order"
        )
    gold = [row.gold in unwanted for row in rows]
    scores, other_scores = ([row.score for row in run] for run in (rows, other_rows))
    return measures.paired_bootstrap(gold, scores, other_scores)


# ---- pictures

SPAM_COLOUR, HAM_COLOUR = "#c0392b", "#2471a3"  # red and blue that the colour-blind can tell apart
OTHER_COLOUR, GRID_COLOUR = "#7f8c8d", "#e3e6e8"


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
    hm, sm = measures.roc(gold, score)
    truth = np.asarray(gold, dtype=np.bool_)
    least_hm, least_sm = (50 / max(1, int(np.sum(kind))) for kind in (~truth, truth))
    label = f"{name}  (1-ROCA {measures.roca(gold, score):.3f} %)"
    rates = np.maximum(hm, least_hm), np.maximum(sm, least_sm)
    axes.plot(*rates, label=label, color=SPAM_COLOUR, linewidth=2.2, zorder=3)
    axes.set(xscale="log", yscale="log", xlim=(least_hm, 100), ylim=(least_sm, 100))
    for rate in (0.1, 0.5):
        axes.axvline(rate, color=OTHER_COLOUR, linewidth=0.8, linestyle=":", zorder=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    # good curves pass below left
    axes.legend(loc="upper right", framealpha=0.9, edgecolor="none", fontsize=9)
    return figure


def calibration_figure(gold: ArrayLike, probability: ArrayLike) -> Figure:
    """The share of spam by judged probability, with 95 % intervals, over the number of messages."""
    by_bin = measures.reliability(gold, probability)
    figure, (curve, bars) = _stacked_figure("Calibration", "probability of spam, as judged")
    filled = by_bin.messages > 0
    predicted, observed = by_bin.predicted[filled], by_bin.observed[filled]
    intervals = [
        measures.share_interval(round(share * messages), int(messages))
        for share, messages in zip(observed, by_bin.messages[filled], strict=True)
    ]
    low, high = ([getattr(each, bound) for each in intervals] for bound in ("low", "high"))
    curve.plot([0, 1], [0, 1], color=OTHER_COLOUR, linewidth=1, linestyle=":", label="perfect")
    curve.vlines(predicted, low, high, color=SPAM_COLOUR, linewidth=1.2, label="95 % interval")
    curve.plot(predicted, observed, "o", color=SPAM_COLOUR, label="observed", clip_on=False)
    curve.set(ylabel="share that was spam", xlim=(0, 1), ylim=(0, 1))
    curve.legend(loc="upper left", frameon=False, fontsize=9)
    edges = np.linspace(0, 1, len(by_bin.messages) + 1)
    bars.bar(
        edges[:-1],
        by_bin.messages,
        np.diff(edges),
        align="edge",
        color=OTHER_COLOUR,
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
    for name, chosen, colour in (("ham", ~truth, HAM_COLOUR), ("spam", truth, SPAM_COLOUR)):
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
        (errors, curve.error, SPAM_COLOUR, "errors, %"),
        (areas, curve.roca, HAM_COLOUR, "1-ROCA, %"),
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
    axes.grid(color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
