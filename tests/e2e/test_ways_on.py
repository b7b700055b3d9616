"""Mail that has passed is explained, taught and forgotten by its id."""

from __future__ import annotations

import json
import re
import smtplib
import subprocess
from pathlib import Path

from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.support.waiting import COMMAND_SECONDS


def spamguard(state: Path, *arguments: str) -> str:
    line = [*daemon.COMMAND, "--state", str(state), *arguments]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        env=daemon.ENVIRONMENT,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_passed_mail_is_explained_taught_and_forgotten_by_its_id(state: Path) -> None:
    port = free_port()
    raw = daemon.unseen("spam", 1)[0]
    with daemon.running(state, "--listen", f"smtp://127.0.0.1:{port}", port=port) as running:
        with smtplib.SMTP("127.0.0.1", port) as client:
            client.sendmail("a@example.org", ["b@example.net"], raw)
        (line,) = running.lines("verdict=")
        name = line.partition(" id=")[2].split()[0]
        assert "verdict=spam" in line
    answer = json.loads(spamguard(state, "explain", "--json", name))
    assert answer["then"]["label"] == "spam"
    assert len(answer["then"]["words"]) == 100
    (by_message,) = re.findall(r" message=[0-9a-f]{12} ", line)
    assert json.loads(spamguard(state, "explain", "--json", by_message.strip())) == answer
    assert json.loads(spamguard(state, "learn", "--json", "--as", "ham", "--id", name))[
        "taught"
    ] == {"ham": 1}
    # what was taught from the features alone is the message that was sent: the same receipt
    file = state.parent / "message"
    file.write_bytes(raw)
    assert json.loads(spamguard(state, "learn", "--json", "--as", "ham", str(file)))["known"] == {
        "ham": 1
    }
    assert json.loads(spamguard(state, "forget", "--json", "--id", name))["forgotten"] == 1
