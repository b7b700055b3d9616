"""The proof that moving mail teaches, and that it leaves nothing behind."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import pytest

from spamguard.config.options import Watch
from spamguard.doctor import proof
from spamguard.doctor.proof import ProofMailbox, find_junk
from spamguard.storage import Owner
from tests.support.waiting import PATIENCE
from tests.unit.filters import opened
from tests.unit.folders.maildirs import maildir
from tests.unit.folders.watched import Watched


@pytest.fixture
def box(tmp_path):
    """A mailbox that is watched, by a thread of its own as by a daemon."""
    ready, over = threading.Event(), threading.Event()

    def watch() -> None:
        one = Watched(tmp_path)
        one.rest()
        ready.set()
        while not over.is_set():
            one.watcher.run_once(0.02)
        one.close()

    thread = threading.Thread(target=watch)
    thread.start()
    assert ready.wait(PATIENCE)
    yield ProofMailbox(tmp_path / "home" / "anna", ".Junk", Owner(0, 0), tmp_path / "state")
    over.set()
    thread.join()


@pytest.fixture
def spam_filter(tmp_path, box):
    with opened(tmp_path / "state") as one:
        yield one


def outcomes(steps):
    return [f"{step.name} {step.outcome}" for step in steps]


def files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()]


def test_a_move_that_is_not_learnt_is_found(spam_filter, box, monkeypatch):
    monkeypatch.setattr(ProofMailbox, "move_to_junk", lambda _: None)
    steps = proof.prove(spam_filter, box)
    assert outcomes(islice(steps, 3)) == ["delivery ok", "sighting ok", "move ok"]
    monkeypatch.setattr(proof, "STEP_TIMEOUT", 0.3)
    assert outcomes(steps) == ["lesson failed", "taking back ok"]
    assert files(box.path) == []


def test_interrupted_it_leaves_nothing(spam_filter, box):
    steps = proof.prove(spam_filter, box)
    assert "lesson ok" in outcomes(islice(steps, 4))
    with pytest.raises(KeyboardInterrupt):
        steps.throw(KeyboardInterrupt())
    assert files(box.path) == []
    digest = spam_filter._reader.digest(box.raw)
    assert list(spam_filter.ledger.users.votes_on_message(digest)) == []


def test_a_mailbox_that_cannot_be_written(spam_filter, tmp_path):
    box = ProofMailbox(tmp_path / "none", ".Junk", Owner(0, 0), tmp_path)
    assert outcomes(proof.prove(spam_filter, box)) == ["mailbox failed", "taking back ok"]


def test_a_message_that_has_gone(tmp_path):
    box = ProofMailbox(maildir(tmp_path / "box", ".Junk"), ".Junk", Owner(0, 0), tmp_path)
    with pytest.raises(FileNotFoundError):
        box.move_to_junk()
    assert not box.is_sighted()
    assert not list(tmp_path.glob("sightings*"))  # only the watcher makes them


def test_the_folder_of_spam(tmp_path):
    path = maildir(tmp_path / "box", ".Archive", ".Quatsch")
    assert find_junk(path, (), {}) is None
    assert find_junk(path, (Watch(str(path), folders=(("Quatsch", "spam"),)),), {}) == ".Quatsch"
    assert find_junk(path, (), {("Quatsch",): "\\Junk"}) == ".Quatsch"
    maildir(path, ".Junk")
    assert find_junk(path, (Watch("/elsewhere"),), {}) == ".Junk"
    assert find_junk(tmp_path / "none", (), {}) is None
