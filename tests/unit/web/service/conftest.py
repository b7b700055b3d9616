"""A state directory for each test of the service."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.web.service.office import made


@pytest.fixture(scope="session")
def _office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("office") / "state")


@pytest.fixture
def state(tmp_path: Path, _office: Path) -> Path:
    return Path(shutil.copytree(_office, tmp_path / "state"))
