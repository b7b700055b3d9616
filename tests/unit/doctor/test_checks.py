"""Checks of the state directory and of Dovecot."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard import doctor
from spamguard.config.options import Hop, Listener, Position, Settings, Watch, parse_endpoint
from spamguard.doctor import StepOutcome
from spamguard.engine.filter import Filter
from spamguard.folders import roles
from spamguard.folders.roles import DovecotSettings
from tests.support.disks import needs_disks, small_disk
from tests.unit.folders.maildirs import maildir


@pytest.fixture
def state(tmp_path: Path) -> Path:
    Filter.open(tmp_path / "state", _bits=12).close()
    return tmp_path / "state"


def outcomes(steps):
    return [(step.name, str(step.outcome)) for step in steps]


def settings(state: Path, *hops: str, watch: tuple[Watch, ...] = ()) -> Settings:
    door = parse_endpoint("smtp://127.0.0.1:10025")
    return Settings(
        state,
        tuple(Listener(door, Position.STANDALONE, Hop(parse_endpoint(hop))) for hop in hops),
        watch=watch,
    )


def test_the_installation(state, tmp_path):
    fine = [("state directory", "ok"), ("disk", "ok")]
    assert outcomes(doctor.check_installation(state)) == fine
    state.chmod(0o777)
    (state / "key").chmod(0o644)
    first, second, *_ = doctor.check_installation(state)
    assert (first.outcome, first.remedy) == (StepOutcome.FAILED, f"chmod go-w {state}")
    assert (second.outcome, second.remedy) == (StepOutcome.FAILED, f"chmod 600 {state / 'key'}")
    (tmp_path / "empty").mkdir()
    assert outcomes(doctor.check_installation(tmp_path / "empty")) == fine
    assert outcomes(doctor.check_installation(tmp_path / "none")) == [("state directory", "failed")]
    assert not (tmp_path / "none").exists()


def last(state: Path) -> tuple[str, str]:
    return outcomes(doctor.check_installation(state))[-1]


@needs_disks
def test_a_disk_without_inodes(tmp_path):
    with small_disk(tmp_path / "disk", "80m,nr_inodes=3") as disk:
        (disk / "one").touch()
        assert last(disk) == ("disk", "ok")
        (disk / "two").touch()
        *_, room = doctor.check_installation(disk)
        assert (room.outcome, "inodes" in room.detail) == (StepOutcome.FAILED, True)


def test_dovecot(state, monkeypatch):
    watched = settings(state, watch=(Watch("/home/*"),))
    for found, outcome in (
        (DovecotSettings(), StepOutcome.SKIPPED),
        (DovecotSettings("maildir"), StepOutcome.OK),
        (DovecotSettings("mdbox", obstacles=("no Maildir",)), StepOutcome.FAILED),
    ):
        monkeypatch.setattr(doctor.roles, "read_dovecot", lambda found=found: found)
        assert doctor.check_dovecot(watched).outcome is outcome


def test_dovecot_is_there_and_has_nothing_to_do_with_what_is_watched(state, tmp_path, monkeypatch):
    """Where Debian's was merely installed an examination never ended well."""
    mbox = roles.parse_dovecot("mail_location = mbox:~/mail:INBOX=/var/mail/%u\n")
    monkeypatch.setattr(doctor.roles, "read_dovecot", lambda: mbox)
    (tmp_path / "home" / "ben").mkdir(parents=True)
    watched = settings(state, watch=(Watch(f"{tmp_path}/home/*"),))
    assert doctor.check_dovecot(watched).outcome is StepOutcome.FAILED  # people's mail is elsewhere
    maildir(tmp_path / "home" / "anna")
    step = doctor.check_dovecot(watched)
    assert (step.outcome, step.detail) == (
        StepOutcome.SKIPPED,
        "keeps its mail as mbox, so the Maildirs that are watched are not its own",
    )
    ours = settings(state, f"maildir:{tmp_path}/not/yet", watch=(Watch(f"{tmp_path}/not/yet"),))
    assert doctor.check_dovecot(ours).outcome is StepOutcome.SKIPPED
