"""A ledger of each implementation, for the contract tests."""

import pytest

from tests.contract.joined import PostgresShelf
from tests.contract.ledgers import SHELVES
from tests.support.postgres import needs_postgres, postgres_server
from tests.support.waiting import PATIENCE

__all__ = ["postgres_server"]

MARKS = {"connected": pytest.mark.slow, "postgres": needs_postgres}


@pytest.fixture(
    params=[pytest.param(name, marks=MARKS.get(name, ())) for name in [*SHELVES, "postgres"]]
)
def shelf(request, tmp_path, monkeypatch):
    if request.param == "postgres":
        # However slow the machine is, events get their numbers before the tests go on.
        monkeypatch.setattr("spamguard.ledger.shared.MAX_WAIT_SECONDS", PATIENCE)
        made = PostgresShelf(tmp_path, request.getfixturevalue("postgres_server"))
    else:
        made = SHELVES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def ledger(shelf):
    return shelf.open("a")
