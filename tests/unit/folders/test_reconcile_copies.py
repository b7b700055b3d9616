"""Copies of one message in several folders: the newest word counts, and doubt waits."""

from __future__ import annotations

from itertools import permutations

import pytest

from spamguard.folders.mailboxes import base_name_key
from spamguard.folders.reconcile import Arrival, ReconcileRules, Reconciliation, Sighting, reconcile
from tests.unit.folders.observed import FILING, FOLDERS, ROLES, Mail, Mailbox, Plain, signed, stem

DIGEST = b"d" * 16
INBOX, ARCHIVE, JUNK, OLD, NEWS, UNDECIDED, TRASH, PROJECTS = FOLDERS


@pytest.mark.parametrize("same_name", [False, True])
def test_of_two_classes_the_newest_entry_wins(same_name: bool) -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.scan()
    for folder, taught in ((JUNK, "spam"), (ARCHIVE, "ham")):
        box.put(folder, Mail(DIGEST), name if same_name else "")
        box.scan()
        assert box.votes == {DIGEST: taught}
    assert len(box.lessons) == 2


def test_two_classes_in_one_scan_wait_until_one_of_them_goes() -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.put(JUNK, Mail(DIGEST))
    box.scan()
    box.scan()
    assert box.votes == {}
    del box.files[INBOX, name]
    box.scan(JUNK)
    assert box.votes == {}
    box.scan(INBOX)
    assert box.votes == {DIGEST: "spam"}


def test_two_classes_that_waited_give_way_to_a_newer_entry() -> None:
    box = Mailbox()
    box.put(INBOX, Mail(DIGEST))
    name = box.put(JUNK, Mail(DIGEST))
    box.scan()
    box.rename(JUNK, name, NEWS)
    box.scan()
    assert box.votes == {DIGEST: "newsletters"}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "taught"),
    [(INBOX, JUNK, "spam"), (JUNK, INBOX, "ham"), (INBOX, ARCHIVE, "ham")],
)
def test_a_move_in_the_middle_of_a_scan_is_learnt_by_the_next(
    known: bool, source: str, target: str, taught: str
) -> None:
    """The scan finds the message in both folders, or in the first only. Nothing tells in which of
    two folders of one class a new message was first.
    """
    for order in permutations((source, target)):
        box = Mailbox()
        name = box.put(source, Mail(DIGEST))
        if known:
            box.scan()
        listings = {order[0]: box.listing(order[0])}
        box.put(target, box.files[source, name])
        listings[order[1]] = box.listing(order[1])
        box.look(listings)
        del box.files[source, name]
        box.scan()
        in_doubt = target == ARCHIVE and order[0] == source and not known
        assert box.votes == ({} if in_doubt else {DIGEST: taught})


def test_of_two_classes_that_waited_the_one_that_went_is_where_a_newer_entry_comes_from() -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.put(JUNK, Mail(DIGEST))
    box.scan()
    box.put(OLD, box.files.pop((INBOX, name)))
    box.scan()
    assert box.votes == {DIGEST: "spam"}


@pytest.mark.parametrize(
    ("scans", "taught"),
    [
        ([(INBOX, JUNK), (JUNK,)], "spam"),  # two that waited, and another copy in one of them
        ([(PROJECTS,), (INBOX, JUNK)], None),  # they wait even if only one of them would teach
        ([(INBOX, PROJECTS), (ARCHIVE,)], "ham"),  # of what was sent and what came, the latter
    ],
)
def test_copies_that_come_together_and_one_after_the_other(
    scans: list[tuple[str, ...]], taught: str | None
) -> None:
    box = Mailbox()
    for folders in scans:
        for folder in folders:
            box.put(folder, Mail(DIGEST))
        box.scan()
    assert box.votes.get(DIGEST) == taught


def test_nothing_is_left_of_a_way_but_its_end() -> None:
    memory = Plain()
    box = Mailbox(memory=memory)
    box.put(INBOX, Mail(DIGEST))
    for target in (JUNK, TRASH, INBOX):
        box.scan()
        _, mail = box.files.popitem()
        box.scan()
        box.put(target, mail)
    box.scan()
    assert [copy[:3] for copy in memory.all.values()] == [
        (INBOX, base_name_key(stem(next(name for _, name in box.files))), DIGEST)
    ]


