"""The learner: folders and lessons do not wait for each other's trouble, and a class is called
missing only if the filter says so now.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spamguard.daemon.learner import ClassRegistry
from spamguard.folders.sightings import SIGHTINGS_FILE
from spamguard.learning.queue import QUEUE_DIRECTORY
from tests.support.waiting import PATIENCE
from tests.unit.daemon.conftest import ROOT, Daemon
from tests.unit.filters import opened
from tests.unit.folders.maildirs import deliver, maildir, move

LETTER = b"Subject: x\n\nbuy\n"


def test_a_class_made_meanwhile_is_not_missing(tmp_path):
    with opened(tmp_path) as spam_filter:
        classes = ClassRegistry(lambda: classes.update(spam_filter))
        assert not asyncio.run(classes.is_missing("spam"))
        assert asyncio.run(classes.is_missing("newsletter"))
        spam_filter.define_class("newsletter", unwanted=False)
        assert not asyncio.run(classes.is_missing("newsletter"))


def test_without_an_answer_no_class_is_missing():
    assert not asyncio.run(ClassRegistry(lambda: None).is_missing("newsletter"))


def submit_lesson(state: Path) -> None:
    """Submit a lesson as programs do. It must be accepted."""
    command = [sys.executable, "-m", "spamguard", "teach-pipe", "--as", "spam"]
    subprocess.run(
        [*command, "--socket", str(state / "teach.sock")],
        input=LETTER,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=PATIENCE,
    )


@pytest.mark.slow
def test_lessons_are_learnt_while_folders_cannot_be_watched(daemon: Daemon, tmp_path: Path) -> None:
    maildir(tmp_path / "mail")
    (tmp_path / "state" / SIGHTINGS_FILE).mkdir()
    daemon.configure(watch=[f"{tmp_path}/mail"], teach={}, workers=1)
    daemon.start()
    daemon.logged("what is moved meanwhile is found when that is mended")
    daemon.logged("lessons are taken on")
    submit_lesson(tmp_path / "state")
    daemon.logged("by=teach-pipe class=spam")


@pytest.mark.slow
def test_moves_teach_while_the_queue_cannot_be_read(daemon: Daemon, tmp_path: Path) -> None:
    box = maildir(tmp_path / "mail", ".Junk")
    message = deliver(box, LETTER)
    (tmp_path / "state" / QUEUE_DIRECTORY).write_text("no directory")
    (tmp_path / "state" / "teach.sock").mkdir()
    daemon.configure(watch=[f"{tmp_path}/mail"], teach={}, workers=1)
    daemon.start()
    daemon.logged("cannot listen there")
    daemon.logged("lessons cannot be taken from")
    daemon.logged("seen for the first time")
    move(message, box / ".Junk")
    daemon.logged("class=spam")
