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

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from itertools import islice, tee
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common
from spamguard.cli.arguments import argument, command
from spamguard.errors import MemoryLimitError, SourceError, UsageError
from spamguard.log import message_name, printable
from spamguard.times import local_time, rfc3339

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.proxy.history import HistoryRow
    from spamguard.proxy.history_search import HistoryFilter, HistorySearch
    from spamguard.records import Explanation

# ---- judge


EXIT_WANTED, EXIT_UNWANTED, EXIT_UNSURE = 0, 1, 3


@command(
    "judge",
    """Judge messages. One line for each: label, probability of being unwanted, name.

Exit status: 1 when at least one message is unwanted; else 3 when at least one is unsure; else 0. 2
is an error.""",
    arguments.USER,
    arguments.JSON_LINES,
    argument("paths", arguments.PATHS_HELP, "PATH", nargs="+"),
    example="""  spamguard judge message.eml
  spamguard judge --json ~/Maildir/.Junk
  spamguard judge --user anna message.eml
  spamguard judge - < message.eml >/dev/null; test $? -eq 1 && echo unwanted""",
)
def run_judge(options: Namespace) -> int:
    labels: set[str] = set()
    messages = common.read_messages(options.paths)
    with common.terminate_cleanly(), common.open_filter(options) as spam_filter:
        listed, read = tee(messages)
        raws = (message.raw for message in read)
        with closing(spam_filter.judge_all(raws, user=options.user, cores=None)) as verdicts:
            for message, verdict in zip(listed, verdicts, strict=True):
                labels.add(verdict.label)
                line = f"{verdict.label:6}  {verdict.probability:.4f}  {message.name}"
                common.print_answer(options, line, {"name": message.name, **asdict(verdict)})
        unwanted = spam_filter.unwanted
    if not labels:
        raise SourceError(f"{', '.join(options.paths)}: no message there to judge; check the path")
    if labels & unwanted:
        return EXIT_UNWANTED
    return EXIT_UNSURE if "unsure" in labels else EXIT_WANTED


# ---- explain


_MAX_BAR = 24  # letters
_WORDS_THEN = 8  # each way

Row = tuple[float, str, str]  # of a sum: the part, its name, a remark


@command(
    "explain",
    """\
Explain a verdict. A sentence comes first, and how many of its strongest words would have to go for
another label; then the log-odds as a sum, by group, by expert, and by word, trait and number of the
message. Behind a word stand its kind and the messages of each class that have it. The votes on the
message itself come first.

Of a message that passed, named by its ID, it shows the verdict and the action of that time, and the
verdict by today's tables; of its words those are named that were among the 100 strongest then.
There is no verdict of today for a message that another version has read: the reason is shown.""",
    argument(
        "--words",
        "how many words each way (default: until all others hold a third at most)",
        "N",
        type=arguments.parse_count,
    ),
    arguments.USER,
    arguments.JSON_LINES,
    arguments.PATHS_OR_IDS,
    example="""  spamguard explain message.eml
  spamguard explain --words 30 message.eml
  spamguard explain --json message.eml
  spamguard explain 0iq5r8jo4c1n2f3g
  spamguard explain message=31b1a3cbc2f1
  spamguard explain --user anna 0iq5r8jo4c1n2f3g""",
)
def run_explain(options: Namespace) -> int:
    from spamguard.engine.prepare import ExampleReader

    arguments.require_paths(options)
    rows, messages = common.find_messages(options)
    explained = len(rows)
    with common.open_filter(options) as spam_filter:
        reader = ExampleReader(spam_filter.key)
        for row in rows:
            _explain_row(spam_filter, row, options)
        for message in messages:
            why = spam_filter.explain(message.raw, user=options.user)
            digest = reader.digest(message.raw)
            name = message_name(digest)
            title = f"{message.name}, message={name}"
            text, values = _answer(options, message.name, title, why, spam_filter, digest)
            common.print_answer(options, text, {"message": name, **values})
            explained += 1
    if not explained:
        raise SourceError(
            f"{', '.join(options.paths)}: no message there to explain; check the path"
        )
    return 0


def _explain_row(spam_filter: Filter, row: HistoryRow, options: Namespace) -> None:
    """Show the verdict of then, and that of now if there can be one."""
    from spamguard.proxy.history_search import example_from_row

    text = _row_text(row, options.words)
    values: dict[str, object] = {}
    if options.json:
        values = {"name": row.id, "message": row.message, "then": _row_values(row, words=True)}
    if row.was_scanned:
        try:
            features = example_from_row(spam_filter, row).features
        except UsageError as error:
            values["no_now"] = str(error)
            text += f"\nnow: cannot be told. {error}\n"
        else:
            words = {word.token: word.text for word in row.words}
            why = spam_filter.explain_features(features, words, options.user, row.sender_digest)
            now, more = _answer(options, row.id, "now", why, spam_filter, row.digest)
            text, values = f"{text}\n{now}", values | more
    common.print_answer(options, text, values)


