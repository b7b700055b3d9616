"""Checks of the state directory, the watcher, file events, Dovecot and next hops."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from spamguard import doctor
from spamguard.config.options import Hop, Listener, Position, Settings, Watch, parse_endpoint
from spamguard.doctor import StepOutcome
from spamguard.engine.filter import Filter
from spamguard.folders import roles
from spamguard.folders.roles import DovecotSettings
from spamguard.learning import status_files
from spamguard.learning.status_files import WatcherStatus, WatcherTrouble
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
    assert outcomes(doctor.check_installation(state)) == [
        ("state directory", "ok"),
        ("key", "ok"),
        ("disk", "ok"),
    ]
    state.chmod(0o777)
    (state / "key").chmod(0o644)
    first, second, *_ = doctor.check_installation(state)
    assert (first.outcome, first.remedy) == (StepOutcome.FAILED, f"chmod go-w {state}")
    assert (second.outcome, second.remedy) == (StepOutcome.FAILED, f"chmod 600 {state / 'key'}")
    (state / "key").unlink()
    assert outcomes(doctor.check_installation(state))[1] == ("key", "failed")
    (tmp_path / "empty").mkdir()
    assert outcomes(doctor.check_installation(tmp_path / "empty"))[:2] == [
        ("state directory", "ok"),
        ("key", "skipped"),
    ]  # nothing is lost yet
    assert outcomes(doctor.check_installation(tmp_path / "none")) == [("state directory", "failed")]
    assert not (tmp_path / "none").exists()


@needs_disks
def test_a_disk_that_cannot_be_written(tmp_path):
    with small_disk(tmp_path / "disk", "64k,ro,mode=700") as disk:
        first, *_ = doctor.check_installation(disk)
        assert first.outcome is StepOutcome.FAILED
        assert first.detail.endswith("we may not write into it")


def test_a_directory_that_others_may_look_into(state):
    """An administrator may have made the directory. That is a failure only if others can read a
    file in it.
    """
    state.chmod(0o755)
    first, *_ = doctor.check_installation(state)
    assert first.outcome is StepOutcome.OK
    (state / "ledger.sqlite").chmod(0o604)
    first, *_ = doctor.check_installation(state)
    assert (first.outcome, first.remedy) == (StepOutcome.FAILED, f"chmod go-rx {state}")
    state.chmod(0o700)
    assert outcomes(doctor.check_installation(state))[0] == ("state directory", "ok")


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


def test_the_watcher(state):
    assert outcomes(doctor.check_watcher(state, expected=False)) == [("watcher", "skipped")]
    assert outcomes(doctor.check_watcher(state, expected=True)) == [("watcher", "failed")]
    now = int(time.time())
    (state / status_files.WATCHER_FILE).write_text(json.dumps(asdict(WatcherStatus(now, now, 3))))
    assert outcomes(doctor.check_watcher(state, expected=False)) == [("watcher", "ok")]
    (state / status_files.WATCHER_FILE).write_text(
        json.dumps(
            asdict(WatcherStatus(now, now - 900, 3, {}, (WatcherTrouble("anna", "no Junk", now),)))
        )
    )
    first, second = doctor.check_watcher(state, expected=True)
    assert (first.outcome, second.outcome, second.detail) == (
        StepOutcome.FAILED,
        StepOutcome.FAILED,
        "no Junk",
    )


def test_dovecot(state, monkeypatch):
    watched = settings(state, watch=(Watch("/home/*"),))
    for found, bare, full in (
        (DovecotSettings(), StepOutcome.SKIPPED, StepOutcome.SKIPPED),
        (DovecotSettings("maildir"), StepOutcome.OK, StepOutcome.OK),
        (
            DovecotSettings("mdbox", obstacles=("no Maildir",)),
            StepOutcome.SKIPPED,
            StepOutcome.FAILED,
        ),
    ):
        monkeypatch.setattr(doctor.roles, "read_dovecot", lambda found=found: found)
        assert (doctor.check_dovecot(None).outcome, doctor.check_dovecot(watched).outcome) == (
            bare,
            full,
        )


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
