"""`evaluate`: measure the filter on labelled mail.

It teaches a new filter in a temporary directory and judges each message before it is
taught. Must never touch the user's own filter, and never judge a message that was taught.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from spamguard import sources
from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command
from spamguard.errors import UsageError
from spamguard.users import is_class_name


@command(
    "evaluate",
    """\
Measure how good the filter is on labelled mail. That is a TREC index, or folders of ham and spam.

A new filter in a temporary directory judges every message before it is taught (or not taught at
all, `split`). Protocols:
  online       every message is taught right after it was judged
  corrections  only messages judged wrong or unsure are taught
  split        the first 70 % are taught, the rest judged

Folders are read side by side, each in its own order; an index in the order of its lines. An index
may have classes of its own: they are wanted, unless your filter (--state) calls them unwanted.""",
    arguments.JSON,
    argument("paths", "TREC index, or a directory that holds one", "INDEX", nargs="*"),
    argument("--ham", "wanted mail (may be given again)", "PATH", action="append", default=[]),
    argument("--spam", "unwanted mail (may be given again)", "PATH", action="append", default=[]),
    argument(
        "--protocol",
        "default: online",
        choices=("online", "corrections", "split"),
        default="online",
    ),
    argument(
        "--scores",
        "write n,gold,label,score,trained of every judged message",
        "FILE.csv",
        type=arguments.parse_path,
    ),
    argument("--plots", "draw ROC and calibration", "DIR", type=arguments.parse_path),
    example="""  spamguard evaluate corpus/index
  spamguard evaluate --ham ~/Maildir --spam ~/Maildir/.Junk --protocol corrections --plots plots
  spamguard --profile multinomial evaluate corpus/index --scores scores.csv --json""",
)
def run_evaluate(options: Namespace) -> int:
    from spamguard.engine import evaluate, measures

    # Mistakes in names of files show before the work.
    if options.scores:
        evaluate.check_writable(options.scores)
    if options.plots:
        evaluate.check_drawable(options.plots)

    with common.open_filter(options, scratch=True, _load=False) as spam_filter:
        unwanted = spam_filter.unwanted
    messages = _message_source(options)
    running = evaluate.run_trial(options.protocol, messages, options.profile, unwanted=unwanted)
    with common.terminate_cleanly(), closing(running):
        rows = list(common.progress(running))
    if not rows:
        raise UsageError("no message was judged: name more mail")
    name = f"{options.profile}, {options.protocol}"
    probability = [row.probability for row in rows]
    gold, score = [row.gold in unwanted for row in rows], [row.score for row in rows]
    labels = [row.label for row in rows]
    measured = measures.measures(gold, score, labels, probability=probability, unwanted=unwanted)
    matrix = measures.confusion([row.gold for row in rows], labels)
    text = f"{measures.measures_table(name, measured)}\n\n{measures.confusion_table(matrix)}"
    document = measures.report_document({name: measured}, matrix)
    common.print_answer(options, text, document)
    if options.scores:
        evaluate.write_scores(options.scores, rows)
    if options.plots:
        evaluate.write_plots(options.plots, gold, score, probability, name)
    return 0


def _message_source(
    options: Namespace,
) -> Callable[[], Iterable[sources.SourceMessage]]:
    """A function that returns the labelled messages, from the first one at each call."""

    def labelled() -> Iterable[sources.SourceMessage]:
        for message in common.read_messages(options.paths):
            if message.label is None:
                raise UsageError(
                    f"{message.name}: has no label: name a TREC index, or use --ham and --spam"
                )
            if not is_class_name(message.label):
                raise UsageError(
                    f"{message.name}: its class, {message.label!r}, has a name that none may have: "
                    "write another one in the index"
                )
            yield message

    if options.paths and (options.ham or options.spam):
        raise UsageError("name either an index, or --ham and --spam")
    if options.paths:
        return labelled
    if not (options.ham and options.spam):
        raise UsageError("name a TREC index, or folders with both --ham and --spam")
    for path in (*options.ham, *options.spam):
        if path == "-" or Path(path).is_fifo():
            raise UsageError(f"{path}: evaluate reads its mail twice: name a file or a directory")
    from spamguard.engine.evaluate import interleave

    def kept(paths: Sequence[str]) -> Iterator[sources.SourceMessage]:
        return (message for message in common.read_messages(paths) if not message.deleted)

    def interleaved() -> Iterable[sources.SourceMessage]:
        ham, spam = (
            (kept(paths), sum(1 for _ in kept(paths))) for paths in (options.ham, options.spam)
        )
        return interleave(*ham, *spam)

    return interleaved
