"""What users filed before anybody watched."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from corpora import synthetic
from spamguard import keys
from spamguard.config.options import Action, Watch
from spamguard.engine.filter import Filter
from spamguard.folders.mailboxes import LocalMailboxes, Mailbox
from spamguard.folders.roles import role_lookup
from spamguard.folders.scan import FolderScanner, find_filed, initial_lessons
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
        found = find_filed(mailboxes, Mailbox("anna", str(box)), role_lookup(Watch(str(box)), {}))
        scanner = FolderScanner(mailboxes, spam_filter.key)
        taught = list(initial_lessons(scanner, found, spam_filter.unwanted))
        assert len(taught) == len(found)
    return [
        (
            one.folder.directory,
            one.label,
            numbers[found.message.raw[found.message.raw.find(b"Message-ID") :]],
        )
        for one, found in taught
        if found is not None
    ]


def test_only_folders_of_a_class_teach_and_inbox_only_what_was_read(tmp_path, spam_filter):
    box = maildir(tmp_path / "anna", ".Junk", ".Archive", ".Trash", ".Sent")
    for number, (folder, part, flags) in enumerate(
        [
            (".Junk", "new", ""),
            (".Archive", "cur", ""),
            (".Trash", "cur", "S"),
            (".Sent", "cur", "S"),
            ("", "new", ""),
            ("", "cur", ""),
        ]
    ):
        deliver(box / folder, MAIL[number], part, flags)
    deliver(box, MAIL[6], "cur", "RS")
    for number, folder in enumerate(("", ".Junk", ".Archive"), 7):  # struck through
        deliver(box / folder, MAIL[number], "cur", "ST")
    deliver(box / ".Junk", MAIL[6], "cur", "ST")  # a false alarm that was copied back
    assert lessons(spam_filter, box) == [
        (".Junk", "spam", 0),
        ("", "ham", 6),
        (".Archive", "ham", 1),
    ]


def test_an_inbox_in_a_directory_of_its_own_is_one(tmp_path, spam_filter):
    """Dovecot's INBOX=…/.INBOX and, with LAYOUT=fs, …/INBOX."""
    box = maildir(tmp_path / "anna", ".INBOX", "INBOX")
    for number, folder in enumerate((".INBOX", "INBOX")):
        deliver(box / folder, MAIL[2 * number], "cur")
        deliver(box / folder, MAIL[2 * number + 1], "cur", "S")
    assert lessons(spam_filter, box) == [(".INBOX", "ham", 1), ("INBOX", "ham", 3)]


def test_what_goes_meanwhile_keeps_the_others_from_nothing(tmp_path, monkeypatch):
    box = maildir(tmp_path / "anna", ".Junk", ".Junk.old")
    for folder in (".Junk", ".Junk.old"):
        deliver(box / folder, MAIL[0], "cur", "S")
    role, anna = role_lookup(Watch(str(box)), {}), Mailbox("anna", str(box))
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
        found = find_filed(mailboxes, Mailbox("anna", str(box)), role_lookup(Watch(str(box)), {}))
    assert [one.folder.directory for one in found] == [".Archive"]
    assert caplog.text.count("Junk: cannot be looked at (Permission denied)") == 1


def test_a_message_in_two_classes_is_of_one_whatever_the_order(tmp_path, spam_filter):
    box = maildir(tmp_path / "anna", ".Junk", ".Archive")
    for folder in ("", ".Archive", ".Junk", ".Junk"):
        deliver(box / folder, MAIL[0], "cur", "S")
    assert {label for _, label, _ in lessons(spam_filter, box)} == {"spam"}


def test_what_we_filed_ourselves_teaches_nothing(tmp_path, spam_filter):
    box = maildir(tmp_path / "anna", ".Junk", ".Archive")
    for number, (folder, label) in enumerate(
        [(".Junk", "spam"), (".Junk", "ham"), (".Archive", "spam"), (".Archive", "ham")]
    ):
        verdict = replace(spam_filter.judge(MAIL[number]), label=label)
        key = keys.derive_key(spam_filter.key, b"verdict")
        value = keys.sign_verdict(
            key, verdict, Action.TAG, f"id{number}", spam_filter._reader.digest(MAIL[number])
        )
        deliver(box / folder, b"X-Spamguard: " + value + b"\n" + MAIL[number], "cur")
    assert lessons(spam_filter, box) == [
        (".Junk", "spam", 1),
        (".Archive", "ham", 2),
        (".Archive", "ham", 3),
    ]


def test_what_cannot_be_read_is_passed_over(tmp_path, spam_filter, caplog):
    caplog.set_level(logging.WARNING)
    box = maildir(tmp_path / "anna", ".Junk")
    deliver(box / ".Junk", b"CRYPTED\x03\x07xyz")
    deliver(box / ".Junk", MAIL[0])
    (box / ".Junk" / "cur" / "link").symlink_to("/etc/passwd")
    assert lessons(spam_filter, box) == [(".Junk", "spam", 0)]
    assert len(caplog.records) == 2
