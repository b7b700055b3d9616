"""People's mailboxes by way of the process that may open them: this one then needs no right to anybody's files.

That process may end and come back at any time. Until then every question is a `MailboxesError`, which is about no mailbox; when it is
back, that is told as changes to everything, as nobody knows what was missed.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from spamguard.errors import MailboxesError
from spamguard.folders import protocol
from spamguard.folders.contract import Changes, File, Mailbox, Place
from spamguard.folders.protocol import ProtocolError
from spamguard.settings import Watch

_GREETING_SECONDS = 30.0
_ANSWER_SECONDS = 300.0  # disks may be slow
_AGAIN_SECONDS = 1.0  # between two attempts to connect
_LONGEST_WAIT = 240.0  # seconds for changes, in one question: less than for an answer
_AT_ONCE = 64 << 10  # bytes
_REMEDY = "start spamguard-watch.service (`spamguard open-mailboxes`), or see its log"
_OTHER = "its `watch` is not ours, or its version: systemctl restart spamguard-watch"

Found = TypeVar("Found")


class RemoteMailboxes:
    """`contract.Mailboxes` at a socket. watches: of our own configuration; the other side must have the same, in the same order."""

    def __init__(self, path: Path, watches: Sequence[Watch]) -> None:
        self._path = path
        self._fingerprint = protocol.fingerprint(watches)
        self._channel: socket.socket | None = None
        with suppress(MailboxesError):  # it may come yet
            self._connect()
        self._missed = False  # whether to tell that nobody knows what has changed; who has only begun has missed nothing

    def users(self) -> list[Mailbox]:
        """As `contract.Mailboxes.users`."""
        if self._channel is None:
            self._connect()
        return self._ask(protocol.mailboxes, "users")

    def closed(self) -> dict[str, str]:
        """As `contract.Mailboxes.closed`."""
        return self._ask(protocol.words, "closed")

    def folders(self, mailbox: Mailbox) -> list[Place]:
        """As `contract.Mailboxes.folders`."""
        return [Place(mailbox, directory) for directory in self._ask(protocol.texts, "folders", mailbox)]

    def names(self, place: Place) -> dict[str, list[str]]:
        """As `contract.Mailboxes.names`."""
        return self._ask(protocol.names, "names", place)

    def keywords(self, place: Place) -> dict[str, str]:
        """As `contract.Mailboxes.keywords`."""
        return self._ask(protocol.words, "keywords", place)

    def open(self, place: Place, file: File) -> int:
        """As `contract.Mailboxes.open`."""
        with self._answer("open", place, file) as (_, descriptors):
            if len(descriptors) != 1:
                raise self._lost("an answer without what was asked for")
            return descriptors.pop()

    def changes(self, timeout: float) -> Changes:
        """As `contract.Mailboxes.changes`; never a MailboxesError: that the other side has gone, or is back, changes everything."""
        if self._channel is None and not self._came_back(timeout):
            return Changes()
        if self._missed:
            self._missed = False
            return Changes(everything=True)
        try:
            return self._ask(protocol.changes, "changes", round(min(timeout, _LONGEST_WAIT) * 1000))
        except MailboxesError:
            return Changes(everything=True)

    def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # ----

    def _came_back(self, timeout: float) -> bool:
        """Whether it did within so many seconds."""
        until = time.monotonic() + timeout
        while True:
            with suppress(MailboxesError):
                self._connect()
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _AGAIN_SECONDS))

    def _connect(self) -> None:
        """MailboxesError."""
        self._channel, self._missed = socket.socket(socket.AF_UNIX), True
        self._channel.settimeout(_GREETING_SECONDS)
        try:
            self._channel.connect(str(self._path))
        except OSError as error:
            older = error.errno == errno.EPROTOTYPE  # it speaks in packets
            raise self._lost(_OTHER if older else error.strerror or str(error)) from error
        try:
            served = self._ask(protocol.text)
        except OSError as error:
            raise self._lost(f"it refuses: {error.strerror}") from error
        self._channel.settimeout(_ANSWER_SECONDS)
        if served != self._fingerprint:
            raise self._lost(_OTHER)

    def _ask(self, understand: Callable[[object], Found], *question: object) -> Found:
        """What was answered. OSError: what the other side was told when it tried. MailboxesError: there is no other side."""
        with self._answer(*question) as (found, _):
            return understand(found)

    @contextmanager
    def _answer(self, *question: object) -> Iterator[tuple[object, list[int]]]:
        """To a question, if there is one; with descriptors that are closed unless they are taken out. Errors as of `_ask`."""
        descriptors: list[int] = []
        try:
            yield protocol.found(self._line(question, descriptors)), descriptors
        except ProtocolError as error:
            raise self._lost(f"an answer that makes no sense ({error})") from error
        finally:
            for one in descriptors:
                os.close(one)

    def _line(self, question: Sequence[object], descriptors: list[int]) -> bytes:
        """What is said to it. descriptors: gets those that come with that. MailboxesError."""
        if self._channel is None:
            raise self._lost("it has ended")
        line = bytearray()
        try:
            if question:
                self._channel.sendall(protocol.pack(*question))
            while not line.endswith(b"\n"):
                piece, some, _, _ = socket.recv_fds(self._channel, _AT_ONCE, 1, socket.MSG_CMSG_CLOEXEC)
                descriptors += some
                line += piece
                if not piece:
                    raise self._lost("it has ended")
                if len(line) > protocol.MOST:
                    raise self._lost("an answer without end")
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        return bytes(line)

    def _lost(self, why: str) -> MailboxesError:
        """The error to raise, once the connection is given up."""
        self.close()
        self._missed = True
        return MailboxesError(f"{self._path}: nobody opens mailboxes there for us ({why}): {_REMEDY}")
