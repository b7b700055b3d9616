"""What users say by moving mail comes out as they said it, in whatever order and however seldom
folders are scanned.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from spamguard.config.options import Action
from spamguard.folders.mailboxes import base_name_key
from spamguard.folders.reconcile import (
    MOVE_LESSONS,
    EvidenceSign,
    FolderLesson,
    MoveSource,
    MoveTarget,
    Reconciliation,
)
from spamguard.folders.scan import compare_listing
from tests.unit.folders.manual import SIGNS, as_markdown
from tests.unit.folders.observed import (
    FILING,
    FOLDERS,
    NOT_FILING,
    Mail,
    Mailbox,
    keys_of,
    signed,
    stem,
)

DIGEST = b"d" * 16
MAIL = Mail(DIGEST)
INBOX, ARCHIVE, JUNK, OLD, NEWS, UNDECIDED, TRASH, PROJECTS = FOLDERS


def journey(*folders: str, mail: Mail = MAIL, filing: bool = False) -> str | None:
    """What is learnt when a message is seen in these folders, one after the other."""
    box = Mailbox(FILING if filing else NOT_FILING)
    name = box.put(folders[0], mail)
    box.scan()
    for before, after in pairwise(folders):
        name = box.rename(before, name, after)
        box.scan()
    return box.votes.get(DIGEST)


# The table


@pytest.mark.parametrize(
    ("folders", "taught"),
    [
        ((INBOX, JUNK), "spam"),
        ((JUNK, INBOX), "ham"),
        ((JUNK, ARCHIVE), "ham"),
        ((INBOX, NEWS), "newsletters"),
        ((NEWS, INBOX), "ham"),
        ((JUNK, NEWS), "newsletters"),
        ((INBOX, ARCHIVE), "ham"),
        ((ARCHIVE, INBOX), "ham"),
        ((UNDECIDED, JUNK), "spam"),
        ((PROJECTS, JUNK), "spam"),
        ((TRASH, JUNK), "spam"),
        ((PROJECTS, NEWS), "newsletters"),
        ((INBOX, TRASH, JUNK), "spam"),
        ((JUNK, TRASH, JUNK), "spam"),
        ((JUNK, TRASH, INBOX), "ham"),
        ((JUNK, TRASH, PROJECTS, ARCHIVE), "ham"),
        ((INBOX, JUNK, INBOX), "ham"),
        ((INBOX, JUNK, TRASH), "spam"),
        ((INBOX, JUNK, INBOX, PROJECTS, JUNK, PROJECTS), "spam"),
        ((INBOX, TRASH), None),
        ((JUNK, TRASH), None),
        ((JUNK, UNDECIDED), None),
        ((JUNK, PROJECTS), None),
        ((INBOX, TRASH, INBOX), None),
        ((INBOX, TRASH, ARCHIVE), None),
        ((TRASH, INBOX), None),
        ((PROJECTS, INBOX), None),
        ((UNDECIDED, ARCHIVE), None),
        ((JUNK, OLD), None),
    ],
)
def test_a_way_through_folders_teaches(folders: tuple[str, ...], taught: str | None) -> None:
    assert journey(*folders) == taught


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_first_sight_teaches_nothing(folder: str) -> None:
    assert journey(folder) is None


@pytest.mark.parametrize(
    ("said", "action", "folder", "taught"),
    [
        ("spam", Action.TAG, INBOX, "ham"),
        ("spam", Action.TAG, ARCHIVE, "ham"),
        ("spam", Action.TAG, JUNK, None),
        ("spam", Action.TAG, TRASH, None),
        ("spam", Action.QUARANTINE, INBOX, None),  # it was released from there
        ("ham", Action.TAG, INBOX, None),
        ("unsure", Action.TAG, INBOX, None),
        ("ham", Action.TAG, JUNK, "spam"),
        ("unsure", Action.TAG, JUNK, "spam"),
        ("ham", Action.TAG, NEWS, None),
    ],
)
def test_a_first_sight_that_contradicts_our_action_teaches_if_we_file(
    said: str, action: Action, folder: str, taught: str | None
) -> None:
    mail = Mail(DIGEST, signed(said, "id1", action))
    assert journey(folder, mail=mail, filing=True) == taught
    assert journey(folder, mail=mail, filing=False) is None


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


def test_a_lesson_names_digest_class_folder_and_reason() -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.scan()
    box.rename(INBOX, name, JUNK)
    (lesson,) = box.scan().lessons
    assert lesson == FolderLesson(
        DIGEST,
        "spam",
        JUNK,
        lesson.name,
        MOVE_LESSONS[MoveSource.ANOTHER_CLASS, MoveTarget.UNWANTED],
    )


# Ways to move: the steps of each, one after the other

Step = Callable[[], object]


def by_rename(box: Mailbox, name: str, source: str, target: str) -> list[Step]:
    return [lambda: box.rename(source, name, target)]


def by_rename_with_flags(box: Mailbox, name: str, source: str, target: str) -> list[Step]:
    return [lambda: box.rename(source, name, target, stem(name) + ",S=12:2,S")]


def by_copy_and_expunge(
    box: Mailbox, name: str, source: str, target: str, new_name: str = ""
) -> list[Step]:
    mail = box.files[source, name]
    return [lambda: box.put(target, mail, new_name), lambda: box.files.pop((source, name))]


def by_copy_of_the_same_name(box: Mailbox, name: str, source: str, target: str) -> list[Step]:
    return by_copy_and_expunge(box, name, source, target, name)


def by_append_after_removal(box: Mailbox, name: str, source: str, target: str) -> list[Step]:
    return by_copy_and_expunge(box, name, source, target)[::-1]


WAYS = (
    by_rename,
    by_rename_with_flags,
    by_copy_and_expunge,
    by_copy_of_the_same_name,
    by_append_after_removal,
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scans", [(INBOX, JUNK), (JUNK, INBOX), (JUNK, JUNK, INBOX), None])
@pytest.mark.parametrize("between", [(), (INBOX,), (JUNK,), (INBOX, JUNK)])
def test_every_way_to_move_comes_out_the_same(
    way: Callable[[Mailbox, str, str, str], list[Step]],
    scans: tuple[str, ...] | None,
    between: tuple[str, ...],
) -> None:
    """scans: folders scanned one by one afterwards; None: all at once. between: while the move is
    half done.
    """
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.scan()
    for expected, source, target in (("spam", INBOX, JUNK), ("ham", JUNK, INBOX)):
        for step in way(box, name, source, target):
            step()
            for folder in between:
                box.scan(folder)
        for group in [(folder,) for folder in scans] if scans else [FOLDERS]:
            box.scan(*group)
        assert box.votes == {DIGEST: expected}
        name = next(name for _, name in box.files)
    box.scan()
    assert [lesson.label for lesson in box.lessons] == ["spam", "ham"]


def test_what_changes_only_flags_or_sizes_is_nothing_new() -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.scan()
    for changed in (":2,S", ":2,RS", "!2,F", ";2,"):
        name = box.rename(INBOX, name, INBOX, stem(name) + changed)
        assert box.scan() == Reconciliation([], [], [])


def test_a_new_name_in_the_same_folder_teaches_nothing() -> None:
    box = Mailbox()
    name = box.put(JUNK, Mail(DIGEST))
    box.put(PROJECTS, Mail(DIGEST))
    box.scan()
    box.rename(JUNK, name, JUNK, name.replace(".host", ".host,U=7"))
    assert box.scan().lessons == []


def test_what_is_removed_keeps_its_lesson_and_may_come_back() -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.scan()
    mail = box.files.pop((INBOX, name))
    box.scan()
    assert box.votes == {}
    box.put(JUNK, mail)
    box.scan()
    assert box.votes == {DIGEST: "spam"}
    box.files.clear()
    assert box.scan().lessons == []


def test_a_listing_is_compared_with_what_was_there() -> None:
    files = ["1.a:2,S", ".hidden", "2.b,S=5", "dovecot-uidlist", "2.b:2,F", "3.c"]
    known = np.array(sorted(base_name_key(base) for base in ("1.a", "0.z")), np.int64)
    new, gone = compare_listing(known, keys_of(files))
    assert ([files[index] for index in new], gone) == (["2.b,S=5", "3.c"], [base_name_key("0.z")])
    assert compare_listing(np.empty(0, np.int64), keys_of([])) == ([], [])
