"""One account, step by step: what happens just while we do something else is neither missed nor
told wrong.
"""

from __future__ import annotations

import imaplib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from spamguard.config.accounts import Mode
from spamguard.folders.maildir import Folder, MessageFile
from spamguard.imap.account import AccountWatch
from spamguard.imap.connection import ImapError
from spamguard.imap.hub import Hub
from spamguard.imap.judge import Answer, NoVerdictError
from spamguard.imap.mailboxes import ImapMailboxes
from tests.e2e import cyrus, imap_accounts
from tests.e2e.imap_accounts import append
from tests.e2e.moving import mail_program, move, needs_dovecot, sibling
from tests.support import imap_proxy
from tests.unit.imap.stage import whole

pytestmark = pytest.mark.slow


class Desk:
    """An account with a mail program, and what judges its mail."""

    def __init__(self, client: imaplib.IMAP4, make: Callable[[Desk], Hub]) -> None:
        self.client, self._make = client, make
        self.judge: Callable[[bytes], Answer] = lambda raw: Answer()
        append(client, sibling(1), sibling(2))
        self.hub = make(self)
        self.step(2)

    @property
    def watch(self) -> AccountWatch:
        return self.hub.watches[0]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.watch.step()

    def step_while_due(self) -> None:
        """As long as more is expected soon."""
        self.step()
        while self.watch.due < time.monotonic() + 10.0:
            self.step()

    def restart(self) -> None:
        self.hub.close()
        self.hub = self._make(self)

    def folder(self, mailboxes: ImapMailboxes, name: str) -> Folder:
        """A folder, whether dots or slashes part levels."""
        folders = mailboxes.list_folders(mailboxes.find_mailboxes()[0])
        return next(each for each in folders if each.directory.lstrip(".") == name)

    def names(self, mailboxes: ImapMailboxes, name: str) -> list[str]:
        return mailboxes.list_files(self.folder(mailboxes, name))["cur"]

    def read(self, mailboxes: ImapMailboxes, folder: str) -> list[bytes]:
        found = []
        for name in self.names(mailboxes, folder):
            file = MessageFile("cur", name)
            descriptor = mailboxes.open_file(self.folder(mailboxes, folder), file)
            with os.fdopen(descriptor, "rb") as stream:
                found.append(stream.read())
        return found


@pytest.fixture(
    params=[
        pytest.param(imap_accounts.server, marks=needs_dovecot, id="Dovecot"),
        pytest.param(cyrus.running, marks=cyrus.needs_cyrus, id="Cyrus"),
    ]
)
def proxy(request: pytest.FixtureRequest) -> Iterator[imap_proxy.ImapProxy]:
    with request.param() as server, imap_proxy.before(server.imap_port) as made:
        made.server = server  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def desk(proxy: imap_proxy.ImapProxy, tmp_path: Path) -> Iterator[Desk]:
    server = proxy.server  # type: ignore[attr-defined]
    account = imap_accounts.account(replace(server, imap_port=proxy.port), tmp_path, mode=Mode.LOOK)

    def make(here: Desk) -> Hub:
        return Hub(tmp_path, [account], lambda body, _: here.judge(whole(body)))

    with mail_program(server) as client:
        made = Desk(client, make)
        try:
            yield made
        finally:  # the present one: tests restart it
            made.hub.close()


def test_what_comes_while_others_are_judged(desk: Desk) -> None:
    judged = list[bytes]()

    def judge(raw: bytes) -> Answer:
        judged.append(raw)
        if len(judged) == 1:
            append(desk.client, sibling(13))
        return Answer()

    desk.judge = judge
    append(desk.client, sibling(11), sibling(12))
    desk.step_while_due()
    assert len(judged) == 3


def test_what_comes_into_junk_while_another_folder_is_read(desk: Desk) -> None:
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        append(desk.client, sibling(11))
        desk.step(2)
        move(desk.client, 11, "INBOX", "Archive")
        desk.watch._poll_at = 0.0
        desk.step(2)
        assert len(desk.read(mailboxes, "Archive")) == 1  # Junk is not open now
        append(desk.client, sibling(12), folder="Junk")
        desk.step_while_due()
        assert len(desk.names(mailboxes, "Junk")) == 1


def test_killed_before_a_change_is_looked_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    move(desk.client, 1, "INBOX", "Archive")

    def killed(*_: object) -> None:
        raise ImapError("killed", lost=True)

    desk.watch._poll_at = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(AccountWatch, "_look", killed)
        desk.step()
    desk.restart()
    desk.step(2)
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        assert len(desk.names(mailboxes, "")) == 1  # where it was before
        assert len(desk.read(mailboxes, "")) == 1


