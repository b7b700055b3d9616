"""What the ledger notes beside the receipts, and the directory of it all, where they are not what they should be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spamguard import Filter
from spamguard.errors import LedgerError
from spamguard.policy import GoodMail
from tests.unit.filters import mail, opened, teach


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with opened(tmp_path / "state") as one:
        teach(one, mail(20))
        one.settle()
    return tmp_path / "state"


def note(state: Path, key: str, value: str) -> None:
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db, db:
        assert db.execute("UPDATE meta SET value = ? WHERE key LIKE ?", (value, key)).rowcount == 1


@pytest.mark.parametrize("value", ["many", "", "-5", "29", "1" * 5000, "２２"])
def test_a_size_of_tables_that_cannot_be(state: Path, value: str) -> None:
    note(state, "bits", value)
    with pytest.raises(LedgerError, match="size of its tables is damaged: restore it from a backup"):
        Filter.open(state)


@pytest.mark.parametrize("value", ["", "{", "7", "[]", "{}", '{"confirmed": 1, "highest": 3}', '{"confirmed": 1, "highest": ["x"]}'])
def test_what_is_known_of_good_mail_is_measured_anew(state: Path, value: str) -> None:
    note(state, "goodmail.%", value)
    with Filter.open(state) as one:
        assert one.good_mail() == GoodMail()
        one.settle()


def test_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(LedgerError, match="is no directory: choose a state directory"):
        Filter.open(tmp_path / "state")
