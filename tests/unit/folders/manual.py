"""What teaches, as the manual shows it."""

from __future__ import annotations

from spamguard.folders.teaches import EVIDENCE, TEACHES, Before, Into, Sign

SIGNS: dict[Sign, str] = {
    Sign.ANSWERED: "answered it (`ham_evidence: {answered: true}`)",
    Sign.FLAGGED: "flagged it (`flagged: true`)",
    Sign.READ: "read it and left it there for so long (`read_after: 7d`)",
    Sign.KEYWORD: "gave it a keyword such as `$Junk` (`spam_evidence: [$Junk]`)",
}


def as_markdown() -> str:
    """The table of what teaches, for the manual."""
    head = ["It was", *(f"now in {into}" for into in Into)]
    rows = [[before, *(_cell(before, into) for into in Into)] for before in Before]
    rows += [[f"anywhere, and the user {SIGNS[sign]}", *(_sign_cell(sign, into) for into in Into)] for sign in Sign]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _cell(before: Before, into: Into) -> str:
    return f"teaches it: {TEACHES[before, into]}" if (before, into) in TEACHES else "–"


def _sign_cell(sign: Sign, into: Into) -> str:
    return f"teaches {EVIDENCE[sign, into]}, if nothing else was said" if (sign, into) in EVIDENCE else "–"
