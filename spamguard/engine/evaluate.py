"""Trials of a filter on labelled mail, and their results as files, tables and documents.

A protocol says when a message is taught after it was judged: as in the TREC spam track (Cormack &
Lynam 2005), or as people teach. Every trial has a filter of its own in a temporary directory, so
the user's filter is never touched. `measures` holds the measures themselves.

Must never judge a message that was taught before, never compare runs that judged different mail,
and never write any file but the one it is given.
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
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from spamguard import keys
from spamguard.bayes.tables import BASE_CLASSES
from spamguard.engine import measures
from spamguard.engine.filter import Filter
from spamguard.engine.measures import Confusion, Interval, LearningCurve, Measures
from spamguard.engine.prepare import Example, ExampleReader
from spamguard.errors import UsageError, remedy
from spamguard.sources import SourceMessage
from spamguard.storage import draft_file

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
        with Filter.open(directory, profile=settings.profile, durable=False) as subject:
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
        verdict = self._filter.judge_features(example.features)
        self._number += 1
        gold = str(message.label)
        trained = verdict.label != gold if will_train is None else will_train
        row = ScoredMessage(self._number, gold, verdict.label, verdict.log_odds, trained)
        return Trial(row, verdict.probability), example

    def teach(self, example: Example, label: str) -> None:
        """Teach a message, and settle when the running daemon would."""
        self._learn(example, label)
        self._filter.settle_if_due()

    def teach_first(self, messages: Iterable[SourceMessage]) -> None:
        """Teach messages without judging them, then settle."""
        for message in messages:
            self._learn(self._reader.read_example(message.raw), str(message.label))
            self._number += 1
        self._filter.settle()

    def _learn(self, example: Example, label: str) -> None:
        """Learn, also as a class whose name looks like a slip of the pen: a corpus means it."""
        if label not in self._classes:
            self._filter.define_class(label, unwanted=self._unwanted(label))
            self._classes.add(label)
        self._filter.learn_examples([example], label)


def _run_online(
    pupil: _TrialFilter, messages: Messages, _settings: TrialSettings
) -> Iterator[Trial]:
    """Immediate feedback: every message is judged, then taught."""
    for message in messages():
        trial, example = pupil.judge(message, will_train=True)
        yield trial
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


def _run_corrections(
    pupil: _TrialFilter, messages: Messages, _settings: TrialSettings
) -> Iterator[Trial]:
    """People teach only mail whose verdict was wrong or unsure."""
    for message in messages():
        trial, example = pupil.judge(message, will_train=None)
        yield trial
        if trial.row.trained:
            pupil.teach(example, trial.row.gold)


def _run_split(pupil: _TrialFilter, messages: Messages, settings: TrialSettings) -> Iterator[Trial]:
    """The first part is taught; the settled filter judges the rest and learns no more."""
    border = int(settings.share * sum(1 for _ in messages()))
    later = iter(messages())
    pupil.teach_first(islice(later, border))
    for message in later:
        yield pupil.judge(message, will_train=False)[0]


PROTOCOLS: dict[str, Callable[[_TrialFilter, Messages, TrialSettings], Iterator[Trial]]] = {
    "online": _run_online,
    "delayed": _run_delayed,
    "corrections": _run_corrections,
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
    ours: Sequence[ScoredMessage],
    theirs: Sequence[ScoredMessage],
    unwanted: Collection[str] = (measures.SPAM,),
) -> Interval:
    """1-ROCA % of ours minus that of theirs, with its 95 % interval; below zero, ours is better.

    unwanted names classes. UsageError: the runs did not judge the same messages, known by their
    number and true class.
    """
    if [(row.n, row.gold) for row in ours] != [(row.n, row.gold) for row in theirs]:
        raise UsageError(
            f"{len(theirs)} scores belong to other mail than these {len(ours)}: "
            "compare runs of one protocol on one corpus in one order"
        )
    gold = [row.gold in unwanted for row in ours]
    our_scores, their_scores = ([row.score for row in rows] for rows in (ours, theirs))
    return measures.paired_bootstrap(gold, our_scores, their_scores)


# ---- reports


def report_document(
    runs: Mapping[str, Measures],
    matrix: Confusion | None = None,
    curve: LearningCurve | None = None,
    gain: Interval | None = None,
) -> dict[str, object]:
    """Everything as one JSON-ready dictionary; undefined values are None.

    gain is 1-ROCA % minus that of another run.
    """
    document: dict[str, object] = {"runs": {name: run.as_dict() for name, run in runs.items()}}
    if matrix is not None:
        document["confusion"] = {
            "predicted": list(matrix.predicted),
            "actual": list(matrix.actual),
            "counts": matrix.counts.tolist(),
        }
    if curve is not None:
        document["learning_curve"] = {
            "last": curve.last.tolist(),
            "roca": _nullable(curve.roca),
            "error": _nullable(curve.error),
        }
    if gain is not None:
        values = _nullable((gain.value, gain.low, gain.high))
        document["against"] = dict(zip(("roca", "low", "high"), values, strict=True))
    return document


def _nullable(values: Iterable[float]) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values]


def describe_gain(gain: Interval, other: str) -> str:
    """1-ROCA % minus that of another run, as a sentence."""
    subject = f"1-ROCA minus that of {other}"
    if math.isnan(gain.value):
        return f"{subject}: –, as there is mail of one kind only"
    verdict = (
        "better" if gain.high < 0 else "worse" if gain.low > 0 else "no evidence of a difference"
    )
    return f"{subject}: {gain.value:+.4f} % ({gain.low:+.4f} to {gain.high:+.4f}): {verdict}"


def measures_table(name: str, run: Measures) -> str:
    """A run as text, a line per measure."""

    def number(value: float, digits: int, unit: str = "") -> str:
        return "–" if math.isnan(value) else f"{value:.{digits}f}{unit}"

    def rate(value: float, errors: int, messages: int) -> str:
        return "–" if math.isnan(value) else f"{value:.2f} % ({errors} of {messages})"

    bounds = f"{run.roca_low:.4f} to {run.roca_high:.4f} %"
    lines = [
        ("", name),
        ("messages (ham, spam)", f"{run.messages} ({run.ham}, {run.spam})"),
        ("ham called spam (hm)", rate(run.hm, run.ham_as_spam, run.ham)),
        ("spam not called spam (sm)", rate(run.sm, run.spam_missed, run.spam)),
        ("  unsure (ham, spam)", f"{run.unsure_ham}, {run.unsure_spam}"),
        ("logistic average (lam)", number(run.lam, 2, " %")),
        ("1-ROCA", number(run.roca, 4, " %")),
        ("  95 % interval", "–" if math.isnan(run.roca_low) else bounds),
        ("sm where hm <= 0.1 %", number(run.sm_at_hm_01, 2, " %")),
        ("sm where hm <= 0.5 %", number(run.sm_at_hm_05, 2, " %")),
        ("calibration error", number(run.calibration_error, 4)),
        ("log-loss", number(run.log_loss, 4)),
    ]
    return _format_table(lines)


def confusion_table(matrix: Confusion) -> str:
    """The confusion matrix as text: a line per answer, a column per true class."""
    answers = zip(matrix.predicted, matrix.counts.tolist(), strict=True)
    lines = [[name, *map(str, counts)] for name, counts in answers]
    return _format_table([["called \\ truly", *matrix.actual], *lines])


def _format_table(lines: Sequence[Sequence[str]]) -> str:
    """Cells padded to columns: the first to the left, numbers to the right."""
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for head, *cells in lines:
        padded = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
        text.append("  ".join([head.ljust(first), *padded]).rstrip())
    return "\n".join(text) + "\n"
