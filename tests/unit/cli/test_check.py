"""`check`: mistakes with their lines, or the configuration in force."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spamguard.cli import common
from tests.support.reachable import let_others_pass
from tests.support.waiting import PATIENCE


def test_every_mistake_is_a_line(run, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("stat: 1\nworkers: x\nlisteners: [5]\n")
    problems = [
        f"{file}:1:1: unknown key 'stat': did you mean 'state'?",
        f"{file}:2:1: workers: expected a whole number from 0 to 1,024, found 'x'",
        f"{file}:3:13: listeners: expected a mapping as in {{listen: …}}, found 5",
    ]
    done = run(None, "check", file)
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines() == [f"spamguard: {problem}" for problem in problems]


VALUES = """\
    rules:
      - {when: spam, action: rejct}
web: {listen: 0.0.0.0:80, tls: x}
watch:
  - {maildir: /home/*/Maildir, folder: {Spam: spam}, folders: {News: newsletter}}
"""
CONTRADICTIONS = """\
    rules:
      - {when: spm, from_probability: 0.99, action: reject}
web: {listen: 0.0.0.0:80}
watch:
  - {maildir: /home/*/Maildir, folders: {News: newsletter}}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (VALUES, [("8:22", "rejct"), ("9:27", "tls"), ("11:32", "folder")]),
        (
            CONTRADICTIONS,
            [
                ("6:5", "would come back"),
                ("8:45", "before-queue"),
                ("9:7", "tls"),
                ("9:7", "hosts"),
            ],
        ),
    ],
)
def test_no_mistake_hides_another(run, taught, tmp_path, text, expected):
    """First those of values are told, all at once; then those that contradict each other."""
    file = tmp_path / "x.yaml"
    file.write_text(f"""\
state: {taught}
user: nobody
listeners:
  - listen: smtp://127.0.0.1:10025
    position: after-queue
    next_hop: smtp://127.0.0.1:10025
{text}""")
    done = run(None, "check", file)
    assert done.status == 2
    lines = done.err.splitlines()
    assert len(lines) == len(expected), done.err
    for line, (place, word) in zip(lines, expected, strict=True):
        assert f"{file}:{place}: " in line
        assert word in line


@pytest.mark.skipif(os.getuid() != 0, reason="the service's filter is root's to ask")
def test_what_root_types_is_about_the_service(run, taught, tmp_path, monkeypatch):
    file = tmp_path / "spamguard.yaml"
    file.write_text(f"state: {taught}\nscanners: [{{listen: 'spamd://127.0.0.1:783'}}]\n")
    for name in ("SPAMGUARD_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    named = run(None, "status", "--json", "--config", file)
    monkeypatch.setattr(common, "SERVICE_CONFIG", file)
    assert "spamd://127.0.0.1:783" in run(None, "check").out
    assert run(None, "status", "--json").json == named.json
    assert named.json["classes"]["spam"]["messages"] > 0
    assert "state directory" in run(None, "doctor").out.splitlines()[0]
    assert run(tmp_path / "other", "status").failed(f"{tmp_path}/other: no filter there")
    file.write_text("stat: 1\n")  # a mistake keeps nobody from looking
    monkeypatch.setattr(common, "SERVICE_STATE", taught)
    assert run(None, "status").status == 0


@pytest.mark.parametrize("command", [("doctor",), ("teach-folders", "--dry-run")])
def test_other_commands_print_each_mistake_on_a_line_too(run, tmp_path, command):
    file = tmp_path / "x.yaml"
    file.write_text("state: /x\nworkers: x\nlisteners: 5\n")
    done = run(None, *command, "--config", file)
    assert (done.status, done.out) == (2, "")
    assert [line.split(": ")[1] for line in done.err.splitlines()] == [f"{file}:2:1", f"{file}:3:1"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts the daemon as somebody else")
def test_root_is_warned_if_the_daemon_could_not_start(run, taught, tmp_path):
    """This is no error, because the file may be for another machine."""
    file = let_others_pass(tmp_path) / "spamguard.yaml"

    def warned(state, user):
        file.write_text(
            f"state: {state}\nuser: {user}\nscanners: [{{listen: 'spamd://127.0.0.1:783'}}]\n"
        )
        file.chmod(0o644)
        done = run(None, "check", file)
        assert done.status == 0
        return done.err.removeprefix("spamguard: warning: ")

    assert warned(taught, "no-such-user").startswith(
        "there is no user 'no-such-user' on this machine"
    )
    assert warned(tmp_path / "new", "nobody") == ""
    assert not (tmp_path / "new").exists()


def test_checking_needs_no_numpy():
    code = (
        "import sys; from spamguard.cli import main; main(['check']); "
        "print('numpy' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stderr == "False\n"
