"""`judge`: a verdict per message, as a line and as an exit status. Never writes to the filter.

`explain`: why a message gets its verdict, as parts that sum to the score. Never judges otherwise
than `judge` does.

`filter`: a message from standard input to standard output with the verdict on top, for delivery
agents.

Must never lose or change mail: whatever fails, the message comes out with all its bytes and the
exit status is 0. Only a message that could not be read or written at all gives another one: 75
(EX_TEMPFAIL), on which delivery agents keep it and try again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from spamguard.cli import common, history
from spamguard.errors import MemoryLimitError, SourceError, UsageError
from spamguard.keys import is_id
from spamguard.log import local_time, printable, rfc3339

if TYPE_CHECKING:
    from spamguard.engine.filter import Filter
    from spamguard.proxy.history_schema import HistoryRow
    from spamguard.records import Explanation, Verdict, Vote


JUDGE_ABOUT = """Judge messages. One line for each: label, probability of being unwanted, name.

Exit status: 1 when at least one message is unwanted; else 3 when at least one is unsure; else 0. 2 is an error."""
JUDGE_EXAMPLE = """  spamguard judge message.eml
  spamguard judge --json ~/Maildir/.Junk
  spamguard judge --user anna message.eml
  spamguard judge - < message.eml >/dev/null; test $? -eq 1 && echo unwanted"""

EXIT_WANTED, EXIT_UNWANTED, EXIT_UNSURE = 0, 1, 3
_COLOURS = {EXIT_WANTED: "32", EXIT_UNWANTED: "31", EXIT_UNSURE: "33"}


def add_judge(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "judge", run_judge, JUDGE_ABOUT, JUDGE_EXAMPLE)
    common.add_user(parser)
    common.add_json(parser, common.JSON_LINES_HELP)
    common.add_paths(parser)


def run_judge(options: argparse.Namespace) -> int:
    """Judge and print."""
    seen: set[int] = set()
    paint = common.painter()
    found = common.read_messages(options.paths)
    if not sys.stdout.isatty():  # where the verdicts would break a bar
        found = common.with_progress(found, common.expected_count(options.paths))
    with common.open_for_judging(options) as spam_filter:
        named, read = tee(found)
        for message, verdict in zip(
            named, spam_filter.judge_all((one.raw for one in read), user=options.user), strict=True
        ):
            kind = _exit_status(verdict, spam_filter.unwanted)
            seen.add(kind)
            print(
                _verdict_json(message.name, verdict)
                if options.json
                else _verdict_line(message.name, verdict, paint, _COLOURS[kind])
            )
    if not seen:
        raise SourceError(f"{', '.join(options.paths)}: no message there to judge; check the path")
    return next(kind for kind in (EXIT_UNWANTED, EXIT_UNSURE, EXIT_WANTED) if kind in seen)


def _exit_status(verdict: Verdict, unwanted: frozenset[str]) -> int:
    if verdict.label not in verdict.probabilities:
        return EXIT_UNSURE
    return EXIT_UNWANTED if verdict.label in unwanted else EXIT_WANTED


def _verdict_line(name: str, verdict: Verdict, paint: common.Painter, colour: str) -> str:
    width = max(len("unsure"), *map(len, verdict.probabilities))
    return f"{paint(verdict.label.ljust(width), colour)}  {verdict.probability:.4f}  {name}"


def _verdict_json(name: str, verdict: Verdict) -> str:
    from spamguard.web import api_models

    return common.to_json({"name": name, **api_models.verdict_json(verdict)})


EXPLAIN_ABOUT = """Explain a verdict. The log-odds as a sum, first by expert, then by word, trait and number of the message;
the numbers behind a word are the messages of each class that have it. Who has taught the message itself is told first.

In place of PATH, the ID of a message that passed, as X-Spamguard has it. What was said and done then, and the verdict by what is
known now; its words are told as far as they were among the strongest then. One that another version has read has no now: it is told
why."""
EXPLAIN_EXAMPLE = """  spamguard explain message.eml
  spamguard explain --words 30 message.eml
  spamguard explain --json message.eml
  spamguard explain 0iq5r8jo4c1n2f3g
  spamguard explain --user anna 0iq5r8jo4c1n2f3g"""

_MAX_BAR = 24  # letters of the longest bar
_MAX_VOTES = 20  # in the text: a circular may have those of thousands

SumPart = tuple[float, str, str]
"""A part, what it is of, and a remark."""


def add_explain(commands: common.Commands) -> None:
    """The command's arguments."""
    parser = common.add_command(commands, "explain", run_explain, EXPLAIN_ABOUT, EXPLAIN_EXAMPLE)
    parser.add_argument(
        "--words",
        type=common.count_argument,
        default=10,
        metavar="N",
        help="how many words each way (default: 10)",
    )
    common.add_user(parser)
    common.add_json(parser, common.JSON_LINES_HELP)
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH|ID",
        help=f"{common.PATHS_HELP}; or the id of a message that passed",
    )


