"""Users who move mail in a real Dovecot by IMAP, a daemon that watches their Maildirs, and its
votes.
"""

from __future__ import annotations

import imaplib
import random
import shutil
import smtplib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from spamguard.folders.sightings import SIGHTINGS_FILE, Sightings
from spamguard.records import Vote
from tests.e2e import daemon
from tests.e2e.daemon import Daemon
from tests.e2e.dovecot import Dovecot
from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE, eventually

needs_dovecot = pytest.mark.skipif(
    shutil.which("dovecot") is None,
    reason="needs Dovecot: apt-get install dovecot-lmtpd dovecot-imapd",
)
SECONDS = 60.0  # generous
_FIRST = (
    "velvet",
    "umbrella",
    "harvest",
    "lantern",
    "glacier",
    "orchid",
    "saddle",
    "copper",
    "mosaic",
    "thimble",
)
_WORDS = (
    *_FIRST,
    "walnut",
    "ribbon",
    "canyon",
    "puzzle",
    "meadow",
    "trumpet",
    "cactus",
    "falcon",
    "pepper",
    "anchor",
)

MOVED = (11, 12, 13)  # of a campaign; enough to be sure of the next


def sibling(number: int) -> bytes:
    """One of a campaign that the filter has never heard of."""
    words = random.Random(number).sample(_WORDS, len(_WORDS))
    head = (
        f"Message-ID: <{number}@offers.example>\r\nFrom: Offers <news@offers.example>\r\n"
        "To: anna@example.net\r\n"
        f"Date: Fri, 20 Nov 2026 10:{number // 60:02}:{number % 60:02} +0000\r\n"
        f"Subject: {' '.join(words[:3])}\r\n\r\n"
    )
    return f"{head}{' '.join(words)}\r\n{' '.join(reversed(words))}\r\nnumber {number}\r\n".encode()


def seen(state: Path, mailbox: Path, folder: str = "") -> int:
    """How many messages of a folder the watcher knows."""
    if not (state / SIGHTINGS_FILE).exists():
        return 0
    with Sightings.open(state / SIGHTINGS_FILE) as sightings:
        return (
            len(sightings.name_keys(str(mailbox), folder))
            if sightings.is_scanned(str(mailbox))
            else 0
        )


def all_seen(state: Path, mailbox: Path, count: int, folder: str = "") -> None:
    eventually(
        lambda: seen(state, mailbox, folder) == count,
        f"{count} messages of {mailbox} {folder} are known",
        SECONDS,
    )


def votes(state: Path) -> list[Vote]:
    """Those in force that folders have cast, in the order in which they were."""
    with Filter.open(state) as spam_filter:
        last = {
            (vote.digest, vote.user): vote
            for vote in spam_filter.ledger.all_votes()
            if vote.origin.startswith(("folder ", "evidence "))
        }
    return [vote for vote in last.values() if vote.label is not None]


def said(state: Path) -> dict[str, str]:
    """The labels of all votes, by user, sorted."""
    found: dict[str, list[str]] = {}
    for vote in votes(state):
        found.setdefault(vote.user, []).append(str(vote.label))
    return {user: " ".join(sorted(labels)) for user, labels in found.items()}


@contextmanager
def mail_program(server: Dovecot, user: str = "anna") -> Iterator[imaplib.IMAP4]:
    client = imaplib.IMAP4("127.0.0.1", server.imap_port)
    client._encoding = "utf-8"  # names of people are what they are
    client.login(f'"{user}"', "anything")
    try:
        yield client
    except BaseException:
        client.shutdown()  # the connection may have ended
        raise
    client.logout()


def move(client: imaplib.IMAP4, number: int, source: str, target: str) -> None:
    ok(client.select(source))
    ok(client.uid("MOVE", uid(client, number), target))


def copy(client: imaplib.IMAP4, number: int, source: str, target: str) -> None:
    ok(client.select(source))
    name = uid(client, number)
    ok(client.uid("COPY", name, target))
    ok(client.uid("STORE", name, "+FLAGS", r"(\Deleted)"))
    ok(client.expunge())


def append(client: imaplib.IMAP4, number: int, source: str, target: str) -> None:
    """Move as between two accounts: fetch the message, append it, and delete the first one."""
    ok(client.select(source))
    name = uid(client, number)
    raw = client.uid("FETCH", name, "(BODY.PEEK[])")[1][0]
    assert isinstance(raw, tuple)
    ok(client.append(target, r"(\Seen)", "", raw[1]))
    ok(client.uid("STORE", name, "+FLAGS", r"(\Deleted)"))
    ok(client.expunge())


def uid(client: imaplib.IMAP4, number: int) -> str:
    found = client.uid("SEARCH", "HEADER", "Message-ID", f"<{number}@offers.example>")[1][
        0
    ].decode()
    assert found, f"no message {number}"
    return str(found)


def ok(answer: tuple[str, object]) -> None:
    assert answer[0] == "OK", answer


@contextmanager
def watching(state: Path, server: Dovecot) -> Iterator[tuple[Daemon, int]]:
    """The daemon in front of Dovecot, its eye on everybody's Maildir; and its port."""
    port = free_port()
    hop = f"lmtp:{server.lmtp_socket}"
    line = daemon.one_listener(state, port, hop, f"{server.root}/mail/*")
    with daemon.running(state, *line, port=port) as running:
        yield running, port


def send(port: int, *messages: bytes, to: str = "anna@example.net") -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
        for raw in messages:
            client.sendmail("news@offers.example", [to], raw)
