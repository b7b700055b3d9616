"""Fixtures of the shared log: a real PostgreSQL, and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import TestDatabase, postgres_server, shared_database
from tests.unit.shared.nodes import Site, site

__all__ = ["postgres_server", "shared_database"]


@pytest.fixture
def nodes(tmp_path: Path, shared_database: TestDatabase) -> Iterator[Site]:
    with site(tmp_path, shared_database) as opened:
        yield opened
