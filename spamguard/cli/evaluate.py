"""`evaluate`: how good the filter is on labelled mail. Never touches the user's filter and never judges what it was taught."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from spamguard import sources
from spamguard.cli import rim, usage
from spamguard.errors import UsageError
from spamguard.teaching.lesson import is_class

if TYPE_CHECKING:
    from spamguard.evaluation.metrics import Confusion, Interval, LearningCurve, Measures
    from spamguard.evaluation.protocols import Trial
    from spamguard.evaluation.report import Scored

ABOUT = """Measure how good the filter is on labelled mail. That is a TREC index, or folders of ham and spam.

A new filter in a temporary directory judges every message before it is taught (or not taught at all, `split`). Protocols:
  online       every message is taught right after it was judged
  delayed      every message is taught some messages later
  corrections  only what was judged wrong or unsure is taught
  split        the first part is taught, the rest judged

Folders are taken side by side, each in its own order; an index in the order of its lines. It may have classes of its own: they are
wanted, unless your filter (--state) has been taught them as unwanted."""
EXAMPLE = """  spamguard evaluate corpus/index
  spamguard evaluate --ham ~/Maildir --spam ~/Maildir/.Junk --protocol corrections --plots pictures
  spamguard --profile multinomial evaluate corpus/index --scores scores.csv --json
  spamguard evaluate corpus/index --against scores.csv"""

Messages = Callable[[], Iterable[sources.Message]]


def add(commands: usage.Commands) -> None:
    """The command's arguments."""
    parser = usage.describe(commands, "evaluate", run, ABOUT, EXAMPLE)
    usage.add_json(parser)
    parser.add_argument("paths", nargs="*", metavar="INDEX", help="TREC index, or a directory that holds one")
    parser.add_argument("--ham", action="append", default=[], metavar="PATH", help="wanted mail (may be given again)")
    parser.add_argument("--spam", action="append", default=[], metavar="PATH", help="unwanted mail (may be given again)")
    parser.add_argument("--protocol", choices=("online", "delayed", "corrections", "split"), default="online", help="default: online")
    parser.add_argument("--delay", type=usage.whole, default=500, metavar="N", help="messages until feedback, in `delayed` (default: 500)")
    parser.add_argument("--share", type=_share, default=0.7, metavar="X", help="part that is taught first, in `split` (default: 0.7)")
    parser.add_argument("--scores", type=usage.file, metavar="FILE.csv", help="write n,gold,label,score,trained of every judged message")
    parser.add_argument(
        "--against", type=usage.file, metavar="FILE.csv", help="say what is gained over another run on the same mail (its --scores)"
    )
    parser.add_argument("--plots", type=usage.directory, metavar="DIR", help="draw ROC, calibration, scores and learning curve")


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 < (share := float(text)) < 1:
            return share
    raise argparse.ArgumentTypeError(f"{text!r} is no number between 0 and 1")


def run(options: argparse.Namespace) -> int:
    """Try it out and report."""
    from spamguard.evaluation import plots, report
    from spamguard.policy import unwanted_of

    # A slip shows before the work, not after it.
    other = report.read_scores(options.against) if options.against else None
    if options.scores:
        report.check_writable(options.scores)
    if options.plots:
        plots.check_drawable(options.plots)
    unwanted = _unwanted(options)
    trials = _tried(options, unwanted)
    _report(options, trials, unwanted_of({label: unwanted(label) for label in _classes(trials)}), other)
    return 0


def _classes(trials: Iterable[Trial]) -> set[str]:
    """Those that messages are of, and those that they were taken for."""
    return {label for trial in trials for label in (trial.row.gold, trial.row.label)} - {"unsure"}


def _unwanted(options: argparse.Namespace) -> Callable[[str], bool]:
    """Whether a class is: of those that come with every filter it is known, others are asked of the one that is there."""

    @cache
    def there() -> frozenset[str]:
        if not rim.has_filter(options):
            return frozenset()
        with rim.open_existing(options, load=False) as spam_filter:
            return spam_filter.unwanted

    return lambda label: label == "spam" or (label != "ham" and label in there())


def _tried(options: argparse.Namespace, unwanted: Callable[[str], bool]) -> list[Trial]:
    from spamguard.evaluation import protocols

    settings = protocols.Settings(options.profile, options.delay, options.share, unwanted)
    paths = [*options.paths, *options.ham, *options.spam]
    with rim.tidying_up(), closing(protocols.run(options.protocol, _messages(options), settings)) as found:
        trials = list(rim.with_progress(found, rim.expected(paths)))
    if not trials:
        raise UsageError(f"{', '.join(paths)}: no message was judged: name more mail")
    return trials


def _report(options: argparse.Namespace, trials: list[Trial], unwanted: frozenset[str], other: list[Scored] | None) -> None:
    """On standard output and in files. unwanted: names of classes. other: rows of a run to compare with."""
    from spamguard.evaluation import comparison, metrics, plots, report

    rows, probability = [trial.row for trial in trials], [trial.probability for trial in trials]
    gold, score, labels = [row.gold in unwanted for row in rows], [row.score for row in rows], [row.label for row in rows]
    measured = metrics.measures(gold, score, labels, probability=probability, unwanted=unwanted)
    curve = metrics.learning_curve(gold, score, labels, unwanted=unwanted)
    gain = None
    try:
        if options.scores:
            report.write_scores(options.scores, rows)
        if options.plots:
            plots.write_plots(options.plots, gold, score, curve, probability=probability, name=_name(options))
        gain = None if other is None else comparison.difference(rows, other, unwanted)
    finally:  # the work was done: its figures are told even if a disk is full, or the other run was one on other mail
        _tell(options, measured, metrics.confusion([row.gold for row in rows], labels), curve, gain)


def _tell(options: argparse.Namespace, measured: Measures, matrix: Confusion, curve: LearningCurve, gain: Interval | None) -> None:
    from spamguard.evaluation import report

    if options.json:
        print(rim.as_json(report.document({_name(options): measured}, matrix, curve, gain)))
        return
    print(report.table(_name(options), measured), report.confusion_table(matrix), sep="\n\n")
    if gain is not None:
        print(f"\n{report.gained(gain, str(options.against))}")


def _name(options: argparse.Namespace) -> str:
    return f"{options.profile}, {options.protocol}"


def _messages(options: argparse.Namespace) -> Messages:
    """What gives the labelled messages, anew each time it is called."""
    if options.paths and (options.ham or options.spam):
        raise UsageError("name either an index, or --ham and --spam")
    if options.paths:
        return lambda: _labelled(options.paths)
    if not (options.ham and options.spam):
        raise UsageError("name a TREC index, or folders with both --ham and --spam")
    for path in (*options.ham, *options.spam):
        if path == "-" or Path(path).is_fifo():
            raise UsageError(f"{path}: evaluate reads its mail twice, which a pipe cannot give: name a file or a directory")
    return lambda: _folders(options.ham, options.spam)


def _labelled(paths: Sequence[str]) -> Iterable[sources.Message]:
    for message in rim.messages(paths):
        if message.label is None:
            raise UsageError(f"{message.name}: has no label: name a TREC index, or use --ham and --spam")
        if not is_class(message.label):
            raise UsageError(f"{message.name}: its class, {message.label!r}, has a name that none may have: write another one in the index")
        yield message


def _folders(ham: Sequence[str], spam: Sequence[str]) -> Iterable[sources.Message]:
    from spamguard.evaluation.protocols import interleaved

    counts = [sum(1 for _ in rim.messages(paths)) for paths in (ham, spam)]
    return interleaved(rim.messages(ham), counts[0], rim.messages(spam), counts[1])
