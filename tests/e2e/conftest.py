"""A state directory for the real daemon, whose filter was taught mail of `corpora.synthetic`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import daemon


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return daemon.taught(tmp_path_factory.mktemp("taught") / "state")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The same for one test, to do with as it likes."""
    return daemon.taught(tmp_path / "state")
