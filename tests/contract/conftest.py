"""A ledger of each implementation, for the contract tests."""

from contextlib import contextmanager

import pytest

from tests.contract.joined import PostgresShelf
from tests.contract.ledgers import SHELVES
from tests.support.postgres import needs_postgres
from tests.support.waiting import PATIENCE

MARKS = {"connected": pytest.mark.slow, "postgres": needs_postgres}


KINDS = [pytest.param(name, marks=MARKS.get(name, ())) for name in [*SHELVES, "postgres"]]


@contextmanager
def made(request, directory):
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "postgres":
            # However slow the machine is, events get their numbers before the tests go on.
            patch.setattr("spamguard.ledger.shared.MAX_WAIT_SECONDS", PATIENCE)
            shelf = PostgresShelf(directory, request.getfixturevalue("postgres_server"))
        else:
            shelf = SHELVES[request.param](directory)
        yield shelf
        shelf.close()


@pytest.fixture(params=KINDS)
def shelf(request, tmp_path):
    with made(request, tmp_path) as shelf:
        yield shelf


@pytest.fixture(scope="module", params=KINDS)
def lasting_shelf(request, tmp_path_factory):
    """For tests that only read."""
    with made(request, tmp_path_factory.mktemp("shelf")) as shelf:
        yield shelf


@pytest.fixture
def ledger(shelf):
    return shelf.open("a")
