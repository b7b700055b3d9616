"""Mailboxes by way of a broker, which may go and come back, be another one, or never have been
there.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from spamguard import process
from spamguard.config.options import Watch
from spamguard.errors import MailboxesError
from spamguard.folders import broker
from spamguard.folders.broker import BrokerSession, RemoteMailboxes
from spamguard.folders.maildir import Changes, Folder, LocalMailboxes, Mailbox, MessageFile
from tests.unit.folders.maildirs import deliver, maildir


class Opener:
    """A broker for one client at a time, which can be stopped and started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listening: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def start(self, watches: Sequence[Watch]) -> None:
        self._listening = process.listen_at(self.path, 0o600)
        self._threads.append(threading.Thread(target=self._serve, args=(self._listening, watches)))
        self._threads[-1].start()

    def _serve(self, listening: socket.socket, watches: Sequence[Watch]) -> None:
        with suppress(OSError):  # it is shut down
            while True:
                self._channel, _ = listening.accept()
                with self._channel, closing(LocalMailboxes(watches)) as mailboxes:
                    BrokerSession(self._channel, mailboxes).run(broker.fingerprint_watches(watches))

    def end(self) -> None:
        for one in (self._listening, self._channel):
            with suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        if self._listening is not None:
            self._listening.close()


@pytest.fixture
def opener() -> Iterator[Opener]:
    with TemporaryDirectory() as directory:  # tmp_path is too long for a socket
        found = Opener(Path(directory) / "socket")
        yield found
        found.end()


def test_it_may_go_and_come_back(opener, tmp_path):
    box = maildir(tmp_path / "anna")
    message, watches = deliver(box, b"one"), [Watch(str(box))]
    opener.start(watches)
    with closing(RemoteMailboxes(opener.path, watches)) as mailboxes:
        (mailbox,) = mailboxes.find_mailboxes()
        place = Folder(mailbox)
        assert mailboxes.wait_for_changes(0.01) == Changes()
        opener.end()
        assert mailboxes.wait_for_changes(5.0) == Changes(everything=True), "it has gone"
        questions = (
            lambda: mailboxes.list_files(place),
            lambda: mailboxes.list_folders(mailbox),
            lambda: mailboxes.open_file(place, MessageFile("new", message.name)),
        )
        for ask in questions:
            with pytest.raises(MailboxesError):
                ask()
        opener.start(watches)
        with pytest.raises(MailboxesError, match="it has ended"):
            # whoever did not say what is watched would be told that it is not there
            mailboxes.list_files(place)
        assert mailboxes.find_mailboxes() == [mailbox]
        assert mailboxes.wait_for_changes(0.01) == Changes(everything=True), "it is back"
        assert mailboxes.list_files(place)["new"] == [message.name]
        os.close(mailboxes.open_file(place, MessageFile("new", message.name)))


def test_it_must_have_the_same_watches(opener, tmp_path):
    one, other = Watch(str(maildir(tmp_path / "one"))), Watch(str(maildir(tmp_path / "other")))
    opener.start([other, one])
    for ours in ([one, other], [one], []):
        with closing(RemoteMailboxes(opener.path, ours)) as mailboxes:
            with pytest.raises(
                MailboxesError,
                match="its `watch` is not ours, or its version: systemctl restart spamguard-watch",
            ):
                mailboxes.find_mailboxes()
            assert mailboxes.wait_for_changes(0.01) == Changes()


@contextmanager
def answering(path: Path, send: Callable[[socket.socket], object]) -> Iterator[RemoteMailboxes]:
    """A client of a broker that greets it, and answers its first question like this."""

    def serve() -> None:
        with listening.accept()[0] as channel:
            channel.send(broker.pack_answer(broker.fingerprint_watches([])))
            channel.recv(100)
            send(channel)

    thread = threading.Thread(target=serve)
    with process.listen_at(path, 0o600) as listening:
        thread.start()
        with closing(RemoteMailboxes(path, [])) as mailboxes:
            yield mailboxes
            thread.join()


NONSENSE = (
    b"",
    b"?\n",
    b'["answer", []]',
    b'["answer"]\n',
    b'["error", 2, "no"]\n',
    b'["answer", [["anna", "/"]]]\n',
    b'["answer", [["anna", "/", "0"]]]\n',
    b'["answer", [["anna", "/\\u0000", 0]]]\n',
    b"[" * 50_000 + b"\n",
)


@pytest.mark.parametrize("answer", NONSENSE, ids=lambda one: repr(one[:40]))
def test_an_answer_that_makes_no_sense(opener, answer):
    with (
        answering(opener.path, lambda channel: channel.send(answer)) as mailboxes,
        pytest.raises(MailboxesError),
    ):
        mailboxes.find_mailboxes()


@pytest.mark.parametrize(
    "answers", [[b"?\n"], [b'["error", 2, "no", ""]\n'], [b'["answer",', b" null]\n"]], ids=repr
)
def test_files_that_come_with_an_answer_that_makes_no_sense_are_closed(opener, answers):
    given, ours = os.pipe()

    def send(channel: socket.socket) -> None:
        for answer in answers:
            socket.send_fds(channel, [answer], [given])

    with (
        answering(opener.path, send) as mailboxes,
        pytest.raises((MailboxesError, OSError)),
    ):
        mailboxes.open_file(Folder(Mailbox("anna", "/anna", 0)), MessageFile("new", "x"))
    os.close(given)
    with closing(os.fdopen(ours, "wb", buffering=0)) as pipe, pytest.raises(BrokenPipeError):
        pipe.write(b"x")  # somebody could still read it
