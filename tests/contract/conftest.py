"""A ledger of each implementation, for the contract tests."""

import pytest

from tests.contract.ledgers import SHELVES


@pytest.fixture(params=SHELVES)
def shelf(request, tmp_path):
    made = SHELVES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def ledger(shelf):
    return shelf.open("a")
