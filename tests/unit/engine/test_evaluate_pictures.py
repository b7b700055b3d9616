"""Pictures are PNG files, and drawing them leaves the global state of matplotlib alone."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from spamguard.engine.evaluate import check_drawable, write_plots
from spamguard.errors import UsageError

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(1)
GOLD = RNG.random(400) < 0.4
SCORE = RNG.normal(size=400) + 3 * GOLD
CHANCE = 1 / (1 + np.exp(-SCORE))
PNG = b"\x89PNG\r\n\x1a\n"


def test_all_pictures(tmp_path: Path) -> None:
    backend = matplotlib.get_backend()
    check_drawable(tmp_path / "new")
    write_plots(tmp_path / "new", GOLD, SCORE, CHANCE, "a run")
    written = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in written] == ["calibration.png", "roc.png"]
    assert all(path.read_bytes().startswith(PNG) for path in written)
    assert matplotlib.get_backend() == backend
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[plots\]'"):
        check_drawable(tmp_path)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        check_drawable(tmp_path / "file")