def _answer(
    options: Namespace,
    name: str,
    title: str,
    why: Explanation,
    spam_filter: Filter,
    digest: bytes,
) -> tuple[str, dict[str, object]]:
    """The explanation as a text, or as values for JSON."""
    votes = list(spam_filter.ledger.users.votes_on_message(digest))
    if options.json:
        from spamguard.web.models import VerdictExplanation, summarize_explanation, to_json

        lessons = [
            {
                "class": vote.label,
                "user": vote.user,
                "origin": vote.origin,
                "time": rfc3339(vote.time),
            }
            for vote in votes
        ]
        summary = to_json(VerdictExplanation, summarize_explanation(why, options.words))
        return "", {"name": name, "taught": lessons, **summary}
    from spamguard.engine import explain_text

    verdict, features, total = why.verdict, explain_text.list_features(why), why.log_odds
    words, rest, n_rest, beside = explain_text.choose_features(features, total, options.words)
    parts: list[Row] = []
    for word in words:
        remark = f"{word.tokens:,} of them"
        if word.counts is not None:
            counts = ", ".join(f"{number:,} {name}" for name, number in word.counts.items())
            remark = f"{word.kind}: {counts}"
        parts.append((word.part, printable(word.name), remark))
    parts.append((rest, explain_text.OTHERS_LABEL, f"{n_rest:,} of them"))
    parts += [(feature.part, feature.name, feature.kind) for feature in beside]
    groups = explain_text.sum_groups(features)
    experts = sorted(why.shares.items(), key=lambda share: -abs(share[1]))
    sums = {
        "group": [(group.part, group.title, f"{group.features:,} of them") for group in groups],
        "expert": [(why.prior, "prior", ""), *((part, name, "") for name, part in experts)],
        "feature": parts,
    }
    lines = [
        title,
        f"{verdict.label}: probability {verdict.probability:.4f} of being unwanted, "
        f"log-odds {verdict.log_odds:+.3f}",
        explain_text.describe_verdict(why, features),
        *filter(None, [explain_text.describe_flip(why)]),
    ]
    for vote in votes:
        user = vote.user or arguments.SITE
        lesson = f"taught as {vote.label} by {user}: {vote.origin}, {local_time(vote.time)}"
        lines.append(printable(lesson))
    for kind, rows in sums.items():
        above = f"by {kind}: log-odds of {explain_text.describe_odds(why)}"
        lines += ["", above, *_sum_lines(rows, total)]
    return "\n".join((*lines, "")), {}


