"""Messages that are named by an id, since they have gone on: how commands are told, and tell, of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spamguard.cli import rim, usage
from spamguard.errors import UsageError
from spamguard.ids import is_id
from spamguard.times import moment

if TYPE_CHECKING:
    from spamguard.history import Row


def add_paths_or_ids(parser: argparse.ArgumentParser) -> None:
    """The arguments PATH… and the option --id; `names_messages` looks at them."""
    parser.add_argument(
        "--id", action="append", dest="ids", default=[], metavar="ID", help="a message that passed, by the id in X-Spamguard"
    )
    usage.add_paths(parser, needed=False)


def names_messages(options: argparse.Namespace) -> None:
    """Wrong usage unless there are PATHs, or ids instead."""
    if not options.paths and not options.ids:
        options.wrong_usage("the following arguments are required: PATH")
    if options.paths and options.ids:
        options.wrong_usage("argument --id: not allowed with PATH")


def rows(options: argparse.Namespace, names: Sequence[str]) -> list[Row]:
    """What the history has of these ids; UsageError at the first that it does not have."""
    if not names:
        return []
    from spamguard.history import FILE, History
    from spamguard.settings import History as Limits

    path = rim.state_directory(options) / FILE
    if not path.exists():
        raise UsageError(f"{path}: no history there, so {names[0]} is not known: name the state directory of the daemon with --state")
    limits = Limits()  # nothing is appended, so they change nothing
    with History.open(path, limits.size, limits.days) as history:
        return [_found(history.find(name) if is_id(name) else None, name) for name in names]


def _found(row: Row | None, name: str) -> Row:
    if row is None:
        raise UsageError(f"{name}: no message with that id in the history: it is another filter's, or too old, or was never judged")
    return row


# ---- what was said then


def as_values(row: Row) -> dict[str, Any]:
    """A row for JSON, without features."""
    from spamguard.web.api import shapes

    return {**shapes.passed(row), "words": shapes.told_words(row.words)}


def as_text(row: Row, words: int) -> str:
    """A row for people: who, what was said and done, and the strongest words each way."""
    return "\n".join(
        (
            f"{row.id}, {moment(row.time)}, from {whence(row.author, row.sender)} at {row.client or 'an unknown client'}"
            f" to {_recipients(row)}",
            f'"{row.subject}", {row.size:,} bytes',
            *_verdict(row),
            f"{row.action or 'handed on'}; answered: {row.reply}",
            *(f"  {word.part:+9.3f}  {word.text}" for word in _strongest(row, words)),
            "",
        )
    )


def whence(author: str, sender: str) -> str:
    """Who the header's From says has written it (`mail.author`), and the envelope's sender where that is another."""
    from spamguard.mail.author import is_sender, parts

    if author and not is_sender(author, sender):
        return f"{author}, envelope sender <{sender}>"
    return author if parts(author)[0] else f"<{sender}>"


def _verdict(row: Row) -> Sequence[str]:
    if not row.was_scanned:
        return (f"then: {row.label}",)
    told = f"then: {row.label}: probability {row.probability:.4f} of being unwanted, log-odds {row.log_odds:+.3f}"
    own = ", ".join(f"{label} for {user}" for user, label in row.personal.items())
    return (told, f"by what they have said themselves: {own}") if own else (told,)


def _strongest(row: Row, words: int) -> list[Any]:
    up = [word for word in row.words if word.part > 0][:words]
    down = [word for word in row.words if word.part < 0][:words]
    return sorted((*up, *down), key=lambda word: -abs(word.part))


def _recipients(row: Row) -> str:
    first, *others = row.recipients or ("nobody",)
    return f"<{first}>" + (f" and {len(others)} more" if others else "")
