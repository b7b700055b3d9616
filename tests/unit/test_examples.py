"""The examples in docstrings run, as `pytest --doctest-modules spamguard` runs them; and the names
in the steps for contributors are there.
"""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "spamguard").rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_a_module_run(module: str) -> None:
    failed, attempted = doctest.testmod(import_module(module))
    assert attempted
    assert not failed


def test_the_steps_for_contributors_name_what_is_there() -> None:
    steps = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:spamguard|config|tests|corpora)/[^`]*)`(?:,\s+`([^`]+)`)?", steps)
    assert len(named) > 20
    for path, name in named:
        assert (ROOT / path).exists(), path
        assert name in (ROOT / path).read_text(encoding="utf-8") if name else True, (path, name)
