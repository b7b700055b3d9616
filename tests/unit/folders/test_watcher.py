"""The loop: real Maildirs, a real filter, and users who move mail; the tests wait for nothing but
the next turn.
"""

from __future__ import annotations

import gzip
import os
import shutil
import time
from itertools import pairwise

import pytest

from spamguard.folders import scan, watcher
from spamguard.folders.maildir import Changes
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import DEBOUNCE, MAIL, signed_by

pytestmark = pytest.mark.slow  # waits for seconds


def test_a_copy_that_is_marked_as_deleted_teaches_nothing(watched):
    """Programs that only strike a message through, and leave it until somebody expunges."""
    alarm, kept, struck = [deliver(watched.box, raw, "cur", "S") for raw in MAIL[:3]]
    watched.rest()
    alarm = move(alarm, watched.box / ".Junk")
    shutil.copy(kept, watched.box / ".Junk" / "cur" / "1.copy:2,ST")  # with its flags
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    alarm = alarm.rename(f"{alarm}T")
    struck = struck.rename(f"{struck}T")
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    shutil.copy(alarm, watched.box / "cur" / "2.back:2,S")
    shutil.copy(struck, watched.box / ".Junk" / "cur" / "3.moved:2,S")
    new = MAIL[3]  # moved back before anybody looked
    deliver(watched.box / ".Junk", new, "cur", "ST")
    deliver(watched.box, new, "cur", "S")
    watched.rest()
    assert watched.votes() == {"anna 0": "ham", "anna 2": "spam"}
    alarm.unlink()
    watched.watcher.take_changes(Changes(everything=True))
    watched.rest()
    assert watched.votes() == {"anna 0": "ham", "anna 2": "spam"}


def test_a_pattern_that_nothing_fits_is_told_once(watched, caplog):
    watched.stop()
    shutil.rmtree(watched.box)
    watched.start()
    for _ in range(2):
        watched.watcher._search_due = 0.0
        watched.rest()
    assert caplog.text.count(f"watch: nothing fits {watched.place}/home/* yet") == 1


def test_roles_as_configured(watch):
    one = watch(folders=(("News*", "newsletter"), ("Archive", "ignored")), user="site")
    maildir(one.box, ".News.Daily")
    messages = [deliver(one.box, raw) for raw in MAIL[:2]]
    one.rest()
    move(messages[0], one.box / ".News.Daily")
    move(messages[1], one.box / ".Archive")
    one.rest()
    assert one.votes() == {"site 0": "newsletter"}
    assert one.filter.ledger.classes()["newsletter"] is False


def test_a_mailbox_that_has_moved_does_not_say_again_what_was_taken_back(watch):
    one = watch(we_file=True)
    one.rest()
    messages = [deliver(one.box, signed_by(one, raw, "ham")) for raw in MAIL[:3]]
    one.rest()
    for message in messages[:2]:
        move(message, one.box / ".Junk")
    one.rest()
    ready = [one.filter._reader.read_example(raw) for raw in MAIL[:2]]
    one.filter.forget_digests([ready[0].digest], user="anna")
    one.filter.learn_examples([ready[1]], "ham", user="anna", origin="web")
    one.watcher._sightings.forget(str(one.box))
    move(messages[2], one.box / ".Junk")
    one.watcher.take_changes(Changes(everything=True))
    one.rest()
    assert one.votes() == {"anna 0": None, "anna 1": "ham", "anna 2": "spam"}


def test_where_spam_is_not_filed_although_it_should_be_nothing_is_taken_for_put_back(
    tmp_path, watch, caplog
):
    """A Sieve rule that fails leaves all of it in INBOX, and so does the time before there was a
    rule: it would be taught as ham.
    """
    one = watch(we_file=True)
    deliver(one.box, signed_by(one, MAIL[9], "spam"))
    one.rest()
    for raw in MAIL[:4]:
        deliver(one.box, signed_by(one, raw, "spam"))
        one.rest()
    assert one.votes() == {}
    assert caplog.text.count("`we_file` says that it is put into Junk") == 1
    for raw in MAIL[10:18]:
        deliver(one.box / ".Junk", signed_by(one, raw, "spam"))
    one.rest()
    deliver(one.box, signed_by(one, MAIL[4], "spam"))
    one.rest()
    assert one.votes() == {"anna 4": "ham"}
    for raw in MAIL[5:9]:  # the rule fails from now on, which is soon seen
        deliver(one.box, signed_by(one, raw, "spam"))
        one.rest()
    assert one.votes() == {"anna 4": "ham", "anna 5": "ham"}
    assert caplog.text.count("`we_file` says that it is put into Junk") == 2
    assert [
        trouble.text
        for trouble in watcher.standing_troubles(one.watcher._warnings.standing(), 0)
        if "`we_file`" in trouble.text
    ]
    one.box.rename(tmp_path / "elsewhere")
    one.watcher.take_changes(Changes(everything=True))
    one.rest()
    # nobody can mend it any more
    assert not list(watcher.standing_troubles(one.watcher._warnings.standing(), 0))


