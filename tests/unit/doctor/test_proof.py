"""The proof that moving mail teaches, and that it leaves nothing behind."""

from __future__ import annotations

from itertools import islice

import pytest

from spamguard.config.options import Watch
from spamguard.doctor import proof
from spamguard.doctor.proof import ProofMailbox, find_junk
from spamguard.storage import Owner
from tests.unit.filters import held, mail, opened, teach
from tests.unit.folders.maildirs import maildir


@pytest.fixture
def spam_filter(tmp_path):
    with opened(tmp_path / "state") as one:
        teach(one, mail(40))
        one.settle()
        yield one


def outcomes(steps):
    return [f"{step.name} {step.outcome}" for step in steps]


def in_scratch(spam_filter):
    with proof.scratch_mailbox(spam_filter) as box:
        steps = list(proof.prove(spam_filter, box, "a hint"))
        left = [path for path in box.path.rglob("*") if path.is_file()]
    assert left == []
    assert not box.path.exists()
    return steps


def test_a_move_that_is_not_learnt_is_found(spam_filter, monkeypatch):
    monkeypatch.setattr(proof, "STEP_TIMEOUT", 0.3)
    monkeypatch.setattr(ProofMailbox, "move_to_junk", lambda _: None)
    assert outcomes(in_scratch(spam_filter)) == [
        "delivery ok",
        "sighting ok",
        "move ok",
        "lesson failed",
        "taking back ok",
    ]


def test_others_may_teach_meanwhile(spam_filter, monkeypatch):
    move = ProofMailbox.move_to_junk

    def moved(box):
        teach(spam_filter, [("spam", mail(60)[-1][1])])
        move(box)

    monkeypatch.setattr(ProofMailbox, "move_to_junk", moved)
    steps = in_scratch(spam_filter)
    assert "others have taught meanwhile" in steps[-1].detail
    assert set(outcomes(steps)[1:]) == {
        "sighting ok",
        "move ok",
        "lesson ok",
        "verdict ok",
        "taking back ok",
    }


def test_interrupted_it_leaves_nothing(spam_filter, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    before = held(spam_filter)
    with proof.scratch_mailbox(spam_filter) as box:
        steps = proof.prove(spam_filter, box, "")
        assert "lesson ok" in outcomes(islice(steps, 4))
        monkeypatch.setattr(spam_filter, "judge", stop)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
        assert [path for path in box.path.rglob("*") if path.is_file()] == []
    assert (
        list(spam_filter.ledger.users.votes_on_message(spam_filter._reader.digest(box.raw))) == []
    )
    monkeypatch.undo()
    spam_filter.settle()
    assert held(spam_filter) == before


def test_a_mailbox_that_cannot_be_written(spam_filter, tmp_path):
    box = ProofMailbox(tmp_path / "none", ".Junk", Owner(0, 0), tmp_path, lambda: None)
    assert outcomes(proof.prove(spam_filter, box, "")) == ["mailbox failed", "taking back ok"]


def test_a_message_that_has_gone(spam_filter, tmp_path):
    box = ProofMailbox(
        maildir(tmp_path / "box", ".Junk"), ".Junk", Owner(0, 0), tmp_path, lambda: None
    )
    with pytest.raises(FileNotFoundError):
        box.move_to_junk()
    assert box.wait_until(box.is_sighted, 0.01) is None
    assert not list(tmp_path.glob("sightings*"))  # only the watcher makes them


def test_the_folder_of_spam(tmp_path):
    path = maildir(tmp_path / "box", ".Archive", ".Quatsch")
    assert find_junk(path, (), {}) is None
    assert find_junk(path, (Watch(str(path), folders=(("Quatsch", "spam"),)),), {}) == ".Quatsch"
    assert find_junk(path, (), {("Quatsch",): "\\Junk"}) == ".Quatsch"
    maildir(path, ".Junk")
    assert find_junk(path, (Watch("/elsewhere"),), {}) == ".Junk"
    assert find_junk(tmp_path / "none", (), {}) is None
