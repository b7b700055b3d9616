"""The proof that moving mail teaches, and that it leaves nothing behind."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from spamguard.config.options import Watch
from spamguard.doctor import proof
from spamguard.doctor.proof import ProofMailbox, find_junk, make_message
from spamguard.folders import mailbox_scan
from spamguard.storage import Owner, directory_owner
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


def test_learnt_and_unlearnt(spam_filter):
    before = held(spam_filter)
    steps = in_scratch(spam_filter)
    assert outcomes(steps) == [
        "delivery ok",
        "sighting ok",
        "move ok",
        "lesson ok",
        "verdict ok",
        "taking back ok",
    ]
    lesson = next(step.detail for step in steps if step.name == "lesson")
    assert "in the name of doctor-" in lesson
    assert "from folder Junk" in lesson
    assert steps[-1].detail.endswith("bit for bit")
    spam_filter.settle()
    assert held(spam_filter) == before
    assert [
        user for user in spam_filter.ledger.users.count_lessons() if user.startswith("doctor")
    ] == []
    assert (
        sorted(
            path.name
            for path in spam_filter.directory.iterdir()
            if "watching" in path.name or "sightings" in path.name
        )
        == []
    )


def test_a_watcher_that_learns_nothing_is_found(spam_filter, monkeypatch):
    before = held(spam_filter)
    monkeypatch.setattr(proof, "STEP_TIMEOUT", 0.3)
    monkeypatch.setattr(mailbox_scan.MailboxScanner, "_teach_moves", lambda *_, **__: iter(()))
    steps = in_scratch(spam_filter)
    assert outcomes(steps)[:2] == ["delivery ok", "sighting failed"]
    assert steps[1].remedy == "a hint"
    assert outcomes(steps)[2:] == ["taking back ok"]
    assert held(spam_filter) == before


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


def test_messages_are_all_different_and_say_what_they_are():
    first, second = make_message(), make_message()
    assert first != second
    assert b"delete it" in first
    assert b"\nTo: undisclosed-recipients:;\n" in first


def test_the_folder_of_spam(tmp_path):
    path = maildir(tmp_path / "box", ".Archive", ".Quatsch")
    assert find_junk(path, (), {}) is None
    assert find_junk(path, (Watch(str(path), folders=(("Quatsch", "spam"),)),), {}) == ".Quatsch"
    assert find_junk(path, (), {("Quatsch",): "\\Junk"}) == ".Quatsch"
    maildir(path, ".Junk")
    assert find_junk(path, (Watch("/elsewhere"),), {}) == ".Junk"
    assert find_junk(tmp_path / "none", (), {}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_acting_with_the_rights_of_the_owner():
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        acts_as_the_owner(maildir(Path(place) / "box", ".Junk"))


def acts_as_the_owner(path):
    for directory in (path, *path.rglob("*")):
        os.chown(directory, 65534, 65534)
    owner = directory_owner(path)
    box = ProofMailbox(path, ".Junk", owner, path, lambda: None)
    box.deliver()
    (found,) = (path / "new").iterdir()
    assert (found.stat().st_uid, found.stat().st_gid, found.stat().st_mode & 0o777) == (
        65534,
        65534,
        0o600,
    )
    box.move_to_junk()
    assert len(list((path / ".Junk" / "cur").iterdir())) == 1
    box.remove()
    assert [one for one in path.rglob("*") if one.is_file()] == []
    assert (os.geteuid(), os.getegid()) == (0, os.getgid())
    with pytest.raises(PermissionError), owner.impersonate():
        (path.parent / "x").write_bytes(b"")
    assert os.geteuid() == 0
