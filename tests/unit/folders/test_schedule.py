"""Who is looked at when: as if all mailboxes were gone through each time, which is not done."""

from __future__ import annotations

import random
from math import inf

import pytest

from spamguard.folders import schedule as module
from spamguard.folders.contract import Mailbox, Place
from spamguard.folders.schedule import Box, Schedule


def boxes(schedule: Schedule) -> list[Box]:
    return list(schedule.boxes.values())


def tended(schedule: Schedule, box: Box, now: float, chance: random.Random) -> None:
    """As the loop does it: a step, of which there may be more."""
    box.tended = now
    more = chance.random() < 0.3
    box.work = (None for _ in ()) if more else None  # type: ignore[assignment]
    box.due, box.folders_due, box.told = {}, inf, box.told and more
    if box.next_rescan <= now:
        box.next_rescan = now + chance.randrange(1, 40)
    schedule.plan(box)


@pytest.mark.parametrize("seed", range(20))
def test_all_that_are_due_and_no_others(seed, monkeypatch):
    monkeypatch.setattr(module, "TURN_SECONDS", inf)
    chance, schedule, now = random.Random(seed), Schedule(), 0.0
    for number in range(400):
        now += chance.choice((0, 0, 1, 5))
        some = chance.choice(boxes(schedule)) if schedule.boxes else None
        what = chance.random()
        if some is None or what < 0.1:
            schedule.add(Mailbox("anna", f"/{number}"), now + chance.randrange(3))
        elif what < 0.2:
            schedule.remove(some.mailbox)
        elif what < 0.6:
            some.soon(Place(some.mailbox, chance.choice(("", ".Junk"))), now + chance.randrange(9))
            schedule.tell(some)
        elif what < 0.7:
            some.next_rescan = now
            schedule.plan(some)
        due = [box for box in boxes(schedule) if box.next <= now]
        assert schedule.next() <= min((box.next for box in boxes(schedule)), default=inf)
        turn = []
        for box in schedule.in_turn(now):
            turn.append((not box.told, 0.0 if box.told else box.tended))
            due.remove(box)
            tended(schedule, box, now, chance)
        assert not due
        assert turn == sorted(turn)


def test_a_busy_mailbox_is_not_planned_more_often_than_others():
    schedule = Schedule()
    schedule.add(Mailbox("anna", "/anna"), 0.0)
    (box,) = boxes(schedule)
    for now in range(1000):
        for _ in schedule.in_turn(now):
            box.due, box.next_rescan = {}, 86_400.0 + now % 7
            schedule.plan(box)
        box.soon(Place(box.mailbox, ""), now + 0.5)
        schedule.tell(box)
    assert len(box.planned) <= 9


def test_a_turn_that_is_over_leaves_the_others_due_and_who_was_just_told_goes_first(monkeypatch):
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    schedule = Schedule()
    for number in range(5):
        schedule.add(Mailbox("anna", str(number)), 1.0)
    first, second, *_ = boxes(schedule)
    schedule.tell(first)
    schedule.tell(second)
    looked = []
    for now in (1.0, 2.0, 3.0):
        for box in schedule.in_turn(now):
            looked.append((now, box.mailbox.path))
            box.told = False
            box.next_rescan = inf
            schedule.plan(box)
    assert looked == [(1.0, "0"), (1.0, "1"), (1.0, "2"), (2.0, "3"), (3.0, "4")]
    assert schedule.next() == inf
