"""Messages that passed, named by the id in X-Spamguard: what the history has of them.

Commands that teach or explain take such ids in place of files. Must never write to the history.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spamguard.cli import common
from spamguard.errors import UsageError
from spamguard.keys import is_id
from spamguard.log import local_time

if TYPE_CHECKING:
    from spamguard.proxy.history_schema import HistoryRow


def add_paths_or_ids(parser: argparse.ArgumentParser) -> None:
    """The arguments PATH… and the option --id; `names_messages` looks at them."""
    parser.add_argument(
        "--id",
        action="append",
        dest="ids",
        default=[],
        metavar="ID",
        help="a message that passed, by the id in X-Spamguard",
    )
    common.add_paths(parser, needed=False)


def check_paths_or_ids(options: argparse.Namespace) -> None:
    """Wrong usage unless there are PATHs, or ids instead."""
    if not options.paths and not options.ids:
        options.wrong_usage("the following arguments are required: PATH")
    if options.paths and options.ids:
        options.wrong_usage("argument --id: not allowed with PATH")


def find_rows(options: argparse.Namespace, names: Sequence[str]) -> list[HistoryRow]:
    """What the history has of these ids; UsageError at the first that it does not have."""
    if not names:
        return []
    from spamguard.config.options import HistorySettings as Limits
    from spamguard.proxy.history import History
    from spamguard.proxy.history_schema import HISTORY_FILE

    path = common.state_directory(options) / HISTORY_FILE
    if not path.exists():
        raise UsageError(
            f"{path}: no history there, so {names[0]} is not known: name the state directory of the daemon with --state"
        )
    limits = Limits()  # nothing is appended, so they change nothing
    with History.open(path, limits.size, limits.age) as history:
        return [_require_row(history.find(name) if is_id(name) else None, name) for name in names]


def _require_row(row: HistoryRow | None, name: str) -> HistoryRow:
    if row is None:
        raise UsageError(
            f"{name}: no message with that id in the history: it is another filter's, or too old, or was never judged"
        )
    return row


# ---- what was said then


def row_values(row: HistoryRow) -> dict[str, Any]:
    """A row for JSON, without features."""
    from spamguard.web import api_models

    return {**api_models.outcome_json(row), "words": api_models.words_json(row.words)}


def row_text(row: HistoryRow, words: int) -> str:
    """A row for people: who, what was said and done, and the strongest words each way."""
    return "\n".join(
        (
            f"{row.id}, {local_time(row.time)}, from {sender_text(row.author, row.sender)} at {row.client or 'an unknown client'}"
            f" to {_recipients_text(row)}",
            f'"{row.subject}", {row.size:,} bytes',
            *_verdict_lines(row),
            f"{row.action or 'handed on'}; answered: {row.reply}",
            *(f"  {word.part:+9.3f}  {word.text}" for word in _strongest_words(row, words)),
            "",
        )
    )


def sender_text(author: str, sender: str) -> str:
    """Who the header's From says has written it (`mail.author`), and the envelope's sender where
    that is another.
    """
    from spamguard.mail.headers import is_sender, split_author

    if author and not is_sender(author, sender):
        return f"{author}, envelope sender <{sender}>"
    return author if split_author(author)[0] else f"<{sender}>"


def _verdict_lines(row: HistoryRow) -> Sequence[str]:
    if not row.was_scanned:
        return (f"then: {row.label}",)
    told = f"then: {row.label}: probability {row.probability:.4f} of being unwanted, log-odds {row.log_odds:+.3f}"
    own = ", ".join(f"{label} for {user}" for user, label in row.personal.items())
    return (told, f"by what they have said themselves: {own}") if own else (told,)


def _strongest_words(row: HistoryRow, words: int) -> list[Any]:
    up = [word for word in row.words if word.part > 0][:words]
    down = [word for word in row.words if word.part < 0][:words]
    return sorted((*up, *down), key=lambda word: -abs(word.part))


def _recipients_text(row: HistoryRow) -> str:
    first, *others = row.recipients or ("nobody",)
    return f"<{first}>" + (f" and {len(others)} more" if others else "")
