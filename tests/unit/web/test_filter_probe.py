"""The probe of ledger and tables, and the count of lessons."""

from __future__ import annotations

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


def test_an_older_ledger_that_was_restored_is_counted_from_its_end(state):
    slot = unshared()
    slot.seq = 1000
    FilterProbe(state, slot).probe()
    teach(state, "spam", "folder Junk")
    FilterProbe(state, slot).probe()
    assert dict(slot.read_rows("lessons")) == {("spam", "folder"): 1}


def test_nothing_is_created(tmp_path):
    with pytest.raises(SpamguardError, match="there is none"):
        FilterProbe(tmp_path / "none", unshared()).probe()
    assert not (tmp_path / "none").exists()
