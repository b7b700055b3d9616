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

from corpora import synthetic
from spamguard.errors import LedgerError
from spamguard.folders import lessons, mailbox_scan, scan, watcher
from spamguard.folders.mailboxes import Changes
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.ledger import codec
from spamguard.mail import extract, mime
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import DEBOUNCE, MAIL, Watched, signed_by

pytestmark = pytest.mark.slow  # waits for seconds


def test_what_lies_there_at_first_teaches_nothing(watch):
    one = watch()
    for number, folder in enumerate(("", ".Junk", ".Archive", ".Trash", ".Junk")):
        deliver(one.box / folder, MAIL[number % 4], "cur", "S")
    one.rest()
    assert one.votes() == {}
    assert len(one.opened) == 5


def test_moves_teach(watched, caplog):
    caplog.set_level("INFO")
    first, second, third, fourth = [deliver(watched.box, raw) for raw in MAIL[:4]]
    watched.rest()
    assert watched.votes() == {}
    first = move(first, watched.box / ".Junk")
    move(second, watched.box / ".Archive")
    move(third, watched.box / ".Trash")
    watched.rest()
    assert watched.votes() == {"anna 0": "spam", "anna 1": "ham"}
    (vote,) = [vote for vote in watched.filter.ledger.all_votes() if vote.label == "spam"]
    assert (vote.user, vote.origin) == ("anna", "folder Junk")
    move(first, watched.box)
    fourth.unlink()
    watched.rest()
    assert watched.votes() == {"anna 0": "ham", "anna 1": "ham"}
    lessons = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("lesson")
    ]
    assert any(
        line.startswith(
            "lesson user=anna from='INBOX' to='Junk' class=spam message=" + vote.digest.hex()[:12]
        )
        for line in lessons
    )
    assert len(lessons) == 3


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


def test_only_what_was_never_seen_is_read(watched):
    message = deliver(watched.box, MAIL[0])
    other = deliver(watched.box, MAIL[1])
    watched.rest()
    watched.opened.clear()
    message = message.rename(watched.box / "cur" / f"{message.name}:2,S")
    watched.rest()
    message.rename(watched.box / "cur" / f"{message.name}R")
    other.unlink()
    watched.rest()
    assert watched.opened == []
    watched.stop()
    watched.start()
    watched.rest()
    assert watched.opened == []
    assert watched.votes() == {}


def test_what_happened_meanwhile_is_made_up_for(watched):
    messages = [deliver(watched.box, raw) for raw in MAIL[:3]]
    watched.rest()
    watched.stop()
    move(messages[0], watched.box / ".Junk")
    deliver(watched.box / ".Junk", MAIL[5])
    watched.start()
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}


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


def test_the_same_message_that_comes_again_takes_nobodys_word_back(watched):
    """Nobody has moved it: it was delivered once more, as the server that received it tells."""

    def received(when: str) -> bytes:
        return (
            b"Return-Path: <x@example.org>\nReceived: from a.example\n by b.example; "
            + when.encode()
            + b"\n"
            + MAIL[0]
        )

    message = deliver(watched.box, received("10:00"))
    watched.rest()
    moved = move(message, watched.box / ".Junk")
    watched.rest()
    again = deliver(watched.box, received("10:05"))
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    again.unlink()
    deliver(watched.box, received("10:00").replace(b"\n", b"\r\n"), "cur", "S")  # copied back
    watched.rest()
    assert watched.votes() == {"anna 0": "ham"}
    assert moved.exists()


@pytest.mark.parametrize("we_file", [True, False])
def test_what_we_filed_and_was_put_back_before_it_was_seen(watch, we_file):
    one = watch(we_file=we_file)
    one.rest()
    deliver(one.box, signed_by(one, MAIL[0], "spam"))
    deliver(one.box / ".Junk", signed_by(one, MAIL[1], "spam"))
    deliver(one.box, signed_by(one, MAIL[2], "ham"))
    deliver(
        one.box,
        MAIL[3].replace(b"\n", b"\r\n") + b"X-Spamguard: " + signed_by(one, MAIL[3], "spam")[60:],
    )
    one.rest()
    assert one.votes() == ({"anna 0": "ham"} if we_file else {})


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


def test_a_subject_prefix_of_ours_is_no_part_of_the_lesson(watched):
    """Otherwise a message that was tagged wrongly teaches that the tag is a sign of ham, and
    senders may write it.
    """
    plain = watched.filter._reader.read_example(MAIL[0])
    tagged = b"X-Spamguard-Prefix: ***SPAM***\n" + MAIL[0].replace(
        b"\nSubject: ", b"\nSubject: ***SPAM*** ", 1
    )
    assert tagged.count(b"***SPAM***") == 2
    message = deliver(watched.box / ".Junk", tagged)
    watched.rest()
    move(message, watched.box)
    watched.rest()
    (vote,) = watched.filter.ledger.all_votes()
    assert (vote.digest, vote.label) == (plain.digest, "ham")
    assert codec.unpack(vote.packed).tokens.tolist() == plain.features.tokens.tolist()


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


