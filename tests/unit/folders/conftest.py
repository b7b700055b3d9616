"""Fixtures of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.folders.watched import Watched


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    one.rest()
    yield one
    one.stop()
    one.filter.close()
