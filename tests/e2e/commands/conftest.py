"""A corpus, and a filter for each test, with tables of one megabyte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from corpora import synthetic
from spamguard.engine.filter import Filter
from tests.e2e.commands.command import BITS
from tests.support.commands import spamguard


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus that other users can read too."""
    base = tmp_path_factory.mktemp("mail")
    synthetic.write(base / "corpus", 400, 7)
    return base / "corpus"


@pytest.fixture
def state(tmp_path):
    Filter.open(tmp_path / "state", _bits=BITS, _durable=False).close()
    return tmp_path / "state"


@pytest.fixture(scope="module")
def master(tmp_path_factory, corpus):
    place = tmp_path_factory.mktemp("master") / "state"
    Filter.open(place, _bits=BITS, _durable=False).close()
    assert spamguard(place, "learn", corpus).returncode == 0
    return place


@pytest.fixture
def taught(tmp_path, master):
    return Path(shutil.copytree(master, tmp_path / "taught"))