def test_a_folder_whose_name_is_no_utf8_teaches_and_keeps_nothing_back(watched):
    """The ledger could not store its name, and no move of this user was learnt any more."""
    folder = maildir(watched.box / os.fsdecode(b".Junk.Werbung f\xfcr"))
    messages = [deliver(watched.box, raw) for raw in MAIL[:2]]
    watched.rest()
    for message, to in zip(messages, (folder, watched.box / ".Junk"), strict=True):
        move(message, to)
    for _ in range(20):
        watched.watcher.run_once(DEBOUNCE)
    assert watched.votes() == {"anna 0": "spam", "anna 1": "spam"}
    assert {vote.origin for vote in watched.filter.ledger.all_votes()} == {
        "folder Junk",
        "folder Junk/Werbung f\\xfcr",
    }


def test_who_moves_something_does_not_wait_until_all_mailboxes_were_looked_at(watched, monkeypatch):
    """Every ten minutes all of them are due, and after a start: with thousands that takes minutes,
    in which moves taught nothing.
    """
    for number in range(30):
        maildir(watched.place / "home" / f"user{number}", ".Junk")
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", 0.0)
    looked: list[str] = []
    whole = watched.mailboxes.list_files
    monkeypatch.setattr(
        watched.mailboxes,
        "list_files",
        lambda place: [looked.append(place.mailbox.user), whole(place)][1],
    )
    watched.watcher.take_changes(Changes(everything=True))
    watched.watcher.run_once(0.0)
    move(message, watched.box / ".Junk")
    watched.watcher.run_once(0.0)
    time.sleep(2 * DEBOUNCE)
    while not watched.votes():
        watched.watcher.run_once(0.0)
    assert len(set(looked)) < 20
    watched.rest()
    assert len(set(looked)) == 31


def test_of_many_mailboxes_seen_for_the_first_time_several_are_in_one_turn(watched, monkeypatch):
    """A turn for each of their folders goes through all mailboxes each time: with 20,000 that took
    hours.
    """
    boxes = [
        maildir(watched.place / "home" / f"user{number}", ".Junk", ".Archive")
        for number in range(20)
    ]
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", 60.0)
    watched.watcher._search_due = 0.0
    for _ in range(3):
        watched.watcher.run_once(0.0)
    assert all(watched.watcher._sightings.is_scanned(str(box)) for box in boxes)


def test_of_many_files_that_cannot_be_read_one_a_day_is_told(watched, caplog, monkeypatch):
    """A Maildir of 50,000 files that the daemon's user may not read is one line of the log, and
    stays a warning of `status`.
    """
    for number in range(30):
        (watched.box / "cur" / f"{number}:2,S").symlink_to("/etc/passwd")
    real = time.time
    for days in (0, 2):
        monkeypatch.setattr(time, "time", lambda days=days: real() + days * 86_400)
        watched.watcher.take_changes(Changes(everything=True))
        watched.rest()
        (trouble,) = watcher.standing_troubles(
            watched.watcher._warnings.standing(), int(time.time())
        )
        assert "is a symbolic link" in trouble.text
    assert caplog.text.count("is a symbolic link") == 2


@pytest.mark.parametrize(
    ("folder", "votes"),
    [(".Junk", {"anna 0": "spam"}), (".Archive", {"anna 0": "ham"}), ("", {}), (".Trash", {})],
)
def test_what_is_called_otherwise_or_moves_on_before_it_is_taught_is_looked_for_again(
    watched, monkeypatch, folder, votes
):
    """Such as one of too many messages to keep. No event needs to tell."""
    monkeypatch.setattr(scan, "MAX_EXAMPLE_BYTES", 0)
    message = deliver(watched.box, MAIL[0], "cur", "S")
    watched.rest()
    read = watched.watcher._scanner.read_example

    def late(place, file, digest):
        monkeypatch.setattr(watched.watcher._scanner, "read_example", read)
        moved.rename(watched.box / folder / "cur" / f"{file.name}a")
        return read(place, file, digest)

    monkeypatch.setattr(watched.watcher._scanner, "read_example", late)
    monkeypatch.setattr(watched.mailboxes, "wait_for_changes", lambda _: Changes())
    moved = move(message, watched.box / ".Junk")
    watched.watcher.take_changes(Changes(everything=True))
    watched.rest()
    assert not moved.exists()
    assert watched.votes() == votes


