"""Scanning a folder: what came, what went, and how much of that is done in a step."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from spamguard.config.options import Watch
from spamguard.folders import scan
from spamguard.folders.mailboxes import Folder, LocalMailboxes
from spamguard.folders.scan import FolderScan, FolderScanner
from tests.unit.folders.maildirs import deliver, maildir


def test_the_names_of_a_large_folder_are_taken_apart_in_steps_and_once(tmp_path, monkeypatch):
    """Those of a million files take many seconds, in which all other users would wait."""
    monkeypatch.setattr(scan, "_NAMES_PER_STEP", 4)
    box = maildir(tmp_path / "anna")
    messages = [deliver(box, b"one") for _ in range(10)]
    with closing(LocalMailboxes([Watch(str(box))])) as mailboxes:
        place = Folder(*mailboxes.find_mailboxes())
        scanner, first, second = (FolderScanner(mailboxes, b"k" * 32), FolderScan(), FolderScan())
        assert len(list(scanner.scan(place, np.empty(0, np.int64), first))) == 2
        known = np.unique([one.name for one in first.new.values()])
        assert len(known) == 10
        messages[0].unlink()
        deliver(box, b"two")
        assert list(scanner.scan(place, known, second)) == []
        assert (len(second.new), len(second.gone)) == (1, 1)
