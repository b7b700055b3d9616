"""`judge`, `explain`, `filter` and `history`: ask about messages.

`judge` prints a line for each message, and its exit status is the verdict. `explain` prints the
log-odds of a message as parts that sum to them. `filter` adds the verdict to a message on its way
from standard input to standard output, for delivery agents. `history` lists what the daemon has
judged, as the page does; `explain`, and commands that teach, take an id of it, as the field
X-Spamguard has it, in place of a file.

They must never teach or write to the history, and `explain` must never judge otherwise than
`judge`. `filter` must never lose or change mail: whatever fails, the message comes out with all its
bytes and the exit status is 0. Only if the message cannot be read or written is the status 75
(EX_TEMPFAIL); delivery agents then keep the message and try again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import east_asian_width

from spamguard.cli import arguments, common
from spamguard.errors import MemoryLimitError, SourceError, UsageError
from spamguard.keys import is_id
from spamguard.log import local_time, message_name, printable, rfc3339

if TYPE_CHECKING:
    from spamguard.engine.explain_text import ExplainedFeature
    from spamguard.engine.filter import Filter
    from spamguard.proxy.history import HistoryRow
    from spamguard.proxy.history_search import HistoryFilter, HistorySearch
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
    rows = find_rows(options, ids)
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
    text = row_text(row, options.words)
    values = {}
    if options.json:
        values = {"name": row.id, "message": row.message, "then": row_values(row)}
    if not row.was_scanned:
        common.print_answer(options, text, values)
        return
    from spamguard.proxy.history_search import example_from_row

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
    from spamguard.engine.explain_text import (
        describe_flip,
        describe_odds,
        describe_verdict,
        list_features,
        sum_groups,
    )

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
    from spamguard.engine.explain_text import OTHERS_LABEL, choose_features

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
        from spamguard.mail.message import add_fields

        scan = spam_filter.scan(raw, words=0, users=(options.user,))
        verdict = scan.personal.get(options.user, scan.verdict)
        decision = policy.decide(verdict, Policy(), scan.threshold)
        key = keys.derive_key(spam_filter.key, b"verdict")
    signed = keys.sign_verdict(key, verdict, decision.action, token_hex(10), scan.digest)
    return add_fields(raw, policy.header_fields(verdict, decision, signed), policy.VERDICT_FIELDS)


def _add_not_scanned(raw: bytes, reason: str) -> bytes:
    try:
        from spamguard.engine import policy
        from spamguard.mail.message import add_fields

        return add_fields(raw, policy.not_scanned_fields(reason), policy.VERDICT_FIELDS)
    except BaseException:  # noqa: BLE001  nothing of ours works: the mail goes on as it came
        return raw


def _report_failure(text: str, error: BaseException) -> None:
    with suppress(BaseException):  # the report is worth less than the mail
        common.say(f"{text}: {common.describe_error(error)}")


# ---- history

HISTORY_ABOUT = """\
List the messages that the daemon has judged, newest first. ID is as the field X-Spamguard, the log
and the page have it; MESSAGE as the log lines of lessons have it. `explain ID` tells why."""
HISTORY_EXAMPLE = """  spamguard history --from tuesday --verdict spam
  spamguard history --from '2026-11-17 08:00' --to 2026-11-18
  spamguard history --json --limit 10000"""

_PAGE_ROWS = 500  # read at once
_MAX_CELL = 40  # characters of sender and recipient
_COLUMNS = "{:16}  {:16}  {:12}  {:11}  {:>7}  {:{width}}  {:{width}}  {}"


def add_history(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "history", run_history, HISTORY_ABOUT, HISTORY_EXAMPLE)
    about = "not older than this: a date, a time or a day of the week"
    parser.add_argument("--from", dest="since", metavar="WHEN", help=about)
    parser.add_argument("--to", dest="until", metavar="WHEN", help="older than this")
    about = "only this verdict: a class, unsure or not-scanned"
    parser.add_argument("--verdict", default="", metavar="LABEL", help=about)
    about = "how many messages at most (default: 1,000)"
    parser.add_argument(
        "--limit", type=arguments.parse_count, default=1000, metavar="N", help=about
    )
    arguments.add_json(parser, arguments.JSON_LINES_HELP)


def run_history(options: argparse.Namespace) -> int:
    """List the messages that were judged."""
    from spamguard.cli.recovery import parse_since
    from spamguard.proxy.history_search import HistoryFilter, first_id

    now = datetime.now()
    since = parse_since(options.since, now) if options.since else 0
    until = parse_since(options.until, now) if options.until else 0
    conditions = HistoryFilter(
        label=options.verdict,
        since=since,
        until=until,
        first=first_id(since) if since else "",
        before=first_id(until + 1) if until else "",
    )
    with _open_history(options, "no message has passed") as history:
        for number, row in enumerate(_find_rows(history, conditions, options.limit + 1)):
            if number == options.limit:
                common.say(f"note: there are older ones: --limit {2 * options.limit}")
                break
            if not number and not options.json:
                print(_row_line("time", "id", "message", "verdict", "", "from", "to", "subject"))
            _print_row(options, row)
    return 0


def _print_row(options: argparse.Namespace, row: HistoryRow) -> None:
    values = {"id": row.id, **outcome_values(row)} if options.json else {}
    first, *others = row.recipients or ("nobody",)
    recipients = f"{first} +{len(others)}" if others else first
    probability = f"{100 * row.probability:.1f} %" if row.was_scanned else ""
    sender = row.author or row.sender
    cells = (row.id, row.message, row.label, probability, sender, recipients, row.subject)
    common.print_answer(options, _row_line(local_time(row.time), *cells), values)


def _row_line(*cells: str) -> str:
    *head, sender, recipient, subject = map(printable, cells)
    return _COLUMNS.format(
        *head, sender[:_MAX_CELL], recipient[:_MAX_CELL], subject, width=_MAX_CELL
    ).rstrip()


def _find_rows(
    history: HistorySearch, conditions: HistoryFilter, limit: int
) -> Iterator[HistoryRow]:
    """At most so many rows, newest first."""
    while limit > 0:
        page = history.find_page(conditions, min(limit, _PAGE_ROWS))
        yield from page.rows
        limit -= len(page.rows)
        if not page.next_before:
            return
        conditions = conditions._replace(before=page.next_before)


def find_rows(options: argparse.Namespace, ids: Sequence[str]) -> list[HistoryRow]:
    """The history's rows of these ids; UsageError at the first id that it does not have."""
    if not ids:
        return []
    rows = []
    with _open_history(options, f"{ids[0]} is not known") as history:
        for message_id in ids:
            row = history.find(message_id) if is_id(message_id) else None
            if row is None:
                raise UsageError(
                    f"{message_id}: no message with that id in the history: "
                    "it is another filter's, or too old, or was never judged"
                )
            rows.append(row)
    return rows


