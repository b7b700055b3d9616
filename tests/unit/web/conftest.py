"""A server that the tests of a module share, and a state directory for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.web.office import made
from tests.unit.web.served import Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With usual settings."""
    with served(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="session")
def made_office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("office") / "state")


@pytest.fixture
def state(tmp_path: Path, made_office: Path) -> Path:
    return Path(shutil.copytree(made_office, tmp_path / "state"))
