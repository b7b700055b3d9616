"""The table of what teaches, as the manual shows it."""

from __future__ import annotations

from spamguard.folders.reconcile import (
    MOVE_LESSONS,
    EvidenceSign,
    MoveSource,
    MoveTarget,
)

SIGNS: dict[EvidenceSign, str] = {
    EvidenceSign.ANSWERED: "answered it (`answered_is_ham: true`)",
    EvidenceSign.FLAGGED: "flagged it (`flagged_is_ham: true`)",
}


def as_markdown() -> str:
    """The table in Markdown."""
    head = ["It was", *(f"now in {into}" for into in MoveTarget)]
    rows = [[before, *(_cell(before, into) for into in MoveTarget)] for before in MoveSource]
    rows += [
        [f"anywhere, and the user {SIGNS[sign]}", *(_sign_cell(into) for into in MoveTarget)]
        for sign in EvidenceSign
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _cell(before: MoveSource, into: MoveTarget) -> str:
    return f"teaches it: {MOVE_LESSONS[before, into]}" if (before, into) in MOVE_LESSONS else "–"


def _sign_cell(into: MoveTarget) -> str:
    return "teaches ham, if nothing else was said" if into is MoveTarget.HAM else "–"
