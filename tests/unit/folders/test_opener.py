"""What only those who open mailboxes themselves must see to; what everybody promises is in tests/contract/test_mailboxes.py."""

from __future__ import annotations

from contextlib import closing

from spamguard.folders import watches
from spamguard.folders.opener import LocalMailboxes, Pattern
from tests.contract.test_mailboxes import drained, everything, told
from tests.unit.folders.maildirs import maildir


def test_a_maildir_that_goes_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(watches, "POLL_SECONDS", 0.05)
    box = maildir(tmp_path / "state" / "Maildir", ".Junk")
    with closing(LocalMailboxes([Pattern(str(box))])) as mailboxes:
        assert len(next(iter(everything(mailboxes).values()))) == 2
        box.rename(tmp_path / "away")
        assert mailboxes.users() == []
        drained(mailboxes, True)
        (tmp_path / "away").rename(box)
        assert told(mailboxes).users
        assert len(next(iter(everything(mailboxes).values()))) == 2
        assert not mailboxes._watches._polled