def test_files_that_are_no_mail_are_told_once_and_the_others_teach(watched, caplog):
    junk = watched.box / ".Junk"
    messages = [
        deliver(watched.box, raw)
        for raw in (MAIL[0], b"CRYPTED\x03\x07secret", gzip.compress(MAIL[1]))
    ]
    watched.rest()
    (junk / "cur" / "pipe").mkdir()
    os.mkfifo(junk / "cur" / "fifo:2,S")
    (junk / "cur" / "link:2,S").symlink_to("/etc/passwd")
    (junk / "cur" / os.fsdecode(b"\xff\xfe:2,S")).write_bytes(MAIL[2])
    for message in messages:
        move(message, junk)
    watched.rest()
    watched.watcher.take_changes(Changes(everything=True))
    watched.rest()
    assert watched.votes() == {"anna 0": "spam", "anna 1": "spam"}
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == len(set(told)) == 3  # of two that are no regular files one
    assert sum("is encrypted" in text for text in told) == 1


def test_what_moves_on_before_it_is_taught_is_looked_for_again(watched, monkeypatch):
    """A message that waited, because it lay in folders of two classes. No event needs to tell."""
    message = deliver(watched.box, MAIL[0], "cur", "S")
    watched.rest()
    moved = move(message, watched.box / ".Junk")
    copy = watched.box / ".Archive" / "cur" / f"1{moved.name}"
    copy.hardlink_to(moved)
    watched.rest()
    assert watched.votes() == {}
    read = watched.watcher._reader.read_example

    def late(place, file, digest):
        monkeypatch.setattr(watched.watcher._reader, "read_example", read)
        moved.rename(f"{moved}a")
        return read(place, file, digest)

    monkeypatch.setattr(watched.watcher._reader, "read_example", late)
    monkeypatch.setattr(watched.mailboxes, "wait_for_changes", lambda _: Changes())
    copy.unlink()
    watched.watcher.take_changes(Changes(everything=True))
    watched.rest()
    assert not moved.exists()
    assert watched.votes() == {"anna 0": "spam"}


def damage(sightings: Sightings) -> None:
    sightings._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    sightings._db.execute("PRAGMA shrink_memory")
    os.truncate(sightings.path, 4096)


def test_damaged_sightings_ask_for_a_restart_after_which_moves_teach_again(
    watched, monkeypatch, caplog
):
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.1)
    messages = [deliver(watched.box, MAIL[0]), deliver(watched.box, MAIL[1])]
    watched.rest()
    damage(watched.watcher._sightings)
    move(messages[0], watched.box / ".Junk")
    watched.turn_until(lambda: "move it away and restart the daemon" in caplog.text)
    assert watched.votes() == {}
    watched.stop()
    path = watched.state / SIGHTINGS_FILE
    path.rename(watched.place / "aside")
    watched.start()
    watched.rest()
    move(messages[1], watched.box / ".Junk")
    watched.rest()
    assert watched.votes() == {"anna 1": "spam"}


def test_messages_that_take_long_do_not_hold_up_the_others(watched, monkeypatch):
    """Such as small files that are large once they are unpacked."""
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    many = [deliver(ben, b"Message-ID: <%d@x>\n" % number + MAIL[1]) for number in range(40)]
    watched.rest()
    monkeypatch.setattr(scan, "STEP_SECONDS", -1.0)
    for one in many:
        move(one, ben / ".Junk")
    steps = [(0, 0)]  # files read and lessons taught by then
    while steps[-1][1] < 40:
        steps.append((len(watched.opened) - 40, watched.filter.ledger.last_seq()))
        watched.watcher.run_once(DEBOUNCE)
    assert all(
        later[0] <= before[0] + 1 and later[1] <= before[1] + 1 for before, later in pairwise(steps)
    )


def test_spam_in_a_renamed_folder_was_not_put_there_by_anybody(watch):
    one = watch(we_file=True)
    one.rest()
    for raw in MAIL[:7]:
        deliver(one.box / ".Junk", signed_by(one, raw, "spam"))
    one.rest()
    (one.box / ".Junk").rename(one.box / ".Spam")
    one.rest()
    assert one.votes() == {}


def test_first_looks_do_not_hold_up_the_others(watched, monkeypatch):
    monkeypatch.setattr(scan, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", 0.0)
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    for number in range(80):
        deliver(ben, b"Message-ID: <%d@x>\n" % number + MAIL[1])
    sightings = watched.watcher._sightings
    watched.turn_until(lambda: str(ben) in sightings.mailboxes())
    move(message, watched.box / ".Junk")
    watched.turn_until(lambda: time.sleep(DEBOUNCE / 4) or watched.votes())
    assert not sightings.is_scanned(str(ben))
    watched.rest()
    assert sightings.is_scanned(str(ben))
