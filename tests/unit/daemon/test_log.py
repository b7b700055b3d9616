"""The log: a line for each event, whatever senders put into it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CODE = """
import logging, os
from spamguard.daemon import log
log.configure(os.environ)
logging.getLogger("spamguard.x").debug("not told")
logging.getLogger("spamguard.x").info("from=<%s>", "a\\nspamguard.x: forged \\x1b[2J é")
"""


def logged(file: Path, journal: str | None = None) -> str:
    with file.open("wb") as stderr:
        environment = os.environ | {"JOURNAL_STREAM": journal or f"{os.fstat(stderr.fileno()).st_dev}:{os.fstat(stderr.fileno()).st_ino}"}
        subprocess.run([sys.executable, "-c", CODE], env=environment, stderr=stderr, check=True, timeout=60)
    return file.read_text()


def test_one_line_with_the_time(tmp_path: Path) -> None:
    (line,) = logged(tmp_path / "log", journal="1:2").splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d ", line)
    assert line.endswith(r"INFO: from=<a\nspamguard.x: forged \x1b[2J é>")


def test_the_journal_has_the_time_itself(tmp_path: Path) -> None:
    assert logged(tmp_path / "log").startswith("spamguard.x[")
