"""Evidence teaches where the operator asks for it: once, never against a user's word, and without
reading more messages than it teaches.
"""

from __future__ import annotations

from typing import NoReturn

import pytest

from spamguard.errors import LedgerError, MailboxesError
from spamguard.folders import watcher
from tests.unit.folders.maildirs import deliver, move
from tests.unit.folders.shown import flag, look
from tests.unit.folders.watched import MAIL


def test_only_a_flag_that_is_set_while_we_watch_counts(weighed):
    """Not one from before it was asked for, nor one that a server or a move brings with it."""
    one = weighed()
    known, other = (deliver(one.box, raw) for raw in MAIL[:2])
    one.rest()
    one.stop()
    flag(known, "R")
    deliver(one.box / ".Archive", MAIL[2], "cur", "FS")
    moved = deliver(one.box / ".Trash", MAIL[3], "cur", "F")
    one.start()
    one.rest()
    move(moved, one.box)
    one.rest()
    assert one.votes() == {}
    flag(other, "R")
    one.rest()
    assert one.votes() == {"anna 1": "ham"}


def test_the_daily_limit_counts_it(weighed):
    one = weighed(lessons_per_day=2)
    flagged = [deliver(one.box, raw) for raw in MAIL[:3]]
    moved = deliver(one.box, MAIL[3])
    one.rest()
    for message in flagged:
        flag(message, "F")
    one.rest()
    move(moved, one.box / ".Junk")
    one.rest()
    look(one)
    assert list(one.votes().values()) == ["ham", "ham"]


@pytest.mark.parametrize("what", ["the ledger", "whoever opens mailboxes"])
def test_trouble_loses_nothing(weighed, monkeypatch, what):
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.1)
    one = weighed()
    message = deliver(one.box, MAIL[0])
    one.rest()
    tried = []

    def fails(*_: object, **__: object) -> NoReturn:
        tried.append(True)
        raise (
            LedgerError("the disk is full")
            if what == "the ledger"
            else MailboxesError("it has ended")
        )

    with monkeypatch.context() as patched:
        patched.setattr(
            *((one.filter, "cast_votes") if what == "the ledger" else (one.mailboxes, "open_file")),
            fails,
        )
        flag(message, "F")
        one.turn_until(lambda: tried)
        assert one.votes() == {}
    one.turn_until(one.votes)
    assert one.votes() == {"anna 0": "ham"}
