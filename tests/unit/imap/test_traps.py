"""What servers were seen to do otherwise: each is met once, by a server that does it."""

from __future__ import annotations

import pytest

from spamguard.config.accounts import Mode
from tests.support import scripted_imap
from tests.support.scripted_imap import Ways
from tests.unit.imap.stage import cheap, letter, look, stage

PROVIDERS = {
    "Gmail": scripted_imap.GMAIL,
    "iCloud": scripted_imap.ICLOUD,
    "Exchange": scripted_imap.EXCHANGE,
    "NetEase": scripted_imap.NETEASE,
    "with EMAILID": scripted_imap.OBJECTS,
    "names as literals": Ways(literals=True),
}


@pytest.fixture(params=PROVIDERS)
def ways(request):
    return PROVIDERS[request.param]


def junk(server):
    return next(name for name in server.folders if "Junk" in name or "Spam" in name)


def test_spam_is_moved_once_and_what_comes_back_stays(ways, tmp_path):
    with stage(ways, tmp_path) as (server, watch):
        old = server.deliver(cheap(1), year=2000)
        look(watch)
        spam, ham = server.deliver(cheap(2)), server.deliver(letter(3))
        look(watch)
        moved = [junk(server)]
        assert server.lies(spam) == moved
        assert server.lies(old) == server.lies(ham) != moved
        assert (watch.status.judged, watch.status.spam, watch.status.moved) == (2, 1, 1)
        server.move(spam, junk(server), "INBOX")
        look(watch)
        assert server.lies(spam) == ["INBOX"]
        assert watch.status.judged == 2


def test_a_mode_that_looks_writes_nothing(ways, tmp_path):
    with stage(ways, tmp_path, mode=Mode.LOOK) as (server, watch):
        look(watch)
        spam = server.deliver(cheap(1))
        look(watch)
        assert "INBOX" in server.lies(spam)
        assert (watch.status.judged, watch.status.spam, watch.status.moved) == (1, 1, 0)
