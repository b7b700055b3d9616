"""A filter, and a backup of it."""

import pytest

from spamguard.folders.sightings import Sightings
from tests.unit.backup.places import LESSONS, command
from tests.unit.filters import opened, teach


@pytest.fixture
def state(tmp_path):
    """A filter in a state directory, taught 30 messages."""
    with opened(tmp_path / "state") as one:
        teach(one, LESSONS[:30])
        one.settle()
    Sightings.open(tmp_path / "state" / "sightings.sqlite").close()
    return tmp_path / "state"


@pytest.fixture
def file(state, tmp_path):
    assert command(state, "backup", tmp_path / "backup") == 0
    return tmp_path / "backup"
