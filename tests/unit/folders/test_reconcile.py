"""What users say by moving mail comes out as they said it, in whatever order and however seldom
folders are scanned.
"""

from __future__ import annotations

from spamguard.folders.reconcile import (
    MOVE_LESSONS,
    EvidenceSign,
    MoveSource,
    MoveTarget,
)
from tests.unit.folders.manual import SIGNS, as_markdown
from tests.unit.folders.observed import (
    FOLDERS,
)

INBOX, ARCHIVE, JUNK, OLD, NEWS, UNDECIDED, TRASH, PROJECTS = FOLDERS


# The table


def test_the_table_has_no_row_for_what_must_not_teach() -> None:
    assert {into for _, into in MOVE_LESSONS} == {
        MoveTarget.HAM,
        MoveTarget.UNWANTED,
        MoveTarget.OTHER_CLASS,
    }
    assert {before for before, _ in MOVE_LESSONS}.isdisjoint(
        {MoveSource.SAME_FOLDER, MoveSource.UNKNOWN}
    )


def test_the_manual_shows_the_whole_table() -> None:
    lines = as_markdown().splitlines()
    assert [
        line.split(" | ")[0].removeprefix("| ") for line in lines[2 : 2 + len(MoveSource)]
    ] == list(MoveSource)
    evidence = lines[2 + len(MoveSource) :]
    assert [text in line for text, line in zip(SIGNS.values(), evidence, strict=True)] == [
        True
    ] * len(EvidenceSign)
    assert [line.count("teaches ham") for line in evidence] == [1, 1]
    assert {line.count("|") for line in lines} == {len(MoveTarget) + 2}
    assert as_markdown().count("teaches it") == len(MOVE_LESSONS)
    row = next(line for line in lines if line.startswith(f"| {MoveSource.SAME_CLASS} "))
    assert row.split(" | ")[1].startswith("teaches it")
    assert row.split(" | ")[2] == "–"


# Ways to move: the steps of each, one after the other
