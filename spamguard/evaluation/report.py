"""How measures are told: a table for people, a document for programs, one line per message for everybody's scripts.

It must never compute a measure (that is `metrics`) and never print: it returns text, and writes only the file it is given.
"""

from __future__ import annotations

import csv
import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from spamguard.errors import UsageError, remedy
from spamguard.evaluation.metrics import Confusion, Interval, LearningCurve, Measures
from spamguard.files import draft_of

COLUMNS = ("n", "gold", "label", "score", "trained")


class Scored(NamedTuple):
    """One judged message. n: its number, from 1. gold: its true class. score: higher is more likely spam.

    trained: was it taught afterwards?
    """

    n: int
    gold: str
    label: str
    score: float
    trained: bool


def write_scores(path: str | Path, rows: Iterable[Scored]) -> None:
    """Write `rows` as CSV with the columns n,gold,label,score,trained.

    Scores have all their digits, so that ties and measures survive. The file appears whole or not at all: rows
    are streamed into a neighbour that takes its name at the end. A pipe or a device is written as it is. Raises UsageError if it
    cannot be written.
    """
    target = Path(path)
    with _neighbour(target) as part:
        with part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in rows:
                writer.writerow((row.n, row.gold, row.label, repr(float(row.score)), int(row.trained)))
        if part != target:
            part.replace(target)


def check_writable(path: str | Path) -> None:
    """UsageError if `write_scores` could not write there now. Leaves what is there as it is."""
    with _neighbour(Path(path)) as part:
        part.touch()
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def _neighbour(target: Path) -> Iterator[Path]:
    """Where a file is written before it takes its name; nothing is left there. What is no file, as /dev/stdout, is never replaced."""
    try:
        with nullcontext(target) if target.exists() and not target.is_file() else draft_of(target) as part:
            yield part
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror or error}); {remedy(error, 'choose another file')}") from error


def read_scores(path: str | Path) -> list[Scored]:
    """The rows of a file that `write_scores` wrote, or anything else with these columns. Raises UsageError if it is no such file."""
    source = Path(path)
    try:
        with source.open(encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            if not set(COLUMNS).issubset(rows.fieldnames or ()):
                raise ValueError(COLUMNS)
            return [_scored(row) for row in rows]
    except OSError as error:
        raise UsageError(f"{source}: cannot be read ({error.strerror or error}); name a file of scores") from error
    except (TypeError, ValueError, csv.Error) as error:
        raise UsageError(f"{source}: holds no scores; its columns must be {','.join(COLUMNS)}, as `--scores` writes them") from error


def _scored(row: Mapping[str, str]) -> Scored:
    score = float(row["score"])
    if math.isnan(score):
        raise ValueError("a score is not a number")
    return Scored(int(row["n"]), row["gold"], row["label"], score, bool(int(row["trained"])))


def document(
    runs: Mapping[str, Measures], matrix: Confusion | None = None, curve: LearningCurve | None = None, gain: Interval | None = None
) -> dict[str, object]:
    """Everything as one JSON-ready dictionary; what is not defined is None. gain: 1-ROCA % minus that of another run."""
    found: dict[str, object] = {"runs": {name: run.as_dict() for name, run in runs.items()}}
    if matrix is not None:
        found["confusion"] = {"predicted": list(matrix.predicted), "actual": list(matrix.actual), "counts": matrix.counts.tolist()}
    if curve is not None:
        found["learning_curve"] = {"last": curve.last.tolist(), "roca": _nullable(curve.roca), "error": _nullable(curve.error)}
    if gain is not None:
        found["against"] = dict(zip(("roca", "low", "high"), _nullable((gain.value, gain.low, gain.high)), strict=True))
    return found


def gained(gain: Interval, other: str) -> str:
    """1-ROCA % less than that of another run, as a sentence."""
    if math.isnan(gain.value):
        return f"1-ROCA minus that of {other}: –, as there is mail of one kind only"
    verdict = "better" if gain.high < 0 else "worse" if gain.low > 0 else "no evidence of a difference"
    return f"1-ROCA minus that of {other}: {gain.value:+.4f} % ({gain.low:+.4f} to {gain.high:+.4f}): {verdict}"


def _nullable(values: Iterable[float]) -> list[float | None]:
    return [None if math.isnan(value) else float(value) for value in values]


# ---- the table


def _rate(value: float, errors: int, messages: int) -> str:
    return "–" if math.isnan(value) else f"{value:.2f} % ({errors} of {messages})"


def _number(value: float, digits: int, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}{unit}"


def _bounds(low: float, high: float) -> str:
    return "–" if math.isnan(low) else f"{low:.4f} to {high:.4f} %"


_ROWS: tuple[tuple[str, Callable[[Measures], str]], ...] = (  # a line each: what it is called, and what stands there
    ("messages (ham, spam)", lambda m: f"{m.messages} ({m.ham}, {m.spam})"),
    ("ham called spam (hm)", lambda m: _rate(m.hm, m.ham_as_spam, m.ham)),
    ("spam not called spam (sm)", lambda m: _rate(m.sm, m.spam_missed, m.spam)),
    ("  unsure (ham, spam)", lambda m: f"{m.unsure_ham}, {m.unsure_spam}"),
    ("logistic average (lam)", lambda m: _number(m.lam, 2, " %")),
    ("1-ROCA", lambda m: _number(m.roca, 4, " %")),
    ("  95 % interval", lambda m: _bounds(m.roca_low, m.roca_high)),
    ("sm where hm <= 0.1 %", lambda m: _number(m.sm_at_hm_01, 2, " %")),
    ("sm where hm <= 0.5 %", lambda m: _number(m.sm_at_hm_05, 2, " %")),
    ("calibration error", lambda m: _number(m.calibration_error, 4)),
    ("log-loss", lambda m: _number(m.log_loss, 4)),
)


def table(name: str, run: Measures) -> str:
    """A run, a line per measure."""
    return _text(_aligned([["", name], *([title, cell(run)] for title, cell in _ROWS)]))


def confusion_table(matrix: Confusion) -> str:
    """The confusion matrix as text: a line per answer, a column per true class."""
    corner = "called \\ truly"
    lines = [[corner, *matrix.actual]] + [
        [name, *map(str, counts)] for name, counts in zip(matrix.predicted, matrix.counts.tolist(), strict=True)
    ]
    return _text(_aligned(lines))


def _aligned(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Cells padded to columns: the first to the left, numbers to the right."""
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [[line[0].ljust(first), *(cell.rjust(width) for cell, width in zip(line[1:], others, strict=True))] for line in lines]


def _text(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("  ".join(line).rstrip() for line in lines) + "\n"
