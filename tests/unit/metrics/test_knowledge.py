"""What is seen of ledger and tables, and how lessons are counted."""

from __future__ import annotations

import time

import pytest

from spamguard import Filter
from spamguard.errors import SpamguardError
from spamguard.metrics.knowledge import Looker
from spamguard.moving_in import taking
from spamguard.moving_in.words import Sizes, Word
from tests.unit.filters import mail
from tests.unit.metrics.slots import unshared


@pytest.fixture
def state(tmp_path):
    Filter.open(tmp_path / "state", bits=8, durable=False).close()
    return tmp_path / "state"


def teach(state, label, origin, count=1, skip=0, user="anna"):
    with Filter.open(state, durable=False) as spam_filter:
        for raw in [raw for name, raw in mail(60) if name == label][skip : skip + count]:
            assert spam_filter.learn(raw, label, user=user, origin=origin)


def test_lessons_are_counted_from_the_first_look_on(state):
    teach(state, "ham", "cli", 2)
    slot = unshared()
    looker = Looker(state, slot)
    assert looker.look().status.classes == {"ham": 2, "spam": 0}
    assert dict(slot.named("lessons")) == {}
    teach(state, "spam", "folder Junk", 3)
    teach(state, "spam", "folder Junk/deeper", 1, skip=3)
    teach(state, "ham", "folders, before they were watched", 1, skip=2)
    teach(state, "ham", "teach-pipe", 1, skip=3)
    looker.look()
    looker.look()
    assert dict(slot.named("lessons")) == {("spam", "folder"): 4, ("ham", "folders"): 1, ("ham", "teach-pipe"): 1}
    again = Looker(state, slot)  # a new process in the same slot
    teach(state, "ham", "", 1, skip=4)
    again.look()
    assert dict(slot.named("lessons"))["spam", "folder"] == 4
    assert dict(slot.named("lessons"))["ham", "other"] == 1


def test_a_word_list_is_no_lesson(state):
    slot = unshared()
    looker = Looker(state, slot)
    looker.look()
    with Filter.open(state, durable=False) as spam_filter:
        about, odds = taking.known_words([Sizes(9, 9), Word(b"", "viagra", 0, 9)], "bogofilter", spam_filter.key)
        assert taking.take_in(spam_filter, "old", about, odds)
    looker.look()
    assert dict(slot.named("lessons")) == {}


def test_what_is_taken_back_is_no_lesson(state):
    slot = unshared()
    looker = Looker(state, slot)
    looker.look()
    teach(state, "spam", "folder Junk")
    raw = next(raw for name, raw in mail(60) if name == "spam")
    with Filter.open(state, durable=False) as spam_filter:
        assert spam_filter.forget(raw, user="anna", origin="undo")
    assert looker.look().status.classes["spam"] == 0
    assert dict(slot.named("lessons")) == {("spam", "folder"): 1}


def test_an_older_ledger_that_was_restored_is_counted_from_its_end(state):
    slot = unshared()
    slot.seq = 1000
    Looker(state, slot).look()
    teach(state, "spam", "folder Junk")
    Looker(state, slot).look()
    assert dict(slot.named("lessons")) == {("spam", "folder"): 1}


@pytest.mark.parametrize(
    ("origin", "by_person"), [("folder Junk", True), ("mail", True), ("teach-pipe", True), ("cli", False), ("folders, x", False)]
)
def test_when_a_person_last_taught(state, origin, by_person):
    looker = Looker(state, unshared())
    assert looker.look().person is None
    before = int(time.time())
    teach(state, "spam", origin)
    for one in (looker, Looker(state, unshared())):  # as it goes on, and from the start
        person = one.look().person
        assert (person is not None and before <= person <= time.time()) if by_person else person is None


def test_nothing_is_created(tmp_path):
    with pytest.raises(SpamguardError, match="there is none"):
        Looker(tmp_path / "none", unshared()).look()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["ledger.sqlite", "key"])
def test_what_cannot_be_read_is_told(state, name):
    (state / name).write_bytes(b"x" * 4096)
    with pytest.raises(SpamguardError):
        Looker(state, unshared()).look()
