"""Keywords such as $Junk teach where they are asked for; what prevents that is logged once."""

from __future__ import annotations

import pytest

from spamguard.folders.mailboxes import Folder
from spamguard.learning import status_files
from tests.unit.folders.maildirs import deliver, maildir
from tests.unit.folders.shown import flag, look, origins
from tests.unit.folders.watched import MAIL, signed_by


def test_keywords_are_spam_wherever_nobody_filed_it_as_such(weighed):
    one = weighed()
    for folder in ("", ".Trash", ".Junk", ".Sent"):
        (one.box / folder / "dovecot-keywords").write_text("0 NonJunk\n1 $JUNK\n")
    inbox, trash, junk, sent, taken_back = [
        deliver(one.box / folder, raw)
        for folder, raw in zip(("", ".Trash", ".Junk", ".Sent", ""), MAIL, strict=False)
    ]
    one.rest()
    for message in (inbox, trash, junk, sent):
        flag(message, "Sb")
    flag(taken_back, "ab")
    one.rest()
    assert one.votes() == {"anna 0": "spam", "anna 1": "spam"}
    assert origins(one) == {"evidence keyword INBOX": "spam", "evidence keyword Trash": "spam"}


def test_keywords_that_only_repeat_what_we_said_teach_nothing(weighed):
    """Mail programs may set keywords because of our own header."""
    one = weighed()
    (one.box / "dovecot-keywords").write_text("0 Junk\n")
    messages = [
        deliver(one.box, signed_by(one, MAIL[number], label))
        for number, label in enumerate(("spam", "ham", "unsure", "spam"))
    ]
    one.rest()
    for message in messages[:3]:
        flag(message, "Sa")
    flag(messages[3], "RS")
    one.rest()
    assert one.votes() == {"anna 1": "spam", "anna 2": "spam", "anna 3": "ham"}


def test_a_folder_that_cannot_be_read_keeps_the_others_from_nothing(tmp_path, weighed):
    one = weighed()
    message = deliver(one.box, MAIL[0])
    real = one.mailboxes.list_files

    def refused(place: Folder) -> dict[str, list[str]]:
        if place.directory == ".Archive":
            raise PermissionError(13, "no")
        return real(place)

    one.stop()
    ben = maildir(tmp_path / "home" / "ben", ".Archive")
    other = deliver(ben, MAIL[1])
    one.start()
    one.mailboxes.list_files = refused
    one.rest()
    flag(message, "F")
    flag(other, "F")
    one.rest()
    assert one.votes() == {"anna 0": "ham", "ben 1": "ham"}


def test_a_keyword_whose_name_is_written_late(weighed, caplog):
    one = weighed()
    message = deliver(one.box, MAIL[0])
    one.rest()
    flag(message, "Sa")
    one.rest()
    assert one.votes() == {}
    (one.box / "dovecot-keywords").write_text("0 Junk\n")
    look(one)
    assert one.votes() == {"anna 0": "spam"}
    assert "dovecot-keywords" not in caplog.text


def test_keywords_whose_names_are_kept_elsewhere_are_told_once(weighed, caplog):
    one = weighed()
    for folder, raw in zip((one.box, one.box / ".Archive"), MAIL, strict=False):
        flag(deliver(folder, raw), "Sa")
    one.rest()
    assert "dovecot-keywords" not in caplog.text
    for _ in range(3):
        look(one)
    assert (
        sum("no dovecot-keywords says which" in record.getMessage() for record in caplog.records)
        == 1
    )
    status = status_files.read_watcher_status(one.state)
    assert status is not None
    assert [trouble.user for trouble in status.troubles] == ["anna"]
    assert one.votes() == {}


def test_keywords_that_cannot_be_read_are_told_once(weighed, caplog):
    one = weighed()
    (one.box / "dovecot-keywords").symlink_to("/etc/passwd")
    flag(deliver(one.box, MAIL[0]), "Sa")
    one.rest()
    look(one)
    flag(deliver(one.box, MAIL[1]), "R")
    one.rest()
    assert one.votes() == {"anna 1": "ham"}
    assert sum("keywords cannot be read" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("meanwhile", [False, True])
def test_what_a_message_showed_before_teaches_nothing_wherever_it_goes(
    tmp_path, weighed, meanwhile
):
    """Moved by its user, renamed by a migration of all mail, or away for a while with its disk."""
    one = weighed(spam_evidence=())
    for folder in ("", ".Projects"):
        (maildir(one.box, folder) / folder / "dovecot-keywords").write_text("0 $Junk\n")
    moved, migrated, copied = [flag(deliver(one.box, raw), "Sa") for raw in MAIL[:3]]
    one.rest()
    one.close()
    one = weighed()

    def look_meanwhile() -> None:
        if meanwhile:
            look(one)

    moved = moved.rename(tmp_path / moved.name)
    look_meanwhile()
    moved = moved.rename(one.box / ".Projects" / "cur" / moved.name)
    one.rest()
    migrated = migrated.rename(migrated.with_name("1700000000.migrated.host:2,Sa"))
    (one.box / ".Projects" / "cur" / "1700000000.copied.host:2,Sa").hardlink_to(copied)
    one.rest()
    (one.box / "cur").rename(tmp_path / "away")
    (one.box / "cur").mkdir()
    look_meanwhile()
    (one.box / "cur").rmdir()
    (tmp_path / "away").rename(one.box / "cur")
    look(one)
    assert one.votes() == {}
    new = flag(deliver(one.box, MAIL[3]), "Sa")
    one.rest()
    assert one.votes() == {"anna 3": "spam"}
    assert new.exists()