@pytest.mark.parametrize("together", [True, False])
def test_a_move_in_two_looks_comes_from_where_the_message_was_seen_last(together: bool) -> None:
    """And not from a copy in INBOX that went before."""
    box = Mailbox()
    names = [box.put(INBOX, Mail(DIGEST)) for _ in range(2)]
    box.scan()
    del box.files[INBOX, names[0]]
    if not together:
        box.scan()
    box.put(TRASH, box.files.pop((INBOX, names[1])))
    box.scan()
    _, mail = box.files.popitem()
    box.scan()
    box.put(ARCHIVE, mail)
    box.scan()
    assert box.votes == {}


def test_what_went_before_has_not_gone_again() -> None:
    missed = Sighting(INBOX, 1, DIGEST, seen=1, gone=5)
    assert reconcile([missed], [], {(INBOX, 1)}, FILING, 9) == Reconciliation([], [], [])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Mail(DIGEST, signed("ham", "id1")), Mail(DIGEST, signed("ham", "id2"))),
        (Mail(DIGEST, received=1), Mail(DIGEST, received=2)),
    ],
)
def test_a_second_delivery_of_the_same_message_says_nothing(first: Mail, second: Mail) -> None:
    """The id in our signature tells, which is given once for each delivery, or else the server
    that received it. Otherwise anybody who sends a message twice has it taught as ham as soon as
    the first one is moved to Junk.
    """
    box = Mailbox()
    name = box.put(INBOX, first)
    box.scan()
    box.rename(INBOX, name, JUNK)
    box.scan()
    name = box.put(INBOX, second)
    box.put(JUNK, Mail(DIGEST, signed("spam", "id3")))
    box.scan()
    assert [lesson.label for lesson in box.lessons] == ["spam"]
    box.rename(INBOX, name, ARCHIVE)
    box.scan()
    assert box.votes == {DIGEST: "ham"}


def test_what_was_remembered_without_who_received_it_is_still_the_same_when_it_is_moved() -> None:
    """Earlier versions remembered it so."""
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.scan()
    for target, label in ((JUNK, "spam"), (INBOX, "ham")):
        ((folder, _),) = box.files
        box.files[folder, name] = Mail(DIGEST, received=1)
        box.rename(folder, name, target)
        box.scan()
        assert box.votes == {DIGEST: label}


def test_two_deliveries_of_one_message_that_were_moved_apart_at_once_teach_nothing() -> None:
    box = Mailbox()
    one, other = (box.put(INBOX, Mail(DIGEST, signed("ham", name))) for name in ("id1", "id2"))
    box.scan()
    box.rename(INBOX, one, JUNK)
    box.rename(INBOX, other, ARCHIVE)
    assert box.scan().lessons == []


def test_the_same_unsigned_message_twice_in_a_folder() -> None:
    box = Mailbox()
    names = [box.put(INBOX, Mail(DIGEST)) for _ in range(2)]
    box.scan()
    names.append(box.put(INBOX, Mail(DIGEST)))
    box.scan()
    assert box.votes == {}
    for name in names:
        box.rename(INBOX, name, JUNK)
        box.scan()
        assert box.votes == {DIGEST: "spam"}


def test_what_cannot_be_read_is_known_and_says_nothing() -> None:
    box = Mailbox()
    names = [box.put(folder, Mail(b"")) for folder in (INBOX, JUNK)]
    assert len(box.scan().updated) == 2
    assert box.scan() == Reconciliation([], [], [])
    box.rename(INBOX, names[0], JUNK)
    outcome = box.scan()
    assert (outcome.lessons, len(outcome.updated), len(outcome.removed)) == ([], 1, 1)


def test_what_lay_in_two_classes_at_the_first_scan_does_not_wait() -> None:
    box = Mailbox()
    name = box.put(INBOX, Mail(DIGEST))
    box.put(JUNK, Mail(DIGEST))
    box.look({folder: box.listing(folder) for folder in FOLDERS}, first=True)
    del box.files[INBOX, name]
    box.scan()
    assert box.votes == {}


def test_ten_thousand_copies_of_a_message_are_not_each_compared_with_each_other():
    """As a broken program makes them: comparing took minutes, in which no other mailbox was
    scanned.
    """
    asked: list[str] = []
    rules = ReconcileRules(lambda folder: (asked.append(folder), ROLES[folder])[1])
    copies = [Sighting(".Junk", name, b"one", seen=1) for name in range(10_000)]
    arrivals = [Arrival("", name, b"one") for name in range(10_000)]
    outcome = reconcile(copies, arrivals, {copy.key for copy in copies}, rules, 2)
    assert [(lesson.label, lesson.why) for lesson in outcome.lessons] == [
        ("ham", "moved from another class")
    ]
    assert (len(outcome.updated), len(outcome.removed)) == (10_000, 10_000)
    assert len(asked) < 20 * 10_000
