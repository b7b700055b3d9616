"""The learner: folders and lessons do not wait for each other's trouble."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.folders.sightings import SIGHTINGS_FILE
from spamguard.learning.queue import QUEUE_DIRECTORY
from tests.support.waiting import PATIENCE
from tests.unit.daemon.conftest import ROOT, Daemon
from tests.unit.folders.maildirs import deliver, maildir, move

LETTER = b"Subject: x\n\nbuy\n"


def submit_lesson(spool: Path) -> None:
    """Leave a lesson as programs do."""
    command = [sys.executable, "-m", "spamguard", "teach-pipe", "--as", "spam"]
    subprocess.run(
        [*command, "--spool", str(spool)],
        input=LETTER,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_lessons_are_learnt_while_folders_cannot_be_watched(daemon: Daemon, tmp_path: Path) -> None:
    maildir(tmp_path / "mail")
    (tmp_path / "state" / SIGHTINGS_FILE).mkdir()
    spool = tmp_path / "left"
    spool.mkdir()
    daemon.configure(watch=[f"{tmp_path}/mail"], teach={"spool": str(spool)}, workers=1)
    daemon.start()
    daemon.logged("what is moved meanwhile is found when that is mended")
    submit_lesson(spool)
    daemon.logged("by=teach-pipe class=spam")


@pytest.mark.slow
def test_moves_teach_while_the_queue_cannot_be_read(daemon: Daemon, tmp_path: Path) -> None:
    box = maildir(tmp_path / "mail", ".Junk")
    message = deliver(box, LETTER)
    (tmp_path / "state" / QUEUE_DIRECTORY).write_text("no directory")
    daemon.configure(watch=[f"{tmp_path}/mail"], teach={}, workers=1)
    daemon.start()
    daemon.logged("lessons cannot be taken from")
    daemon.logged("seen for the first time")
    move(message, box / ".Junk")
    daemon.logged("class=spam")
