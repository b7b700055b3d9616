"""The process that may read everything loads nothing that parses mail, nor what is large enough to
hide something.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE

PARTS = ("mail", "bayes", "engine", "ledger", "proxy", "smtp", "delivery", "servers", "web")
FOLDERS = ("scan", "mailbox_scan", "watcher", "lessons", "sightings", "doveconf", "reextract")
OTHERS = ("numpy", "zstandard", "sqlite3", "sklearn")
ROOT = Path(__file__).parents[3]


def test_nothing_that_parses_mail_is_loaded(tmp_path: Path) -> None:
    """The command itself, up to the configuration, which is read last."""
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