def test_a_moved_message_is_opened_once_and_taken_apart_once(watched, monkeypatch):
    messages = [deliver(watched.box, raw, "cur", "S") for raw in MAIL[:3]]
    watched.rest()
    watched.opened.clear()
    parsed, parse = [], mime.parse_message

    def counting(raw, *arguments):
        parsed.append(raw)
        return parse(raw, *arguments)

    monkeypatch.setattr(extract, "parse_message", counting)
    monkeypatch.setattr(mime, "parse_message", counting)
    for message in messages:
        move(message, watched.box / ".Junk")
    watched.rest()
    assert sorted(parsed) == sorted(MAIL[:3])
    assert len(watched.opened) == 3
    assert watched.votes() == {f"anna {number}": "spam" for number in range(3)}


def test_delivered_mail_is_only_named(watched, monkeypatch):
    """Features cost five times as much as the digest."""
    watched.rest()
    monkeypatch.setattr(extract.FeatureExtractor, "features", lambda *_: pytest.fail("features"))
    deliver(watched.box, MAIL[0])
    move(deliver(watched.box, MAIL[1]), watched.box / ".Trash")
    watched.rest()
    assert len(watched.opened) == 2
    assert watched.votes() == {}


def test_a_message_that_moves_on_before_it_is_taught_is_taught_twice(watched, monkeypatch):
    """What lay in Junk when it was read is spam; what came back then is ham."""
    message = deliver(watched.box, MAIL[0], "cur", "S")
    watched.rest()
    update, moved = Sightings.update, []

    def late(*arguments, votes=(), **others):
        if votes and not moved:
            moved.append(move(junk, watched.box))
        update(*arguments, votes=votes, **others)

    monkeypatch.setattr(Sightings, "update", late)
    junk = move(message, watched.box / ".Junk")
    watched.rest()
    assert [vote.label for vote in watched.filter.ledger.all_votes()] == ["spam", "ham"]


def test_a_message_that_is_half_there_is_waited_for(watched):
    whole, name = MAIL[0], f"1.half.host,S={len(MAIL[0])}"
    path = watched.box / "new" / name
    path.write_bytes(whole[:100])
    for _ in range(5):
        watched.watcher.run_once(DEBOUNCE)
    path.write_bytes(whole)
    watched.rest()
    path.rename(watched.box / ".Junk" / "new" / name)
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}


def test_a_full_disk_is_told_once_and_nothing_is_lost(watched, caplog, monkeypatch):
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.1)
    messages = [deliver(watched.box, raw) for raw in MAIL[:2]]
    watched.rest()
    real = watched.filter.cast_votes

    def full(*_: object, **__: object) -> list[bool]:
        raise LedgerError("ledger: the disk is full: make room")

    monkeypatch.setattr(watched.filter, "cast_votes", full)
    for message in messages:
        move(message, watched.box / ".Junk")
    watched.turn_until(lambda: "make room" in caplog.text)
    for _ in range(5):
        watched.watcher.run_once(DEBOUNCE)
    assert watched.votes() == {}
    assert [
        "make room" in record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING"
    ] == [True]
    monkeypatch.setattr(watched.filter, "cast_votes", real)
    watched.turn_until(lambda: len(watched.votes()) == 2)
    assert watched.votes() == {"anna 0": "spam", "anna 1": "spam"}


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


def test_a_crash_between_lesson_and_sighting_changes_nothing(watched, monkeypatch):
    message = deliver(watched.box, MAIL[0])
    watched.rest()

    class CrashError(Exception):
        pass

    def crash(*_: object) -> None:
        raise CrashError

    monkeypatch.setattr(watched.watcher._sightings, "drop_pending", crash)
    move(message, watched.box / ".Junk")
    with pytest.raises(CrashError):
        watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    events = watched.filter.ledger.last_seq()
    watched.stop()
    watched.start()
    watched.rest()
    assert watched.votes() == {"anna 0": "spam"}
    assert watched.filter.ledger.last_seq() == events


def test_many_lessons_at_once(watched):
    many = [raw for _, raw in synthetic.generate(300, 9)]
    messages = [deliver(watched.box, raw, "cur", "S") for raw in many]
    watched.rest()
    for message in messages:
        move(message, watched.box / ".Junk")
    watched.rest()
    assert watched.filter.status().classes["spam"] == len(
        {watched.filter._reader.digest(raw) for raw in many}
    )
    assert watched.settled == 1


