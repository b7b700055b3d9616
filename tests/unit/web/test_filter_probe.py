"""The probe of ledger and tables, and the count of lessons."""

from __future__ import annotations

import shutil

import pytest

from spamguard.counters import DaemonReport, pairs
from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.web.monitor import FilterProbe
from tests.unit.filters import mail


@pytest.fixture
def state(tmp_path):
    Filter.open(tmp_path / "state", _bits=8, _durable=False).close()
    return tmp_path / "state"


class Master:
    """What the master knows of the process that counts."""

    def __init__(self):
        self.report = DaemonReport()

    def probe(self, state):
        return FilterProbe(state, self.hear)

    def hear(self, counters):
        self.report.counters = counters

    def lessons(self):
        return dict(pairs(self.report.counters.lessons))


def teach(state, label, origin, count=1, skip=0, user="anna"):
    with Filter.open(state, _durable=False) as spam_filter:
        for raw in [raw for name, raw in mail(60) if name == label][skip : skip + count]:
            assert spam_filter.learn(raw, label, user=user, origin=origin)


def test_lessons_are_counted_from_the_first_look_on(state):
    teach(state, "ham", "cli", 2)
    master = Master()
    looker = master.probe(state)
    assert looker.probe().status.classes == {"ham": 2, "spam": 0}
    assert master.lessons() == {}
    teach(state, "spam", "folder Junk", 3)
    teach(state, "spam", "folder Junk/deeper", 1, skip=3)
    teach(state, "ham", "folders, before they were watched", 1, skip=2)
    teach(state, "ham", "teach-pipe", 1, skip=3)
    looker.probe()
    looker.probe()
    assert master.lessons() == {
        ("spam", "folder"): 4,
        ("ham", "folders"): 1,
        ("ham", "teach-pipe"): 1,
    }


def test_an_older_ledger_that_was_restored_is_counted_from_its_end(state):
    older = state.with_name("older")
    shutil.copytree(state, older)
    master = Master()
    looker = master.probe(state)
    teach(state, "ham", "folder Archive", 3)
    looker.probe()
    shutil.rmtree(state)
    older.rename(state)
    looker.probe()
    teach(state, "spam", "folder Junk")
    looker.probe()
    assert master.lessons() == {("spam", "folder"): 1}


def test_nothing_is_created(tmp_path):
    with pytest.raises(SpamguardError, match="there is none"):
        Master().probe(tmp_path / "none").probe()
    assert not (tmp_path / "none").exists()