def run_explain(options: argparse.Namespace) -> int:
    """Explain every message: first those named by an id."""
    from spamguard.engine.prepare import ExampleReader

    names = [path for path in options.paths if is_id(path) and not Path(path).exists()]
    paths = [path for path in options.paths if path not in names]
    known = history.find_rows(options, names)
    found = common.read_messages(paths)
    told = len(known)
    with common.open_for_judging(options) as spam_filter:
        preparer = ExampleReader(spam_filter.key)
        for row in known:
            _explain_row(spam_filter, row, options)
        for message in found:
            why = spam_filter.explain(message.raw, user=options.user)
            votes = list(spam_filter.ledger.users.votes_on_message(preparer.digest(message.raw)))
            common.print_answer(
                options,
                _explanation_text(message.name, why, votes, options.words),
                _explanation_values(message.name, why, votes, options.words),
            )
            told += 1
    if not told:
        raise SourceError(f"{', '.join(paths)}: no message there to explain; check the path")
    return 0


def _explain_row(spam_filter: Filter, row: HistoryRow, options: argparse.Namespace) -> None:
    """Then, and now. A message that was not scanned has no now; of one that cannot be compared it
    is told why not.
    """
    then = {"name": row.id, "then": history.row_values(row)}
    if not row.was_scanned:
        common.print_answer(options, history.row_text(row, options.words), then)
        return
    from spamguard.proxy.history import example_from_row

    try:
        features = example_from_row(spam_filter, row).features
    except UsageError as error:
        told = common.describe_error(error)
        common.print_answer(
            options,
            f"{history.row_text(row, options.words)}\nnow: cannot be told. {told}\n",
            then | {"no_now": told},
        )
        return
    texts = {word.token: word.text for word in row.words}
    why = spam_filter.explain_features(features, texts, options.user)
    votes = list(spam_filter.ledger.users.votes_on_message(row.digest))
    text = f"{history.row_text(row, options.words)}\n{_explanation_text('now', why, votes, options.words)}"
    common.print_answer(
        options, text, then | _explanation_values(row.id, why, votes, options.words)
    )


def _explanation_values(
    name: str, why: Explanation, votes: Sequence[Vote], words: int
) -> dict[str, object]:
    from spamguard.web import api_models

    taught = [
        {"class": one.label, "user": one.user, "origin": one.origin, "time": rfc3339(one.time)}
        for one in votes
    ]
    return {"name": name, "taught": taught, **api_models.explanation_json(why, words)}


# ---- the report


def _explanation_text(name: str, why: Explanation, votes: Sequence[Vote], words: int) -> str:
    from spamguard.engine.explain_text import describe_flip, describe_odds

    verdict = why.verdict
    return "\n".join(
        (
            name,
            f"{verdict.label}: probability {verdict.probability:.4f} of being unwanted, log-odds {verdict.log_odds:+.3f}",
            describe_flip(why),
            *map(_vote_line, votes[:_MAX_VOTES]),
            *(
                [f"and by {len(votes) - _MAX_VOTES:,} more (--json shows all)"]
                if len(votes) > _MAX_VOTES
                else ()
            ),
            "",
            f"by expert: log-odds of {describe_odds(why)}",
            *_sum_lines([(why.prior, "prior", ""), *_sorted_parts(why.shares)], why.log_odds),
            "",
            f"by feature: log-odds of {describe_odds(why)}",
            *_sum_lines(_feature_parts(why, words), why.log_odds),
            "",
        )
    )


def _vote_line(vote: Vote) -> str:
    """Who says what it is, from where and when."""
    return printable(
        f"taught as {vote.label} by {vote.user or common.SITE}: {vote.origin}, {local_time(vote.time)}"
    )


def _feature_parts(why: Explanation, words: int) -> list[SumPart]:
    from spamguard.engine.explain_text import OTHERS_LABEL, strongest_clues

    shown, other = strongest_clues(why, words)
    return [
        *((clue.part, printable(clue.text), _counts_text(clue.counts)) for clue in shown),
        (other, OTHERS_LABEL, f"{len(why.clues) - len(shown):,} of them"),
        *((part, f"trait: {name}", "") for part, name, _ in _sorted_parts(why.traits)),
        *((part, f"number: {name}", "") for part, name, _ in _sorted_parts(why.numbers)),
        (why.biases, "biases of the experts", ""),
        (why.prior, "prior", ""),
    ]


def _sorted_parts(parts: Mapping[str, float]) -> list[SumPart]:
    return [
        (part, name, "") for name, part in sorted(parts.items(), key=lambda item: -abs(item[1]))
    ]


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.items())


