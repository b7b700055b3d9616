"""Messages that passed: the command `history`, and what the history says about an id.

`history` lists what the daemon has judged, as the page does. Commands that teach and explain take
an id, as the field X-Spamguard has it, in place of a file. Must never write to the history.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spamguard.cli import arguments, common
from spamguard.errors import UsageError
from spamguard.keys import is_id
from spamguard.log import local_time, printable

if TYPE_CHECKING:
    from spamguard.proxy.history import History
    from spamguard.proxy.history_schema import HistoryRow
    from spamguard.proxy.history_search import HistoryFilter

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
    from spamguard.cli.undo import parse_since
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


def _find_rows(history: History, conditions: HistoryFilter, limit: int) -> Iterator[HistoryRow]:
    """At most so many rows, newest first."""
    while limit > 0:
        page = history.search.find_page(conditions, min(limit, _PAGE_ROWS))
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


def _open_history(options: argparse.Namespace, consequence: str) -> History:
    from spamguard.config.options import HistorySettings
    from spamguard.proxy.history import History
    from spamguard.proxy.history_schema import HISTORY_FILE

    path = common.state_directory(options) / HISTORY_FILE
    if not path.exists():
        raise UsageError(
            f"{path}: no history there, so {consequence}: "
            "name the state directory of the daemon with --state"
        )
    limits = HistorySettings()  # nothing is appended, so any limits will do
    return History.open(path, limits.size, limits.age)


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
