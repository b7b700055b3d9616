"""The process that settles, as the master starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from spamguard import Filter

LEFT = (".import.0a1b.new", ".ledger.sqlite.0a1b.new", ".ledger.sqlite.0a1b.new-journal", ".watching.json.0a1b.new")
KEPT = ("notes.new", ".hidden", ".newer")


def test_drafts_of_the_killed_go_when_nobody_can_be_writing_them(tmp_path: Path) -> None:
    Filter.open(tmp_path).close()
    for name in (*LEFT, *KEPT):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - 90_000,) * 2)
    (tmp_path / ".import.young.new").write_bytes(b"x")
    (tmp_path / ".directory.new").mkdir()
    os.utime(tmp_path / ".directory.new", (0, 0))
    before = {path.name for path in tmp_path.iterdir()}
    done = subprocess.run([sys.executable, "-m", "spamguard.daemon.trainer", str(tmp_path)], capture_output=True, timeout=60, check=True)
    assert b"Traceback" not in done.stderr
    assert before - {path.name for path in tmp_path.iterdir()} == set(LEFT)
