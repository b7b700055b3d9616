"""The table of what a move teaches."""

from __future__ import annotations

from pathlib import Path

from spamguard.folders.reconcile import MOVE_LESSONS, EvidenceSign, MoveSource, MoveTarget

MANUAL = Path(__file__).parents[3] / "config" / "README.md"


def test_the_table_has_no_row_for_what_must_not_teach() -> None:
    assert MoveTarget.NO_CLASS not in {into for _, into in MOVE_LESSONS}
    assert {before for before, _ in MOVE_LESSONS}.isdisjoint(
        {MoveSource.SAME_FOLDER, MoveSource.UNKNOWN}
    )


def test_the_manual_shows_the_whole_table() -> None:
    rows = [["It was", *(f"now in {into}" for into in MoveTarget)], ["---"] * 5]
    for before in MoveSource:
        whys = (MOVE_LESSONS.get((before, into)) for into in MoveTarget)
        rows.append([before, *(f"teaches it: {why}" if why else "–" for why in whys)])
    for sign in EvidenceSign:
        shown = f"anywhere, and the user {sign} it (`{sign}_is_ham: true`)"
        rows.append([shown, "teaches ham, if nothing else was said", "–", "–", "–"])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    assert f"<!-- what teaches -->\n{table}\n" in MANUAL.read_text()
