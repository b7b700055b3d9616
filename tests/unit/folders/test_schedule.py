"""Which mailbox comes when: as if all mailboxes were gone through each time, which is not done."""

from __future__ import annotations

import random
from math import inf

import pytest

from spamguard.folders import watcher
from spamguard.folders.mailbox_scan import MailboxState
from spamguard.folders.mailboxes import Folder, Mailbox
from spamguard.folders.watcher import Schedule


def boxes(schedule: Schedule) -> list[MailboxState]:
    return list(schedule.mailboxes.values())


def tended(schedule: Schedule, box: MailboxState, now: float, chance: random.Random) -> None:
    """A step, as the loop does it; there may be more of them."""
    box.tended = now
    more = chance.random() < 0.3
    box.work = (None for _ in ()) if more else None
    box.due, box.folders_due, box.has_changes = {}, inf, box.has_changes and more
    if box.next_rescan <= now:
        box.next_rescan = now + chance.randrange(1, 40)
    schedule.plan(box)


@pytest.mark.parametrize("seed", range(20))
def test_all_that_are_due_and_no_others(seed, monkeypatch):
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", inf)
    chance, schedule, now = random.Random(seed), Schedule(), 0.0
    for number in range(400):
        now += chance.choice((0, 0, 1, 5))
        some = chance.choice(boxes(schedule)) if schedule.mailboxes else None
        what = chance.random()
        if some is None or what < 0.1:
            schedule.add(Mailbox("anna", f"/{number}"), now + chance.randrange(3))
        elif what < 0.2:
            schedule.remove(some.mailbox)
        elif what < 0.6:
            some.schedule_folder(
                Folder(some.mailbox, chance.choice(("", ".Junk"))), now + chance.randrange(9)
            )
            schedule.note_change(some)
        elif what < 0.7:
            some.next_rescan = now
            schedule.plan(some)
        due = [box for box in boxes(schedule) if box.next_due <= now]
        assert schedule.next_due() <= min((box.next_due for box in boxes(schedule)), default=inf)
        turn = []
        for box in schedule.take_due(now):
            turn.append((not box.has_changes, 0.0 if box.has_changes else box.tended))
            due.remove(box)
            tended(schedule, box, now, chance)
        assert not due
        assert turn == sorted(turn)


def test_a_turn_that_is_over_leaves_the_others_due_and_who_was_just_told_goes_first(monkeypatch):
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", 0.0)
    schedule = Schedule()
    for number in range(5):
        schedule.add(Mailbox("anna", str(number)), 1.0)
    first, second, *_ = boxes(schedule)
    schedule.note_change(first)
    schedule.note_change(second)
    looked = []
    for now in (1.0, 2.0, 3.0):
        for box in schedule.take_due(now):
            looked.append((now, box.mailbox.path))
            box.has_changes = False
            box.next_rescan = inf
            schedule.plan(box)
    assert looked == [(1.0, "0"), (1.0, "1"), (1.0, "2"), (2.0, "3"), (3.0, "4")]
    assert schedule.next_due() == inf
