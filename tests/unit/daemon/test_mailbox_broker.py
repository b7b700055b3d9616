"""The mailbox broker may read every file, so it loads no parser of mail and no large library; and
clients that send nonsense.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.config.options import Settings
from spamguard.daemon.mailbox_broker import MailboxBroker
from tests.support.waiting import PATIENCE

PARTS = ("mail", "bayes", "engine", "ledger", "proxy", "smtp", "delivery", "servers", "web")
FOLDERS = ("scan", "mailbox_scan", "watcher", "lessons", "sightings", "reconcile", "roles")
OTHERS = ("numpy", "zstandard", "sqlite3", "sklearn")
ROOT = Path(__file__).parents[3]


def test_nothing_that_parses_mail_is_loaded(tmp_path: Path) -> None:
    """The command loads all its modules before it reads the configuration."""
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "spamguard",
        "open-mailboxes",
        "--config",
        str(tmp_path / "none.yaml"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE
    )
    assert done.returncode == 78, done.stderr
    loaded = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"spamguard.folders.broker", "spamguard.config", "yaml"} <= loaded
    forbidden = (
        {f"spamguard.{name}" for name in PARTS}
        | {f"spamguard.folders.{name}" for name in FOLDERS}
        | set(OTHERS)
    )
    assert loaded & forbidden == set()


def test_the_same_fault_of_clients_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(tmp_path, ())
    broker = MailboxBroker(lambda: settings, "nobody")
    for request in (b"nonsense\n", b"nonsense\n", b"[]\n"):
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(request)
            broker._serve(ours, settings)
    assert [record.message for record in caplog.records] == [
        "a client was sent away: Expecting value: line 1 column 1 (char 0)",
        "a client was sent away: it is no question",
    ]
