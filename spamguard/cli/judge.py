"""`judge`, `explain` and `filter`: ask the filter about messages.

`judge` prints a line for each message, and its exit status is the verdict. `explain` prints the
log-odds of a message as parts that sum to them. `filter` adds the verdict to a message on its way
from standard input to standard output, for delivery agents.

`judge` and `explain` must never teach, and `explain` must never judge otherwise than `judge`.
`filter` must never lose or change mail: whatever fails, the message comes out with all its bytes
and the exit status is 0. Only if the message cannot be read or written is the status 75
(EX_TEMPFAIL); delivery agents then keep the message and try again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import east_asian_width

from spamguard.cli import arguments, common, history
from spamguard.errors import MemoryLimitError, SourceError, UsageError
from spamguard.keys import is_id
from spamguard.log import local_time, message_name, printable, rfc3339

if TYPE_CHECKING:
    from spamguard.engine.explain_groups import ExplainedFeature
    from spamguard.engine.filter import Filter
    from spamguard.proxy.history_schema import HistoryRow
    from spamguard.records import Explanation, Verdict, Vote


# ---- judge

JUDGE_ABOUT = """Judge messages. One line for each: label, probability of being unwanted, name.

Exit status: 1 when at least one message is unwanted; else 3 when at least one is unsure; else 0. 2
is an error."""
JUDGE_EXAMPLE = """  spamguard judge message.eml
  spamguard judge --json ~/Maildir/.Junk
  spamguard judge --user anna message.eml
  spamguard judge - < message.eml >/dev/null; test $? -eq 1 && echo unwanted"""

EXIT_WANTED, EXIT_UNWANTED, EXIT_UNSURE = 0, 1, 3
_COLOURS = {EXIT_WANTED: "32", EXIT_UNWANTED: "31", EXIT_UNSURE: "33"}


def add_judge(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "judge", run_judge, JUDGE_ABOUT, JUDGE_EXAMPLE)
    arguments.add_user(parser)
    arguments.add_json(parser, arguments.JSON_LINES_HELP)
    arguments.add_paths(parser)


def run_judge(options: argparse.Namespace) -> int:
    """Judge every message and print its verdict."""
    statuses: set[int] = set()
    paint = common.painter()
    messages = common.read_messages(options.paths)
    if not sys.stdout.isatty():  # on a terminal the verdicts would break the bar
        messages = common.with_progress(messages, common.expected_count(options.paths))
    with common.open_for_judging(options) as spam_filter:
        named, read = tee(messages)
        verdicts = spam_filter.judge_all((message.raw for message in read), user=options.user)
        for message, verdict in zip(named, verdicts, strict=True):
            status = _exit_status(verdict, spam_filter.unwanted)
            statuses.add(status)
            print(
                _verdict_json(message.name, verdict)
                if options.json
                else _verdict_line(message.name, verdict, paint, _COLOURS[status])
            )
    if not statuses:
        raise SourceError(f"{', '.join(options.paths)}: no message there to judge; check the path")
    return next(
        status for status in (EXIT_UNWANTED, EXIT_UNSURE, EXIT_WANTED) if status in statuses
    )


def _exit_status(verdict: Verdict, unwanted: frozenset[str]) -> int:
    if verdict.label not in verdict.probabilities:
        return EXIT_UNSURE
    return EXIT_UNWANTED if verdict.label in unwanted else EXIT_WANTED


def _verdict_line(name: str, verdict: Verdict, paint: common.Painter, colour: str) -> str:
    width = max(len("unsure"), *map(len, verdict.probabilities))
    return f"{paint(verdict.label.ljust(width), colour)}  {verdict.probability:.4f}  {name}"


def _verdict_json(name: str, verdict: Verdict) -> str:
    return common.to_json({"name": name, **asdict(verdict)})


# ---- explain

EXPLAIN_ABOUT = """\
Explain a verdict. A sentence comes first, then the log-odds as a sum, by group, by expert, and by
word, trait and number of the message. Behind a word stand its kind and the messages of each class
that have it. The votes on the message itself come first.