def test_a_thousand_lessons_of_one_do_not_hold_up_the_others(watched, monkeypatch):
    # however fast this machine is, they take many steps
    monkeypatch.setattr(lessons, "STEP_SECONDS", -1.0)
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    many = [deliver(ben, b"Message-ID: <%d@x>\n" % number + MAIL[1]) for number in range(1000)]
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    for one in many:
        move(one, ben / ".Junk")
    watched.turn_until(
        lambda: any(box.work for box in watched.watcher._schedule.mailboxes.values())
    )
    move(message, watched.box / ".Junk")
    digest = watched.filter._reader.digest(MAIL[0])
    watched.turn_until(lambda: watched.filter.ledger.get_vote(digest, "anna"))
    assert 0 < watched.filter.status().classes["spam"] < 1001
    watched.rest()
    assert watched.filter.status().classes["spam"] == 1001


def test_messages_that_take_long_do_not_hold_up_the_others(watched, monkeypatch):
    """Such as small files that are large once they are unpacked."""
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    many = [deliver(ben, b"Message-ID: <%d@x>\n" % number + MAIL[1]) for number in range(40)]
    watched.rest()
    for name in (mailbox_scan, lessons):
        monkeypatch.setattr(name, "STEP_SECONDS", -1.0)
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


def test_thousands_that_teach_nothing_do_not_hold_up_the_others_either(watched, monkeypatch):
    """They come, go, and are deleted."""
    monkeypatch.setattr(mailbox_scan, "RECONCILE_BATCH_SIZE", 2)
    many = [
        deliver(watched.box, b"Message-ID: <%d@x>\n" % number + MAIL[1]) for number in range(20)
    ]
    projects = maildir(watched.box / ".Projects")
    watched.rest()
    moved = [move(one, projects) for one in many]
    assert numbers_known(watched, ".Projects", 20) == list(range(0, 21, 2))
    for one in moved:
        one.unlink()
    assert numbers_known(watched, ".Projects", 0) == list(range(20, -1, -2))


def numbers_known(one: Watched, folder: str, last: int) -> list[int]:
    """How many messages are known after each turn, until there are so many; each number once."""
    found: list[int] = []
    while last not in found:
        if (known := len(one.watcher._sightings.name_keys(str(one.box), folder))) not in found:
            found.append(known)
        one.watcher.run_once(DEBOUNCE)
    return found


def test_a_verdict_changes_at_once(watch):
    one = watch()
    for label, raw in synthetic.generate(40, 3):
        one.filter.learn(raw, label)
    text = (
        b"velvet umbrella harvest lantern glacier orchid saddle copper mosaic thimble walnut " * 3
    )
    message = deliver(one.box, b"Subject: velvet umbrella\n\n" + text)
    one.rest()
    sibling = b"Subject: umbrella velvet\n\n" + text
    before = one.filter.judge(sibling).probability
    move(message, one.box / ".Junk")
    one.rest()
    assert one.filter.judge(sibling).probability > before


def test_of_the_mailboxes_that_begin_one_is_listed_at_a_time(watched, monkeypatch):
    """Otherwise the names of all files of thousands of users are in memory at once."""
    monkeypatch.setattr(mailbox_scan, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", 0.0)
    for user in ("ben", "cleo", "dora"):
        for raw in MAIL[:4]:
            deliver(maildir(watched.place / "home" / user, ".Junk"), raw)
    listed = []
    real = watched.mailboxes.list_files
    monkeypatch.setattr(
        watched.mailboxes, "list_files", lambda place: listed.append(place.mailbox) or real(place)
    )
    most = 0
    while len(watched.watcher._sightings.mailboxes()) < 4:
        watched.watcher.run_once(DEBOUNCE)
        under_way = [
            box
            for box in watched.watcher._schedule.mailboxes.values()
            if box.is_new and box.mailbox in listed
        ]
        most = max(most, len(under_way))
    assert most == 1


def test_first_looks_do_not_hold_up_the_others(watched, monkeypatch):
    monkeypatch.setattr(mailbox_scan, "STEP_SECONDS", 0.0)
    monkeypatch.setattr(watcher, "MAX_TURN_SECONDS", 0.0)
    message = deliver(watched.box, MAIL[0])
    watched.rest()
    ben = maildir(watched.place / "home" / "ben", ".Junk")
    for number in range(200):
        deliver(ben, b"Message-ID: <%d@x>\n" % number + MAIL[1])
    states = watched.watcher._schedule.mailboxes
    watched.turn_until(lambda: any(box.is_new for box in states.values()))
    move(message, watched.box / ".Junk")
    watched.turn_until(lambda: time.sleep(DEBOUNCE / 4) or watched.votes())
    assert any(box.is_new for box in states.values())
    watched.rest()
    assert watched.watcher._sightings.is_scanned(str(ben))
