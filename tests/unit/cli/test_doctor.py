"""`doctor`: its steps, their remedies, and its exit status."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spamguard import __version__
from spamguard.daemon import status
from spamguard.doctor import proof
from spamguard.folders import roles
from spamguard.storage import Owner
from tests.support.reachable import let_others_pass
from tests.unit.folders.maildirs import maildir


def test_json(run, taught):
    answer = run(taught, "doctor", "--json").json
    assert answer["ok"]
    assert {"step": "state directory"}.items() <= {"step": answer["steps"][0]["name"]}.items()
    assert set(answer["steps"][0]) == {"name", "outcome", "detail", "remedy"}


def test_a_mailbox_that_is_not_watched(run, taught, tmp_path, monkeypatch):
    monkeypatch.setattr(proof, "STEP_TIMEOUT", 0.2)
    path = maildir(tmp_path / "anna", ".Junk")
    done = run(taught, "doctor", "--maildir", path)
    assert done.status == 1
    assert "FAILED  sighting: the watcher has not seen it" in done.out
    assert f"does its `watch` name {path}" in done.out
    assert [entry for entry in path.rglob("*") if entry.is_file()] == []


def test_a_path_without_a_mailbox(run, taught, tmp_path):
    maildir(tmp_path / "ben")
    for path, message in (
        (tmp_path / "none", "No such file"),
        (tmp_path / "ben", "no folder of spam"),
    ):
        done = run(taught, "doctor", "--maildir", path)
        assert done.status == 1
        assert message in done.out


def test_without_a_filter_nothing_is_made(run, tmp_path):
    done = run(tmp_path / "none", "doctor")
    assert done.status == 1
    assert "no filter there" in done.out
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody who may not look")
def test_a_state_directory_of_somebody_else(run, taught, tmp_path):
    """It is a failed step, as a line and as JSON."""
    let_others_pass(tmp_path)
    taught.chmod(0o700)
    run(tmp_path / "none", "doctor")  # loads what it needs, which may lie where only root gets to
    with Owner(65534, 65534).impersonate():
        done = run(taught, "doctor", "--json")
    answer = done.json
    assert (done.status, answer["ok"]) == (1, False)
    first, *_, last = answer["steps"]
    assert (first["name"], first["outcome"], first["remedy"]) == (
        "state directory",
        "failed",
        "name it with --state, or run this as root, or start the daemon, which makes it",
    )
    assert (last["name"], last["outcome"]) == ("filter", "failed")
    # whether it runs cannot be told
    assert "daemon" not in {step["name"] for step in answer["steps"]}


@pytest.fixture
def configuration(taught, tmp_path, monkeypatch) -> Path:
    """A configuration whose next hop is down."""
    monkeypatch.setattr(roles, "read_dovecot", lambda: roles.DovecotSettings("maildir"))
    path = maildir(tmp_path / "anna", ".Junk")
    file = tmp_path / "spamguard.yaml"
    file.write_text(
        f"state: {taught}\nwatch: [{path}]\nlisteners:\n"
        f"  - {{listen: 'smtp://127.0.0.1:10025', position: after-queue, next_hop: "
        f"'lmtp:{tmp_path}/none'}}\n"
        "scanners: [{listen: 'spamd://127.0.0.1:783'}, {listen: 'rspamd://127.0.0.1:11333'}]\n"
    )
    return file


def failures(done) -> list[str]:
    return [
        line.removeprefix("FAILED").strip()
        for line in done.out.splitlines()
        if line.startswith("FAILED")
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"workers": []}, ["daemon: workers: none accepts mail -> see its log"]),
        (
            {"scanners": ["spamd://127.0.0.1:783"]},
            ["daemon: it listens elsewhere, or hands on to others, than the configuration says"],
        ),
        (
            {"version": "0.0"},
            [f"daemon: pid 7 runs version 0.0, this program is {__version__}: restart it"],
        ),
    ],
)
def test_problems_of_the_daemon_are_steps(
    run, configuration, tmp_path, monkeypatch, changes, expected
):
    listener = {"listen": "smtp://127.0.0.1:10025", "next_hop": f"lmtp:{tmp_path}/none"}
    told_by_it = {
        "pid": 7,
        "version": __version__,
        "listeners": [listener],
        "scanners": ["rspamd://127.0.0.1:11333", "spamd://127.0.0.1:783"],  # in any order
        "report": {"scoring": True, "absent": []},
    }
    told_by_it |= {"stopping": False, "workers": [{"ready": True}]} | changes
    monkeypatch.setattr(status, "ask_daemon", lambda _: told_by_it)
    monkeypatch.setattr(proof, "STEP_TIMEOUT", 0.2)
    steps = [
        line.partition(" -> have")[0]
        for line in failures(run(None, "doctor", "--config", configuration))
        if line.startswith("daemon")
    ]
    assert steps == expected
