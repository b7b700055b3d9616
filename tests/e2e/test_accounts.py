"""Mail that is reached by IMAP only: judged, moved, and learnt from, on a real Dovecot."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.imap.status import read_status
from tests.e2e import imap_accounts
from tests.e2e.daemon import command, unseen
from tests.e2e.imap_accounts import append
from tests.e2e.moving import mail_program, move, needs_dovecot, ok, said, sibling
from tests.support.waiting import eventually

pytestmark = [needs_dovecot, pytest.mark.slow]

NAME = "anna@example.net"


def ready(state: Path) -> None:
    eventually((state / "accounts" / "sightings.sqlite").exists, "the watcher runs")
    eventually(lambda: NAME in read_status(state), "the status is known")
    eventually(lambda: read_status(state)[NAME].connected_since, "it is connected")


def judged(state: Path, count: int) -> None:
    eventually(lambda: read_status(state)[NAME].judged == count, f"{count} are judged")


def test_look(state: Path) -> None:
    with (
        imap_accounts.server() as server,
        mail_program(server) as client,
    ):
        append(client, sibling(1), sibling(2))
        with imap_accounts.running(state, server, "anna", mode="look") as running:
            ready(state)
            running.lines("seen for the first time")
            spam, ham = unseen("spam", 1), unseen("ham", 1)
            append(client, *spam, *ham)
            judged(state, 2)
            assert read_status(state)[NAME].spam == 1
            eventually(lambda: len(command(state, "history").splitlines()) >= 2, "all is known")
            assert "spam" in command(state, "history")
            ok(client.select("INBOX"))
            assert client.uid("SEARCH", "ALL")[1] == [b"1 2 3 4"]
            assert client.uid("SEARCH", "SEEN")[1] == [b""]
            move(client, 1, "INBOX", "Junk")
            running.lines("lesson user=anna@example.net from='INBOX' to='Junk' class=spam")
        assert said(state) == {NAME: "spam"}


def test_move(state: Path) -> None:
    with imap_accounts.server() as server, mail_program(server) as client:
        append(client, sibling(1))
        with imap_accounts.running(state, server, "anna") as running:
            ready(state)
            running.lines("seen for the first time")
            append(client, *unseen("spam", 4), *unseen("ham", 2))
            judged(state, 6)
            count = read_status(state)[NAME].spam
            assert count > 1
            eventually(lambda: read_status(state)[NAME].moved == count, "spam is moved")
            assert len(imap_accounts.names(server, "anna", "Junk")) == count
            assert len(imap_accounts.names(server, "anna", "INBOX")) == 7 - count
            ok(client.select("Junk"))
            ok(client.uid("MOVE", "1", "INBOX"))
            running.lines("from='Junk' to='INBOX' class=ham")
            move(client, 1, "INBOX", "Junk")
            running.lines("from='INBOX' to='Junk' class=spam")
        assert said(state) == {NAME: "ham spam"}
        assert len(imap_accounts.names(server, "anna", "INBOX")) == 7 - count
