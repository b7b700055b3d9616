"""What users filed before anybody watched."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from corpora import synthetic
from spamguard.config.options import Watch
from spamguard.engine.filter import Filter
from spamguard.folders.maildir import LocalMailboxes, Mailbox
from spamguard.folders.roles import role_lookup
from spamguard.folders.scan import FolderReader, find_filed, initial_lessons
from tests.unit.folders.maildirs import deliver, forbid, maildir

MAIL = [raw for _, raw in synthetic.generate(12, 8)]


@pytest.fixture
def spam_filter(tmp_path: Path) -> Iterator[Filter]:
    with Filter.open(tmp_path / "state", _bits=8, _durable=False) as one:
        yield one


def lessons(spam_filter: Filter, box: Path) -> list[tuple[str, str, int]]:
    """Folder, class and number of each message that teaches."""
    numbers = {raw[raw.find(b"Message-ID") :]: number for number, raw in enumerate(MAIL)}
    with closing(LocalMailboxes([Watch(str(box))], notify=False)) as mailboxes:
        found = find_filed(
            mailboxes, Mailbox("anna", str(box), 0), role_lookup(Watch(str(box)), {})
        )
        scanner = FolderReader(mailboxes, spam_filter.key)
        taught = list(initial_lessons(scanner, found, spam_filter.unwanted))
        assert len(taught) == len(found)
    return [
        (
            one.folder.directory,
            one.label,
            numbers[found.raw[found.raw.find(b"Message-ID") :]],
        )
        for one, found in taught
        if found is not None
    ]


def test_what_goes_meanwhile_keeps_the_others_from_nothing(tmp_path, monkeypatch):
    box = maildir(tmp_path / "anna", ".Junk", ".Junk.old")
    for folder in (".Junk", ".Junk.old"):
        deliver(box / folder, MAIL[0], "cur", "S")
    role, anna = role_lookup(Watch(str(box)), {}), Mailbox("anna", str(box), 0)
    with closing(LocalMailboxes([Watch(str(box))], notify=False)) as mailboxes:
        there = mailboxes.list_folders(anna)
        shutil.rmtree(box / ".Junk.old")
        with monkeypatch.context() as late:
            late.setattr(mailboxes, "list_folders", lambda _: there)
            assert [one.folder.directory for one in find_filed(mailboxes, anna, role)] == [".Junk"]
        shutil.rmtree(box)
        assert find_filed(mailboxes, anna, role) == []


def test_a_folder_that_may_not_be_looked_at_keeps_the_others_from_nothing(
    tmp_path, monkeypatch, caplog
):
    box = maildir(tmp_path / "anna", ".Junk", ".Archive")
    for folder in (".Junk", ".Archive"):
        deliver(box / folder, MAIL[0], "cur", "S")
    forbid(monkeypatch, box / ".Junk" / "cur")
    with closing(LocalMailboxes([Watch(str(box))], notify=False)) as mailboxes:
        found = find_filed(
            mailboxes, Mailbox("anna", str(box), 0), role_lookup(Watch(str(box)), {})
        )
    assert [one.folder.directory for one in found] == [".Archive"]
    assert caplog.text.count("Junk: cannot be looked at (Permission denied)") == 1


def test_what_cannot_be_read_is_passed_over(tmp_path, spam_filter, caplog):
    caplog.set_level(logging.WARNING)
    box = maildir(tmp_path / "anna", ".Junk")
    deliver(box / ".Junk", b"CRYPTED\x03\x07xyz")
    deliver(box / ".Junk", MAIL[0])
    (box / ".Junk" / "cur" / "link").symlink_to("/etc/passwd")
    assert lessons(spam_filter, box) == [(".Junk", "spam", 0)]
    assert len(caplog.records) == 2
