"""Limits of what one user may teach by moving mail."""

from __future__ import annotations

import shlex
import time

import pytest

from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.learning import status_files
from tests.unit.folders.maildirs import deliver, maildir, move
from tests.unit.folders.watched import MAIL

pytestmark = pytest.mark.usefixtures("one_day")


@pytest.fixture
def limited(watch):
    one = watch(lessons_per_day=3)
    one.rest()
    return one


def test_beyond_the_limit_nothing_is_taught_and_all_is_remembered(limited, caplog):
    messages = [deliver(limited.box, raw) for raw in MAIL[:6]]
    limited.rest()
    moved = [move(message, limited.box / ".Junk") for message in messages[:5]]
    limited.rest()
    assert len(limited.votes()) == 3
    assert caplog.text.count("lessons_per_day") == 1
    # else whoever types it teaches their own
    assert f"spamguard --state {limited.state} learn --user anna --as spam" in caplog.text
    noted = status_files.read_watcher_status(limited.state)
    assert (noted.refused["anna"].number, noted.refused["anna"].folder) == (2, "Junk")
    with Sightings.open(limited.state / SIGHTINGS_FILE) as sightings:
        assert len(sightings.name_keys(str(limited.box), ".Junk")) == 5
    limited.stop()
    limited.start()  # they are not found again
    move(messages[5], limited.box / ".Junk")
    limited.rest()
    assert status_files.read_watcher_status(limited.state).refused["anna"].number == 3
    assert caplog.text.count("lessons_per_day") == 1
    assert len(limited.votes()) == 3
    assert all(message.exists() for message in moved)


def test_what_was_moved_by_a_slip_can_be_moved_back_on_the_same_day(limited):
    messages = [deliver(limited.box, raw) for raw in MAIL[:5]]
    limited.rest()
    moved = [move(message, limited.box / ".Junk") for message in messages]
    limited.rest()
    assert list(limited.votes().values()) == ["spam"] * 3
    for message in moved:
        move(message, limited.box)
    limited.rest()
    assert list(limited.votes().values()) == ["ham"] * 3


def test_each_user_has_a_limit_of_their_own_and_a_new_one_every_day(limited):
    ben = maildir(limited.place / "home" / "ben", ".Junk")
    limited.rest()
    messages = [(deliver(limited.box, raw), deliver(ben, raw)) for raw in MAIL[:4]]
    limited.rest()
    for anna_s, ben_s in messages:
        move(anna_s, limited.box / ".Junk")
        move(ben_s, ben / ".Junk")
    limited.rest()
    assert [user.partition(" ")[0] for user in sorted(limited.votes())] == ["anna"] * 3 + [
        "ben"
    ] * 3
    limited.filter.ledger._db.execute("UPDATE events SET time = time - 86401 WHERE user = 'ben'")
    more = deliver(limited.box, MAIL[5]), deliver(ben, MAIL[5])
    limited.rest()
    move(more[0], limited.box / ".Junk")
    move(more[1], ben / ".Junk")
    limited.rest()
    assert "ben 5" in limited.votes()
    assert "anna 5" not in limited.votes()


def test_what_was_said_otherwise_does_not_count_and_what_stands_costs_nothing(limited):
    ready = [limited.filter._reader.read_example(raw) for raw in MAIL[:6]]
    limited.filter.learn_examples(ready[:5], "spam", user="anna", origin="cli")
    messages = [deliver(limited.box, raw) for raw in MAIL[:6]]
    limited.rest()
    for message in messages[:5]:
        move(message, limited.box / ".Junk")
    limited.rest()
    assert status_files.read_watcher_status(limited.state).refused == {}
    move(messages[5], limited.box / ".Junk")
    limited.rest()
    assert limited.votes()["anna 5"] == "spam"


def test_a_clock_that_was_ahead_for_a_while_shuts_nobody_out(limited):
    messages = [deliver(limited.box, raw) for raw in MAIL[:4]]
    limited.rest()
    for message in messages[:3]:
        move(message, limited.box / ".Junk")
    limited.rest()
    limited.filter.ledger._db.execute("UPDATE events SET time = time + 366 * 86400")
    move(messages[3], limited.box / ".Junk")
    limited.rest()
    assert sorted(limited.votes()) == ["anna 0", "anna 1", "anna 2", "anna 3"]


def test_without_a_limit(watch):
    one = watch(lessons_per_day=0)
    one.rest()
    messages = [deliver(one.box, raw) for raw in MAIL[:5]]
    one.rest()
    for message in messages:
        move(message, one.box / ".Junk")
    one.rest()
    assert len(one.votes()) == 5
    assert status_files.read_watcher_status(one.state).is_alive(time.time())


def test_the_remedy_can_be_given_to_a_shell(tmp_path, watch, caplog):
    one = watch(tmp_path / "it's here", user="Anna B", lessons_per_day=1)
    message, other = (deliver(one.box, raw) for raw in MAIL[:2])
    one.rest()
    move(message, one.box / ".Junk")
    move(other, one.box / ".Junk")
    one.rest()
    words = shlex.split(caplog.text.partition("all the same: ")[2].partition("\n")[0])
    assert words == [
        "spamguard",
        "--state",
        str(one.state),
        "learn",
        "--user",
        "Anna B",
        "--as",
        "spam",
        f"{one.box}/.Junk",
    ]
