"""The broker opens only messages of its own mailboxes, and outlives whatever clients send."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spamguard.config.options import Watch
from spamguard.folders import broker
from spamguard.folders.broker import BrokerSession
from spamguard.folders.maildir import (
    Changes,
    FileText,
    Folder,
    LocalMailboxes,
    Mailbox,
    MessageFile,
)
from tests.unit.folders.maildirs import maildir

SECONDS = 20.0  # generous


class Client:
    """A client that sends anything."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        channel.settimeout(SECONDS)

    def hear(self) -> tuple[object, int]:
        """A whole answer, and how many descriptors came with it; they are closed."""
        line, count = b"", 0
        while not line.endswith(b"\n"):
            piece, descriptors, _, _ = socket.recv_fds(self.channel, 1 << 16, 4)
            count += len(descriptors)
            for one in descriptors:
                os.close(one)
            assert piece, "it has hung up"
            line += piece
        return broker.unpack_answer(line), count


@contextmanager
def served(pattern: Path | str) -> Iterator[tuple[Client, list[Exception]]]:
    """A client that was greeted, and what has ended its session."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    ended: list[Exception] = []

    def run() -> None:
        with theirs, closing(LocalMailboxes([Watch(str(pattern))])) as mailboxes:
            try:
                BrokerSession(theirs, mailboxes).run("greeting")
            except (ValueError, OSError) as error:
                ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    with ours:
        client = Client(ours)
        assert client.hear() == ("greeting", 0)
        yield client, ended
        ours.shutdown(socket.SHUT_WR)
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "question",
    [
        b"\n",
        b"\0\n",
        b"users\n",
        b'"users"\n',
        b"[" * 30_000 + b"\n",
        b'["nonsense"]\n',
        b'["users", "more"]\n',
        b'["changes"]\n',
        b'["changes", "1"]\n',
        b'["changes", NaN]\n',
        b'["changes", ' + b"9" * 5000 + b"]\n",
        b'["open", [["anna", "/", "0"], ""], ["cur", "name"]]\n',
        b'["open", [["anna", "/", 0], "\\u0000"], ["cur", "name"]]\n',
        b'["open"]\n',
        b'["names", 0]\n',
        b'["folders", {"anna": "/"}]\n',
        b"x" * (broker.MAX_REQUEST_BYTES + 1),
    ],
    ids=lambda one: repr(one[:20]),
)
def test_who_says_what_makes_no_sense_is_sent_away(tmp_path, question):
    with served(maildir(tmp_path / "anna")) as (client, ended):
        client.channel.send(question)
        assert client.channel.recv(100) == b""
    assert isinstance(ended[0], ValueError)


# ---- what is said

quick = settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NAMES = st.binary(max_size=20).map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
MAILBOXES = st.builds(Mailbox, NAMES, NAMES, st.integers(0, 999_999))
PLACES = st.builds(Folder, MAILBOXES, NAMES)


def told(value: object) -> object:
    return broker.unpack_answer(broker.pack_answer(value))


CHANGES = st.builds(
    Changes, st.frozensets(PLACES), st.frozensets(MAILBOXES), st.booleans(), st.booleans()
)


@pytest.mark.slow
@quick
@given(st.dictionaries(NAMES, st.lists(NAMES)), st.dictionaries(NAMES, NAMES), CHANGES)
def test_values_come_through(names, words, changes):
    assert broker.parse(told(names), dict[FileText, list[FileText]]) == names
    assert broker.parse(told(words), dict[FileText, FileText]) == words
    assert broker.parse(told(changes), Changes) == changes


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda one: st.lists(one) | st.dictionaries(st.text(), one),
)
LINES = st.binary() | st.builds(broker.pack_answer, VALUES)


@pytest.mark.slow
@quick
@given(LINES)
def test_nonsense_is_an_error_and_nothing_else(line: bytes):
    kinds = (Changes, dict[FileText, list[FileText]], list[Mailbox], MessageFile, Folder)
    for kind in kinds:
        with suppress(ValueError):
            broker.parse(broker.unpack_answer(line), kind)
