"""A server that several tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.web.served import Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With usual settings."""
    with served(tmp_path_factory.mktemp("served")) as running:
        yield running
