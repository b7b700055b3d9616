"""`doctor` with the real daemon, which learns and unlearns the message that `doctor` moves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from spamguard.engine.filter import Filter
from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.support.waiting import COMMAND_SECONDS
from tests.unit.filters import held
from tests.unit.folders.maildirs import maildir


def doctor(state: Path, *arguments: str) -> tuple[int, dict[str, str], str]:
    """Exit status, outcomes by step, and everything it said."""
    line = [*daemon.COMMAND, "--state", str(state), "doctor", "--json", *arguments]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        env=daemon.ENVIRONMENT,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    return (
        done.returncode,
        {step["name"]: step["outcome"] for step in json.loads(done.stdout)["steps"]},
        done.stdout,
    )


def test_the_daemon_learns_the_move_of_doctor_and_nothing_remains(tmp_path):
    state = daemon.taught(tmp_path / "state")
    with Filter.open(state) as spam_filter:
        before = held(spam_filter)
    port, box = free_port(), maildir(tmp_path / "mail" / "anna", ".Junk")
    with daemon.running(
        state, "--listen", f"smtp://127.0.0.1:{port}", "--watch", f"{tmp_path}/mail/*", port=port
    ) as running:
        running.lines(f"{box}: seen for the first time")
        for arguments in (["--maildir", str(box)], []):
            status, outcomes, told = doctor(state, *arguments)
            assert status == 0, told
            names = (
                "daemon",
                "watcher",
                "delivery",
                "sighting",
                "move",
                "lesson",
                "verdict",
                "taking back",
            )
            assert {name: outcomes[name] for name in names} == dict.fromkeys(names, "ok"), told
        assert len(running.lines("lesson user=anna from='INBOX' to='Junk' class=spam")) == 1
    assert [path for path in box.rglob("*") if path.is_file()] == []
    with Filter.open(state) as spam_filter:
        assert set(spam_filter.ledger.users.count_lessons()) == {""}
        spam_filter.settle()
        assert held(spam_filter) == before
    status, outcomes, _ = doctor(state)
    assert outcomes["lesson"] == "ok"