In place of PATH, the ID of a message that passed, as X-Spamguard has it. It shows the verdict and
the action of that time, and the verdict by today's tables; of its words only those are shown that
were among the strongest then. There is no verdict of today for a message that another version has
read: the reason is shown."""
EXPLAIN_EXAMPLE = """  spamguard explain message.eml
  spamguard explain --words 30 message.eml
  spamguard explain --json message.eml
  spamguard explain 0iq5r8jo4c1n2f3g
  spamguard explain --user anna 0iq5r8jo4c1n2f3g"""

_MAX_BAR = 24  # letters of the longest bar
_MAX_VOTES = 20  # in the text: a circular may have those of thousands


class SumPart(NamedTuple):
    """A line of a sum. has_bar: not where it is a sum itself, which would dwarf every bar."""

    part: float
    name: str
    remark: str = ""
    has_bar: bool = True


def add_explain(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "explain", run_explain, EXPLAIN_ABOUT, EXPLAIN_EXAMPLE)
    about = "how many words each way (default: until all others hold a third at most)"
    parser.add_argument("--words", type=arguments.parse_count, metavar="N", help=about)
    arguments.add_user(parser)
    arguments.add_json(parser, arguments.JSON_LINES_HELP)
    about = f"{arguments.PATHS_HELP}; or the id of a message that passed"
    parser.add_argument("paths", nargs="+", metavar="PATH|ID", help=about)


def run_explain(options: argparse.Namespace) -> int:
    """Explain every message, first those named by an id."""
    from spamguard.engine.prepare import ExampleReader

    ids = [path for path in options.paths if is_id(path) and not Path(path).exists()]
    paths = [path for path in options.paths if path not in ids]
    rows = history.find_rows(options, ids)
    messages = common.read_messages(paths)
    explained = len(rows)
    with common.open_for_judging(options) as spam_filter:
        reader = ExampleReader(spam_filter.key)
        for row in rows:
            _explain_row(spam_filter, row, options)
        for message in messages:
            why = spam_filter.explain(message.raw, user=options.user)
            digest = reader.digest(message.raw)
            name = message_name(digest)
            votes = list(spam_filter.ledger.users.votes_on_message(digest))
            common.print_answer(
                options,
                _explanation_text(f"{message.name}, message={name}", why, votes, options.words),
                {"message": name, **_explanation_values(options, message.name, why, votes)},
            )
            explained += 1
    if not explained:
        raise SourceError(f"{', '.join(paths)}: no message there to explain; check the path")
    return 0


def _explain_row(spam_filter: Filter, row: HistoryRow, options: argparse.Namespace) -> None:
    """Show the verdict of then, and that of now if there can be one."""
    text = history.row_text(row, options.words)
    values = {}
    if options.json:
        values = {"name": row.id, "message": row.message, "then": history.row_values(row)}
    if not row.was_scanned:
        common.print_answer(options, text, values)
        return
    from spamguard.proxy.history import example_from_row

    try:
        features = example_from_row(spam_filter, row).features
    except UsageError as error:
        reason = common.describe_error(error)
        text = f"{text}\nnow: cannot be told. {reason}\n"
        common.print_answer(options, text, values | {"no_now": reason})
        return
    word_texts = {word.token: word.text for word in row.words}
    why = spam_filter.explain_features(features, word_texts, options.user)
    votes = list(spam_filter.ledger.users.votes_on_message(row.digest))
    common.print_answer(
        options,
        f"{text}\n{_explanation_text('now', why, votes, options.words)}",
        values | _explanation_values(options, row.id, why, votes),
    )


def _explanation_values(
    options: argparse.Namespace, name: str, why: Explanation, votes: Sequence[Vote]
) -> dict[str, object]:
    """The explanation for JSON, if that is asked for: it needs pydantic, which takes time."""
    if not options.json:
        return {}
    from spamguard.web.models import VerdictExplanation, summarize_explanation, to_json

    taught = [
        {"class": vote.label, "user": vote.user, "origin": vote.origin, "time": rfc3339(vote.time)}
        for vote in votes
    ]
    summary = summarize_explanation(why, options.words)
    return {"name": name, "taught": taught, **to_json(VerdictExplanation, summary)}


def _explanation_text(
    name: str, why: Explanation, votes: Sequence[Vote], max_words: int | None
) -> str:
    from spamguard.engine.explain_groups import describe_verdict, list_features, sum_groups
    from spamguard.engine.explain_text import describe_flip, describe_odds

    verdict, features = why.verdict, list_features(why)
    groups = sum_groups(features)
    more_votes = len(votes) - _MAX_VOTES
    lines = [
        name,
        f"{verdict.label}: probability {verdict.probability:.4f} of being unwanted, "
        f"log-odds {verdict.log_odds:+.3f}",
        describe_verdict(why, groups),
        describe_flip(why),
        *map(_vote_line, votes[:_MAX_VOTES]),
        *([f"and by {more_votes:,} more (--json shows all)"] if more_votes > 0 else ()),
        "",
        f"by group: log-odds of {describe_odds(why)}",
        *_sum_lines(
            [SumPart(group.part, group.title, f"{group.features:,} of them") for group in groups],
            why.log_odds,
        ),
        "",
        f"by expert: log-odds of {describe_odds(why)}",
        *_sum_lines([SumPart(why.prior, "prior"), *_sorted_parts(why.shares)], why.log_odds),
        "",
        f"by feature: log-odds of {describe_odds(why)}",
        *_sum_lines(_feature_parts(features, why.log_odds, max_words), why.log_odds),
        "",
    ]
    return "\n".join(lines)


def _vote_line(vote: Vote) -> str:
    return printable(
        f"taught as {vote.label} by {vote.user or arguments.SITE}: "
        f"{vote.origin}, {local_time(vote.time)}"
    )


def _feature_parts(
    features: Sequence[ExplainedFeature], log_odds: float, max_words: int | None
) -> list[SumPart]:
    from spamguard.engine.explain_groups import OTHERS_LABEL, choose_features

    words, others, n_others, beside = choose_features(features, log_odds, max_words)
    return [
        *(
            SumPart(word.part, word.name, f"{word.tokens:,} of them", has_bar=False)
            if word.counts is None
            else SumPart(
                word.part, printable(word.name), f"{word.kind}: {_counts_text(word.counts)}"
            )
            for word in words
        ),
        SumPart(others, OTHERS_LABEL, f"{n_others:,} of them", has_bar=False),
        *(SumPart(feature.part, feature.name, feature.kind) for feature in beside),
    ]


def _sorted_parts(parts: Mapping[str, float]) -> Iterator[SumPart]:
    """The parts with their names, the strongest first."""
    for name, part in sorted(parts.items(), key=lambda item: -abs(item[1])):
        yield SumPart(part, name)


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items())


def _sum_lines(parts: Sequence[SumPart], whole: float) -> list[str]:
    """The lines of a sum, each with a bar; the printed figures add up."""
    from spamguard.engine.explain_text import STEPS_PER_NAT, round_parts

    steps = round_parts([line.part for line in parts], whole)
    rows = list(zip(steps, parts, strict=True))
    longest = max(1, *(abs(step) for step, line in rows if line.has_bar))
    width = min(40, max(_display_width(line.name) for line in parts))
    lines = []
    for step, (_, name, remark, has_bar) in rows:
        if step:
            padding = " " * (width - _display_width(name))
            length = -(-abs(step) * _MAX_BAR // longest) if has_bar else 0
            bar = ("+" if step > 0 else "-") * length
            line = f"  {step / STEPS_PER_NAT:+9.3f}  {name}{padding}  {bar:{_MAX_BAR}}  {remark}"
            lines.append(line.rstrip())
    return [*lines, f"  {sum(steps) / STEPS_PER_NAT:+9.3f}  sum"]


def _display_width(text: str) -> int:
    """Columns of a text on a terminal, where ideographs take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


