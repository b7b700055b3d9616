"""Trials of a filter on labelled mail, and their results as files and pictures.

A protocol says when a message is taught after it was judged: as in the TREC spam track (Cormack &
Lynam 2005), or as people teach. Every trial has a filter of its own in a temporary directory, so
the user's filter is never touched. `measures` has the measures, and says them in words.

Pictures show ROC and calibration. matplotlib is imported only when a figure is drawn.
They must never open a window, choose a backend for the process, or change its settings.

Must never judge a message that was taught before, and never write any file but those it is given.
"""

from __future__ import annotations

import csv
import heapq
import math
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from spamguard import keys
from spamguard.engine import measures
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example, ExampleReader, extract_examples
from spamguard.errors import UsageError, remedy
from spamguard.sources import SourceMessage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---- trials

# The key decides which tokens collide and in which order lessons are replayed. The filter of a
# trial guards no secret, and with the same key for all, the same mail gives the same figures.
_TRIAL_KEY = b"the key of every filter on trial"
Messages = Callable[[], Iterable[SourceMessage]]
"""Returns the labelled messages of a trial, in their order, each time it is called."""


class ScoredMessage(NamedTuple):
    """One judged message."""

    n: int  # its number, from 1
    gold: str  # its true class
    label: str
    score: float  # higher is more likely spam
    trained: bool  # it was taught afterwards
    probability: float = math.nan  # of being unwanted


def run_trial(
    protocol: str,
    messages: Messages,
    profile: str,
    *,
    share: float = 0.7,
    unwanted: Collection[str] = (),
) -> Generator[ScoredMessage]:
    """Try a filter on messages by one of PROTOCOLS.

    Parameters
    ----------
    share
        The part that is taught first, in `split`.
    unwanted
        The classes beside ham and spam that are unwanted.
    """
    with tempfile.TemporaryDirectory(prefix="spamguard-evaluate-") as directory:
        keys.store_key(Path(directory) / "key", _TRIAL_KEY)
        with Filter.open(directory, profile=profile, _durable=False) as subject:
            yield from PROTOCOLS[protocol](_TrialFilter(subject, unwanted), messages, share)


class _TrialFilter:
    """A filter under trial: reads each message once, for judging and for teaching."""

    def __init__(self, subject: Filter, unwanted: Collection[str]) -> None:
        self.filter = subject
        self.read = ExampleReader(subject.key).read_example
        self._unwanted = unwanted

    def judge(self, number: int, example: Example, gold: str) -> ScoredMessage:
        verdict = self.filter.judge_features(example.features)
        return ScoredMessage(
            number, gold, verdict.label, verdict.log_odds, False, verdict.probability
        )

    def learn(self, example: Example, label: str) -> None:
        """Learn, also as a class whose name looks like a slip of the pen: a corpus means it."""
        if label not in self.filter.classes:
            self.filter.define_class(label, unwanted=label in self._unwanted)
        self.filter.learn_examples([example], label)


def _run_online(
    pupil: _TrialFilter, messages: Messages, _share: float, *, only_corrections: bool = False
) -> Iterator[ScoredMessage]:
    """Immediate feedback: every message is judged, then taught, and settled as the daemon would."""
    stayed = 0
    for number, message in enumerate(messages(), 1):
        example = pupil.read(message.raw)
        row = pupil.judge(number, example, str(message.label))
        row = row._replace(trained=not only_corrections or row.label != row.gold)
        yield row
        if row.trained:
            pupil.learn(example, row.gold)
            pupil.filter.settle_if_due()
        elif row.label == "ham":
            stayed += 1
            pupil.filter.note_stayed(stayed)


def _run_split(pupil: _TrialFilter, messages: Messages, share: float) -> Iterator[ScoredMessage]:
    """The first part is taught; the settled filter judges the rest and learns no more."""
    border = int(share * sum(1 for _ in messages()))
    later = extract_examples(_TRIAL_KEY, messages())  # on all cores: no lesson awaits a verdict
    for label, example in islice(later, border):
        pupil.learn(example, str(label))
    pupil.filter.settle()
    for number, (label, example) in enumerate(later, border + 1):
        yield pupil.judge(number, example, str(label))


PROTOCOLS: dict[str, Callable[[_TrialFilter, Messages, float], Iterator[ScoredMessage]]] = {
    "online": _run_online,
    # people teach only mail whose verdict was wrong or unsure
    "corrections": partial(_run_online, only_corrections=True),
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
            yield number / count, SourceMessage(message.name, message.raw, label)

    both = heapq.merge(due(ham, ham_count, "ham"), due(spam, spam_count, "spam"), key=itemgetter(0))
    return (message for _, message in both)


# ---- files of scores


def write_scores(path: str | Path, rows: Iterable[ScoredMessage]) -> None:
    """Write rows as CSV with the columns n,gold,label,score,trained.

    Scores have all their digits, so ties and measures survive. Raises UsageError if the file cannot
    be written.
    """
    with _name_path(path), Path(path).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(ScoredMessage._fields[:5])
        writer.writerows((*row[:3], repr(float(row.score)), int(row.trained)) for row in rows)


def check_writable(path: str | Path) -> None:
    """Raise UsageError if `write_scores` could not write there now; makes the file."""
    with _name_path(path), Path(path).open("ab"):
        pass


@contextmanager
def _name_path(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = remedy(error, "choose another path")
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}); {advice}"
        ) from error


# ---- pictures


def write_plots(
    directory: str | Path, gold: ArrayLike, score: ArrayLike, probability: ArrayLike, name: str
) -> None:
    """Write roc.png (of both kinds of mail) and calibration.png, as scikit-learn draws them.

    Raises UsageError if the directory cannot be written.
    """
    # Loaded here because only pictures need its hundred modules.
    from sklearn.calibration import CalibrationDisplay  # noqa: PLC0415
    from sklearn.metrics import RocCurveDisplay  # noqa: PLC0415

    truth = np.asarray(gold, dtype=np.bool_)
    figures = {"calibration.png": (figure := _new_figure())}
    CalibrationDisplay.from_predictions(
        truth, probability, n_bins=measures.BINS, name=name, ax=figure.add_subplot()
    )
    if truth.any() and not truth.all():
        figures["roc.png"] = figure = _new_figure()
        RocCurveDisplay.from_predictions(truth, score, name=name, ax=figure.add_subplot())
    with _name_path(directory):
        for file, figure in figures.items():
            figure.savefig(Path(directory) / file, dpi=144)


def check_drawable(directory: str | Path) -> None:
    """Raise UsageError if no picture could be drawn; makes the directory."""
    _new_figure()
    with _name_path(directory):
        Path(directory).mkdir(parents=True, exist_ok=True)


def _new_figure() -> Figure:
    """An empty figure, outside pyplot's global list."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "pictures need matplotlib, which is not there; in the project's directory run: "
            "pip install '.[plots]'"
        ) from error
    return Figure(figsize=(7, 6), layout="constrained")
