"""A backup of a daemon while mail passes through it. The restored installation verifies its own
earlier signatures.
"""

from __future__ import annotations

import subprocess

from spamguard.engine.filter import Filter
from tests.e2e.daemon import COMMAND, ENVIRONMENT, running, taught, unseen
from tests.e2e.ports import free_port


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=60,
    )


def test_backup_while_it_runs_and_restore_when_it_does_not(tmp_path):
    state, port, new = taught(tmp_path / "state"), free_port(), tmp_path / "new"
    configuration = tmp_path / "spamguard.yaml"
    configuration.write_text(f"""\
state: {state}
listeners:
  - {{listen: smtp://127.0.0.1:{port}, position: after-queue, next_hop: maildir:{tmp_path}/Maildir}}
""")
    message = unseen("spam", 1)[0]
    with running(state, "--config", str(configuration), port=port):
        (tmp_path / "message").write_bytes(message)
        assert (
            command("--state", state, "learn", "--as", "spam", tmp_path / "message").returncode == 0
        )
        assert command("--state", state, "backup", tmp_path / "backup").returncode == 0
        refused = command("--state", state, "restore", "--replace", tmp_path / "backup")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "a daemon runs on it (process" in refused.stderr
        assert command("--state", new, "restore", tmp_path / "backup").returncode == 0
    with Filter.open(state) as old, Filter.open(new) as restored:
        assert restored.key == old.key
        assert not restored.learn(message, "spam")
        old.settle()
        assert restored.judge(message) == old.judge(message)
    done = command("--state", state, "restore", "--replace", tmp_path / "backup")
    assert (done.returncode, done.stderr) == (0, "")
    with running(state, "--config", str(configuration), port=port):
        assert command("--state", state, "status").returncode == 0