def _open_history(options: argparse.Namespace, consequence: str) -> HistorySearch:
    from spamguard.config.options import HistorySettings
    from spamguard.proxy.history import HISTORY_FILE
    from spamguard.proxy.history_search import HistorySearch

    path = common.state_directory(options) / HISTORY_FILE
    if not path.exists():
        raise UsageError(
            f"{path}: no history there, so {consequence}: "
            "name the state directory of the daemon with --state"
        )
    limits = HistorySettings()  # nothing is appended, so any limits will do
    return HistorySearch.open(path, limits.size, limits.age)


def outcome_values(row: HistoryRow) -> dict[str, Any]:
    """A row for JSON, without features and words."""
    from spamguard.web.models import MessageOutcome, outcome_fields, to_json

    values: dict[str, Any] = to_json(MessageOutcome, MessageOutcome(**outcome_fields(row)))
    return values


def row_values(row: HistoryRow) -> dict[str, Any]:
    """A row for JSON, without features."""
    from spamguard.web.models import WordPart, to_json, word_parts

    return {**outcome_values(row), "words": to_json(list[WordPart], word_parts(row.words))}


def row_text(row: HistoryRow, words: int | None = None) -> str:
    """A row for people: the envelope, the verdict, the action, the strongest words each way."""
    first, *others = row.recipients or ("nobody",)
    recipients = f"<{first}>" + (f" and {len(others)} more" if others else "")
    up = [word for word in row.words if word.part > 0][:words]
    down = [word for word in row.words if word.part < 0][:words]
    strongest = sorted((*up, *down), key=lambda word: -abs(word.part))
    lines = [
        f"{row.id}, {local_time(row.time)}, from {sender_text(row.author, row.sender)} "
        f"at {row.client or 'an unknown client'} to {recipients}",
        f'"{row.subject}", {row.size:,} bytes, message={row.message or "-"}',
    ]
    if row.was_scanned:
        lines.append(
            f"then: {row.label}: probability {row.probability:.4f} of being unwanted, "
            f"log-odds {row.log_odds:+.3f}"
        )
        if row.personal:
            own = ", ".join(f"{label} for {user}" for user, label in row.personal.items())
            lines.append(f"by what users have taught themselves: {own}")
    else:
        lines.append(f"then: {row.label}")
    lines.append(f"{row.action or 'handed on'}; answered: {row.reply}")
    lines += (f"  {word.part:+9.3f}  {word.text}" for word in strongest)
    return "\n".join((*lines, ""))


def sender_text(author: str, sender: str) -> str:
    """The author (of the header's From), and the envelope's sender if that is another."""
    from spamguard.mail.headers import is_sender, split_author

    if author and not is_sender(author, sender):
        return f"{author}, envelope sender <{sender}>"
    return author if split_author(author)[0] else f"<{sender}>"