def _sum_lines(rows: Sequence[SumPart], whole: float) -> list[str]:
    """Lines of a sum, each with a bar; what is printed adds up."""
    from spamguard.engine.explain_text import OTHERS_LABEL, STEPS_PER_NAT, round_parts

    steps = round_parts([part for part, _, _ in rows], whole)
    longest = max(
        1, *(abs(step) for step, row in zip(steps, rows, strict=True) if row[1] != OTHERS_LABEL)
    )
    wide = min(40, max(_display_width(name) for _, name, _ in rows))
    lines = [
        _sum_line(step, longest, wide, *row[1:])
        for step, row in zip(steps, rows, strict=True)
        if step
    ]
    return [*lines, f"  {sum(steps) / STEPS_PER_NAT:+9.3f}  sum"]


def _sum_line(step: int, longest: int, wide: int, name: str, remark: str) -> str:
    from spamguard.engine.explain_text import OTHERS_LABEL, STEPS_PER_NAT

    padding = " " * (wide - _display_width(name))
    bar = "" if name == OTHERS_LABEL else _draw_bar(step, longest)
    return f"  {step / STEPS_PER_NAT:+9.3f}  {name}{padding}  {bar:{_MAX_BAR}}  {remark}".rstrip()


def _display_width(text: str) -> int:
    """Columns that a text takes on a terminal; ideographs take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _draw_bar(step: int, longest: int) -> str:
    return ("+" if step > 0 else "-") * -(-abs(step) * _MAX_BAR // longest)


FILTER_ABOUT = """Add the verdict to a message on its way through. It is read from standard input and written to standard output.

The fields X-Spam-Flag (unwanted mail only), X-Spam-Status and X-Spamguard are put on top; those that the message brings
along are taken out, all else stays as it is, byte for byte. A message that cannot be judged goes through with
`X-Spamguard: not-scanned`, and the exit status is 0 all the same. It is 75 only when the message could not be read or written."""
FILTER_EXAMPLE = """  spamguard filter < message.eml

  in .procmailrc:
    :0fw
    | spamguard filter --user "$LOGNAME"
    :0
    * ^X-Spam-Flag: YES
    .Junk/"""

EXIT_TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h


def add_filter(commands: common.Commands) -> None:
    """The command's arguments."""
    common.add_user(
        common.add_command(commands, "filter", run_filter, FILTER_ABOUT, FILTER_EXAMPLE)
    )


def run_filter(options: argparse.Namespace) -> int:
    """Pass one message on, judged if possible."""
    return _pass_message(lambda raw: _add_verdict(raw, options))


def pass_unscanned(reason: str) -> int:
    """Pass one message on without judging it."""
    return _pass_message(lambda raw: _add_not_scanned(raw, reason))


def _pass_message(answer: Callable[[bytes], bytes]) -> int:
    try:
        raw = sys.stdin.buffer.read()
        _write_message(_answer_or_original(raw, answer))
    except BaseException as error:  # noqa: BLE001  whatever it is, mail goes on
        _report_failure("the message could not be passed on", error)
        common.discard_output()
        return EXIT_TEMPFAIL
    return 0


def _answer_or_original(raw: bytes, answer: Callable[[bytes], bytes]) -> bytes:
    try:
        return answer(raw)
    except (
        MemoryLimitError
    ) as error:  # what adds a field to the message would load numpy, which ends us
        _report_failure("the message was not scanned", error)
        return raw
    except BaseException as error:  # noqa: BLE001  whatever it is, mail goes on
        _report_failure("the message was not scanned", error)
        return _add_not_scanned(raw, type(error).__name__)


def _add_verdict(raw: bytes, options: argparse.Namespace) -> bytes:
    with common.open_for_judging(
        options
    ) as spam_filter:  # first, which looks whether there is memory for what is loaded here
        from secrets import token_hex

        from spamguard import keys
        from spamguard.config.options import Policy
        from spamguard.engine import policy
        from spamguard.mail.rewrite import add_fields

        found = spam_filter.scan(raw, words=0, users=(options.user,))
        verdict = found.personal.get(options.user, found.verdict)
        decision = policy.decide(verdict, Policy(), found.threshold)
        key = keys.derive_key(spam_filter.key, b"verdict")
    signed = keys.sign_verdict(key, verdict, decision.action, token_hex(10), found.digest)
    return add_fields(raw, policy.header_fields(verdict, decision, signed), policy.VERDICT_FIELDS)


def _add_not_scanned(raw: bytes, reason: str) -> bytes:
    try:
        from spamguard.engine import policy
        from spamguard.mail.rewrite import add_fields

        return add_fields(raw, policy.not_scanned_fields(reason), policy.VERDICT_FIELDS)
    except BaseException:  # noqa: BLE001  whatever it is, mail goes on
        return raw


def _report_failure(what: str, error: BaseException) -> None:
    with suppress(BaseException):  # telling why is worth less than the mail
        common.say(f"{what}: {common.describe_error(error)}")


def _write_message(message: bytes) -> None:
    sys.stdout.buffer.write(message)
    sys.stdout.buffer.flush()