def test_old_mail_is_shown_where_it_was_until_the_watcher_has_noted_it(desk: Desk) -> None:
    move(desk.client, 1, "INBOX", "Junk")
    desk.step(3)
    for restart in (True, False):  # of this process; either time the watcher is killed
        with closing(desk.hub.open_mailboxes()) as mailboxes:
            assert desk.read(mailboxes, "") == [sibling(1)]
            assert desk.names(mailboxes, "Junk") == []
        if restart:
            desk.restart()
            desk.step(2)
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        assert len(desk.names(mailboxes, "")) == 1  # it is known there already
        mailboxes.wait_for_changes(0.01)
        assert desk.names(mailboxes, "") == []
        assert desk.read(mailboxes, "Junk") == [sibling(1)]


def test_a_new_watcher_that_cannot_read_what_a_killed_one_had_read(
    desk: Desk, proxy: imap_proxy.ImapProxy
) -> None:
    move(desk.client, 1, "INBOX", "Junk")
    desk.step(3)
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        assert desk.read(mailboxes, "") == [sibling(1)]
    desk.restart()
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        with pytest.raises(ConnectionError):
            desk.read(mailboxes, "")
        mailboxes.wait_for_changes(0.01)
        desk.step(2)
        assert desk.read(mailboxes, "") == [sibling(1)]


def test_many_come_just_when_uids_are_counted_anew(desk: Desk, proxy: imap_proxy.ImapProxy) -> None:
    judged = list[bytes]()

    def judge(raw: bytes) -> Answer:
        judged.append(raw)
        return Answer()

    desk.judge = judge
    append(desk.client, *map(sibling, range(11, 21)))
    desk.step_while_due()
    proxy.change = lambda line: line.replace(b"[UIDVALIDITY 17", b"[UIDVALIDITY 18")
    append(desk.client, *map(sibling, range(21, 51)))
    proxy.cut_all("anna")
    desk.step(2)
    desk.step_while_due()
    assert sorted(judged) == sorted(map(sibling, range(11, 51)))


def test_what_cannot_be_read_now_is_told_again(desk: Desk, proxy: imap_proxy.ImapProxy) -> None:
    append(desk.client, sibling(11))
    desk.step(2)
    desk.restart()  # nothing is in memory
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        with pytest.raises(ConnectionError):
            desk.read(mailboxes, "")
        desk.step(2)
        mailboxes.wait_for_changes(0)
        desk.step()
        proxy.cut_all("anna")
        with pytest.raises(OSError, match="connection"):
            desk.read(mailboxes, "")
        assert not mailboxes.wait_for_changes(0).folders
        desk.step(3)
        assert desk.folder(mailboxes, "") in mailboxes.wait_for_changes(0).folders
        assert desk.read(mailboxes, "") == [sibling(11)]


def test_no_body_is_fetched_twice(desk: Desk, proxy: imap_proxy.ImapProxy) -> None:
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        append(desk.client, sibling(11))
        move(desk.client, 1, "INBOX", "Junk")
        desk.step(3)
        assert len(desk.read(mailboxes, "")) == 2
        mailboxes.wait_for_changes(0.01)
        desk.step()
        assert desk.read(mailboxes, "Junk") == [sibling(1)]
    fetched = [command for _, command in proxy.commands if "BODY.PEEK[]" in command]
    assert len(fetched) == 2


def test_large_message_whose_last_piece_is_full(desk: Desk) -> None:
    judged, raw = list[bytes](), sibling(11)
    lines = b"x" * 62 + b"\r\n"
    raw += b"y" * (-len(raw) % 64 - 2 + 64 * (len(raw) % 64 > 62)) + b"\r\n"
    raw += lines * ((2 << 20) // 64 - len(raw) // 64)

    def judge(given: bytes) -> Answer:
        judged.append(given)
        return Answer()

    desk.judge = judge
    append(desk.client, raw)
    desk.step_while_due()
    assert (len(raw), judged) == (2 << 20, [raw])


def test_mail_that_went_elsewhere_before_it_was_judged(desk: Desk) -> None:
    def closed(raw: bytes) -> Answer:
        raise NoVerdictError("closed")

    desk.judge = closed
    append(desk.client, sibling(11))
    desk.watch._poll_at = 0.0
    desk.step()
    assert desk.watch.records.numbers("")["waiting"] == 1
    move(desk.client, 11, "INBOX", "Archive")
    desk.watch._poll_at = 0.0
    desk.judge = lambda raw: Answer()
    desk.step(2)
    assert desk.watch.status.waiting == 0
    with closing(desk.hub.open_mailboxes()) as mailboxes:
        assert desk.read(mailboxes, "Archive") == [sibling(11)]


def test_new_mail_after_a_restart_without_changes(desk: Desk, proxy: imap_proxy.ImapProxy) -> None:
    desk.restart()
    desk.step_while_due()
    assert len(desk.watch.line.sockets()) == 2
    assert ("anna", 'EXAMINE "INBOX"') in proxy.commands


def test_a_connection_that_is_lost_during_the_login(
    desk: Desk, proxy: imap_proxy.ImapProxy
) -> None:
    proxy.cut_all("anna")
    proxy.cut_after("anna", 1)
    desk.step(2)
    assert proxy.cuts == 1
    assert desk.watch.due < time.monotonic() + 100  # not as long as after a refusal
    desk.step()
    assert desk.watch.status.trouble == ""
