"""Messages that show evidence."""

from __future__ import annotations

from pathlib import Path

from spamguard.folders.maildir import Changes
from tests.unit.folders.watched import Watched

DAY = 86_400.0


def flag(message: Path, flags: str) -> Path:
    """Set flags as Dovecot does."""
    return message.rename(
        message.parents[1] / "cur" / f"{message.name.partition(':')[0]}:2,{flags}"
    )


def origins(one: Watched) -> dict[str, str]:
    return {str(vote.origin): str(vote.label) for vote in one.filter.ledger.all_votes()}


def look(one: Watched) -> None:
    """Scan everything, as the watcher does now and then."""
    one.watcher.take_changes(Changes(everything=True))
    one.rest()