# ---- filter

FILTER_ABOUT = """\
Add the verdict to a message on its way through. It is read from standard input and written to
standard output.

The fields X-Spam-Flag (unwanted mail only), X-Spam-Status and X-Spamguard are put on top. Fields of
these names that the message brings along are taken out; all else stays as it is, byte for byte. A
message that cannot be judged goes through with `X-Spamguard: not-scanned`, and the exit status is 0
all the same. It is 75 only when the message could not be read or written."""
FILTER_EXAMPLE = """  spamguard filter < message.eml

  in .procmailrc:
    :0fw
    | spamguard filter --user "$LOGNAME"
    :0
    * ^X-Spam-Flag: YES
    .Junk/"""

EXIT_TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h


def add_filter(commands: arguments.Commands) -> None:
    arguments.add_user(
        arguments.add_command(commands, "filter", run_filter, FILTER_ABOUT, FILTER_EXAMPLE)
    )


def run_filter(options: argparse.Namespace) -> int:
    """Pass one message on, judged if possible."""
    return _pass_message(lambda raw: _add_verdict(raw, options))


def pass_unscanned(reason: str) -> int:
    """Pass one message on without judging it."""
    return _pass_message(lambda raw: _add_not_scanned(raw, reason))


def _pass_message(add_fields: Callable[[bytes], bytes]) -> int:
    try:
        raw = sys.stdin.buffer.read()
        sys.stdout.buffer.write(_tag_if_possible(raw, add_fields))
        sys.stdout.buffer.flush()
    except BaseException as error:  # noqa: BLE001  after an interrupt, too, the mail must be kept
        _report_failure("the message could not be passed on", error)
        common.discard_output()
        return EXIT_TEMPFAIL
    return 0


