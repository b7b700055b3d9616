"""What tests with the real daemon begin with: a state directory whose filter knows the mail of `corpora.synthetic`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e import daemon


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Taught once, for copies only."""
    return daemon.taught(tmp_path_factory.mktemp("taught") / "state")


@pytest.fixture
def state(taught: Path, tmp_path: Path) -> Path:
    """A copy for one test."""
    return Path(shutil.copytree(taught, tmp_path / "state"))
