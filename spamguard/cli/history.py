"""Messages that passed: what the history says about an id of X-Spamguard.

Commands that teach and explain take such an id in place of a file. Must never write to the history.
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


def find_rows(options: argparse.Namespace, ids: Sequence[str]) -> list[HistoryRow]:
    """The history's rows of these ids; UsageError at the first id that it does not have."""
    if not ids:
        return []
    from spamguard.config.options import HistorySettings
    from spamguard.proxy.history import History
    from spamguard.proxy.history_schema import HISTORY_FILE

    path = common.state_directory(options) / HISTORY_FILE
    if not path.exists():
        raise UsageError(
            f"{path}: no history there, so {ids[0]} is not known: "
            "name the state directory of the daemon with --state"
        )
    limits = HistorySettings()  # nothing is appended, so any limits will do
    rows = []
    with History.open(path, limits.size, limits.age) as history:
        for message_id in ids:
            row = history.find(message_id) if is_id(message_id) else None
            if row is None:
                raise UsageError(
                    f"{message_id}: no message with that id in the history: "
                    "it is another filter's, or too old, or was never judged"
                )
            rows.append(row)
    return rows


def row_values(row: HistoryRow) -> dict[str, Any]:
    """A row for JSON, without features."""
    from spamguard.web.models import MessageOutcome, WordPart, outcome_fields, to_json, word_parts

    outcome = to_json(MessageOutcome, MessageOutcome(**outcome_fields(row)))
    return {**outcome, "words": to_json(list[WordPart], word_parts(row.words))}


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
        f'"{row.subject}", {row.size:,} bytes',
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
