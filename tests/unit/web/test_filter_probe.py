"""The probe of ledger and tables, and the count of lessons."""

from __future__ import annotations

import time

import pytest

from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.web.monitor import FilterProbe
from tests.unit.filters import mail
from tests.unit.slots import unshared


@pytest.fixture
def state(tmp_path):
    Filter.open(tmp_path / "state", _bits=8, _durable=False).close()
    return tmp_path / "state"


def teach(state, label, origin, count=1, skip=0, user="anna"):
    with Filter.open(state, _durable=False) as spam_filter:
        for raw in [raw for name, raw in mail(60) if name == label][skip : skip + count]:
            assert spam_filter.learn(raw, label, user=user, origin=origin)


def test_lessons_are_counted_from_the_first_look_on(state):
    teach(state, "ham", "cli", 2)
    slot = unshared()
    looker = FilterProbe(state, slot)
    assert looker.probe().status.classes == {"ham": 2, "spam": 0}
    assert dict(slot.read_rows("lessons")) == {}
    teach(state, "spam", "folder Junk", 3)
    teach(state, "spam", "folder Junk/deeper", 1, skip=3)
    teach(state, "ham", "folders, before they were watched", 1, skip=2)
    teach(state, "ham", "teach-pipe", 1, skip=3)
    looker.probe()
    looker.probe()
    assert dict(slot.read_rows("lessons")) == {
        ("spam", "folder"): 4,
        ("ham", "folders"): 1,
        ("ham", "teach-pipe"): 1,
    }
    again = FilterProbe(state, slot)  # a new process in the same slot
    teach(state, "ham", "", 1, skip=4)
    again.probe()
    assert dict(slot.read_rows("lessons"))["spam", "folder"] == 4
    assert dict(slot.read_rows("lessons"))["ham", "other"] == 1


def test_a_retracted_vote_is_no_lesson(state):
    slot = unshared()
    looker = FilterProbe(state, slot)
    looker.probe()
    teach(state, "spam", "folder Junk")
    raw = next(raw for name, raw in mail(60) if name == "spam")
    with Filter.open(state, _durable=False) as spam_filter:
        assert spam_filter.forget(raw, user="anna", origin="undo")
    assert looker.probe().status.classes["spam"] == 0
    assert dict(slot.read_rows("lessons")) == {("spam", "folder"): 1}


def test_an_older_ledger_that_was_restored_is_counted_from_its_end(state):
    slot = unshared()
    slot.seq = 1000
    FilterProbe(state, slot).probe()
    teach(state, "spam", "folder Junk")
    FilterProbe(state, slot).probe()
    assert dict(slot.read_rows("lessons")) == {("spam", "folder"): 1}


@pytest.mark.parametrize(
    ("origin", "by_person"),
    [
        ("folder Junk", True),
        ("mail", True),
        ("teach-pipe", True),
        ("cli", False),
        ("folders, x", False),
    ],
)
def test_when_a_person_last_taught(state, origin, by_person):
    looker = FilterProbe(state, unshared())
    assert looker.probe().last_taught is None
    before = int(time.time())
    teach(state, "spam", origin)
    for one in (looker, FilterProbe(state, unshared())):  # as it goes on, and from the start
        person = one.probe().last_taught
        assert (
            (person is not None and before <= person <= time.time())
            if by_person
            else person is None
        )


def test_nothing_is_created(tmp_path):
    with pytest.raises(SpamguardError, match="there is none"):
        FilterProbe(tmp_path / "none", unshared()).probe()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["ledger.sqlite", "key"])
def test_unreadable_files_get_an_error(state, name):
    (state / name).write_bytes(b"x" * 4096)
    with pytest.raises(SpamguardError):
        FilterProbe(state, unshared()).probe()