def _sum_lines(parts: Sequence[Row], total: float) -> list[str]:
    """The lines of a sum, each with a bar; the printed figures add up."""
    from spamguard.engine.explain_text import STEPS_PER_NAT, round_parts

    steps = round_parts([part for part, *_ in parts], total)
    width = min(40, max(len(name) for _, name, _ in parts))
    longest, lines = max(1, *map(abs, steps)), []
    for step, (_, name, remark) in zip(steps, parts, strict=True):
        if step:
            bar = "-+"[step > 0] * -(-abs(step) * _MAX_BAR // longest)
            figure = f"{step / STEPS_PER_NAT:+9.3f}"
            lines.append(f"  {figure}  {name:{width}}  {bar:{_MAX_BAR}}  {remark}".rstrip())
    return [*lines, f"  {sum(steps) / STEPS_PER_NAT:+9.3f}  sum"]


# ---- filter


EXIT_TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h


@command(
    "filter",
    """\
Add the verdict to a message on its way through. It is read from standard input and written to
standard output.

The fields X-Spam-Flag (unwanted mail only), X-Spam-Status and X-Spamguard are put on top. Fields of
these names that the message brings along are taken out; all else stays as it is, byte for byte. A
message that cannot be judged goes through with `X-Spamguard: not-scanned`, and the exit status is 0
all the same. It is 75 only when the message could not be read or written.""",
    arguments.USER,
    example="""  spamguard filter < message.eml

  in .procmailrc:
    :0fw
    | spamguard filter --user "$LOGNAME"
    :0
    * ^X-Spam-Flag: YES
    .Junk/""",
)
def pass_message(options: Namespace | None) -> int:
    """Pass one message on. options: None for wrong usage: it is not judged."""
    try:
        raw = sys.stdin.buffer.read()
        try:
            if options is None:
                tagged = _add_not_scanned(raw, "wrong usage")
            else:
                tagged = _add_verdict(raw, options)
        except BaseException as error:  # noqa: BLE001  after an interrupt, too, the mail goes on
            _report_failure("the message was not scanned", error)
            # Where memory is short, adding a field would load numpy, which would end us.
            is_short = isinstance(error, MemoryLimitError)
            tagged = raw if is_short else _add_not_scanned(raw, type(error).__name__)
        sys.stdout.buffer.write(tagged)
        sys.stdout.buffer.flush()
    except BaseException as error:  # noqa: BLE001  after an interrupt, too, the mail must be kept
        _report_failure("the message could not be passed on", error)
        common.discard_output()
        return EXIT_TEMPFAIL
    return 0


def _add_verdict(raw: bytes, options: Namespace) -> bytes:
    # First of all, because it checks whether there is memory for the modules loaded below.
    with common.open_filter(options) as spam_filter:
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

_PAGE_ROWS = 1000  # read at a time


@command(
    "history",
    """\
List the messages that the daemon has judged, newest first. Each line has the time, the id as the
field X-Spamguard, the log and the page have it, the name as the log lines of lessons have it, the
verdict, the probability of being unwanted, author, recipients and subject. `explain ID` tells
why.""",
    arguments.SINCE,
    arguments.UNTIL,
    argument("--verdict", "only this verdict: a class, unsure or not-scanned", "LABEL", default=""),
    argument(
        "--limit",
        "how many messages at most (default: 1,000)",
        "N",
        type=arguments.parse_count,
        default=1000,
    ),
    arguments.JSON_LINES,
    example="""  spamguard history --since tuesday --verdict spam
  spamguard history --since '2026-11-17 08:00' --until 2026-11-18
  spamguard history --json --limit 10000""",
)
def run_history(options: Namespace) -> int:
    from spamguard.proxy.history_search import HistoryFilter

    conditions = HistoryFilter(label=options.verdict, since=options.since, until=options.until)
    with common.open_history(options, "no message has passed") as history:
        rows = _find_rows(history, conditions)
        for row in islice(rows, options.limit):
            probability = f"{row.probability:.4f}" if row.was_scanned else "-"
            head = f"{local_time(row.time)}  {row.id}  {row.message}  {row.label:11}  {probability}"
            recipients = ", ".join(row.recipients) or "nobody"
            line = f"{head}  {row.author or row.sender}  {recipients}  {row.subject}"
            common.print_answer(options, printable(line), {"id": row.id, **_row_values(row)})
        if next(rows, None):
            common.say(f"note: there are older ones: --limit {2 * options.limit}")
    return 0


def _find_rows(history: HistorySearch, conditions: HistoryFilter) -> Iterator[HistoryRow]:
    """All rows, newest first."""
    before = None
    while before != "":
        rows, before = history.find_page(conditions, _PAGE_ROWS)
        yield from rows
        conditions = conditions._replace(before=before)


def _row_values(row: HistoryRow, *, words: bool = False) -> dict[str, Any]:
    """A row for JSON, without features."""
    from spamguard.web.models import MessageOutcome, WordPart, outcome_fields, to_json, word_parts

    values: dict[str, Any] = to_json(MessageOutcome, MessageOutcome(**outcome_fields(row)))
    return values | ({"words": to_json(list[WordPart], word_parts(row.words))} if words else {})


def _row_text(row: HistoryRow, max_words: int | None) -> str:
    """A row for people: the envelope, the verdict, the action, the strongest words each way."""
    verdict = f"then: {row.label}"
    if row.was_scanned:
        verdict += (
            f": probability {row.probability:.4f} of being unwanted, log-odds {row.log_odds:+.3f}"
        )
    lines = [
        f"{row.id}, {local_time(row.time)}, from {common.sender_text(row.author, row.sender)} "
        f"at {row.client or 'an unknown client'} to {', '.join(row.recipients) or 'nobody'}",
        f'"{row.subject}", {row.size:,} bytes, message={row.message or "-"}',
        verdict,
    ]
    if row.was_scanned and row.personal:
        labels = ", ".join(f"{label} for {user}" for user, label in row.personal.items())
        lines.append(f"by what users have taught themselves: {labels}")
    lines.append(f"{row.action or 'handed on'}; answered: {row.reply}")
    limit = _WORDS_THEN if max_words is None else max_words
    up = [word for word in row.words if word.part > 0][:limit]
    down = [word for word in row.words if word.part < 0][:limit]
    strongest = sorted((*up, *down), key=lambda word: -abs(word.part))
    lines += (f"  {word.part:+9.3f}  {word.text}" for word in strongest)
    return "\n".join((*lines, ""))