def _tag_if_possible(raw: bytes, add_fields: Callable[[bytes], bytes]) -> bytes:
    try:
        return add_fields(raw)
    except MemoryLimitError as error:  # to add a field would load numpy, which would end us
        _report_failure("the message was not scanned", error)
        return raw
    except BaseException as error:  # noqa: BLE001  after an interrupt, too, the mail goes on
        _report_failure("the message was not scanned", error)
        return _add_not_scanned(raw, type(error).__name__)


def _add_verdict(raw: bytes, options: argparse.Namespace) -> bytes:
    # First of all, because it checks whether there is memory for the modules loaded below.
    with common.open_for_judging(options) as spam_filter:
        from secrets import token_hex

        from spamguard import keys
        from spamguard.config.options import Policy
        from spamguard.engine import policy
        from spamguard.mail.rewrite import add_fields

        scan = spam_filter.scan(raw, words=0, users=(options.user,))
        verdict = scan.personal.get(options.user, scan.verdict)
        decision = policy.decide(verdict, Policy(), scan.threshold)
        key = keys.derive_key(spam_filter.key, b"verdict")
    signed = keys.sign_verdict(key, verdict, decision.action, token_hex(10), scan.digest)
    return add_fields(raw, policy.header_fields(verdict, decision, signed), policy.VERDICT_FIELDS)


def _add_not_scanned(raw: bytes, reason: str) -> bytes:
    try:
        from spamguard.engine import policy
        from spamguard.mail.rewrite import add_fields

        return add_fields(raw, policy.not_scanned_fields(reason), policy.VERDICT_FIELDS)
    except BaseException:  # noqa: BLE001  nothing of ours works: the mail goes on as it came
        return raw


def _report_failure(text: str, error: BaseException) -> None:
    with suppress(BaseException):  # the report is worth less than the mail
        common.say(f"{text}: {common.describe_error(error)}")
