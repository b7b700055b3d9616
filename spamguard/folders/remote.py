"""People's mailboxes by way of the process that may open them: this one then needs no right to anybody's files.

That process may end and come back at any time. Until then every question is a `MailboxesError`, which is about no mailbox; when it is
back, that is told as changes to everything, as nobody knows what was missed.
"""

from __future__ import annotations

import array
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TypeVar

from spamguard.errors import MailboxesError
from spamguard.folders import packets
from spamguard.folders.contract import Changes, File, Mailbox, Place
from spamguard.folders.opener import Pattern
from spamguard.folders.packets import PacketError

_GREETING_SECONDS = 30.0
_ANSWER_SECONDS = 300.0  # disks may be slow
_AGAIN_SECONDS = 1.0  # between two attempts to connect
_LONGEST_WAIT = 240.0  # seconds for changes, in one question: less than for an answer
_AHEAD = 32  # files that are asked for at once, if it is known that they will be opened
_ROOM = socket.CMSG_SPACE(array.array("i").itemsize)  # for one descriptor
_REMEDY = "start spamguard-watch.service (`spamguard open-mailboxes`), or see its log"

Found = TypeVar("Found")


class RemoteMailboxes:
    """`contract.Mailboxes` at a socket. patterns: of our own configuration; the other side must have the same, in the same order."""

    def __init__(self, path: Path, patterns: Sequence[Pattern]) -> None:
        self._path = path
        self._fingerprint = packets.fingerprint((one.path, one.user) for one in patterns)
        self._channel: socket.socket | None = None
        self._expected: deque[tuple[Place, File]] = deque()
        self._asked: deque[tuple[Place, File]] = deque()  # to open, without having heard the answers
        with suppress(MailboxesError):  # it may come yet
            self._connect()
        self._missed = False  # whether to tell that nobody knows what has changed; who has only begun has missed nothing

    def users(self) -> list[Mailbox]:
        """As `contract.Mailboxes.users`."""
        if self._channel is None:
            self._connect()
        return self._ask(packets.mailboxes, "users")

    def closed(self) -> dict[str, str]:
        """As `contract.Mailboxes.closed`."""
        return self._ask(packets.pairs, "closed")

    def folders(self, mailbox: Mailbox) -> list[Place]:
        """As `contract.Mailboxes.folders`."""
        found = self._ask(list, "folders", *packets.of_mailboxes([mailbox]))
        return [Place(mailbox, directory) for directory in found]

    def names(self, place: Place) -> dict[str, list[str]]:
        """As `contract.Mailboxes.names`."""
        return self._ask(packets.names, "names", *packets.of_place(place))

    def keywords(self, place: Place) -> dict[str, str]:
        """As `contract.Mailboxes.keywords`."""
        return self._ask(packets.pairs, "keywords", *packets.of_place(place))

    def expect(self, messages: Iterable[tuple[Place, File]]) -> None:
        """As `contract.Mailboxes.expect`: else both sides would wait for one another at every message."""
        self._hear_out()
        self._expected = deque(messages)

    def open(self, place: Place, file: File) -> int:
        """As `contract.Mailboxes.open`."""
        if next(chain(self._asked, self._expected), None) != (place, file):
            self.expect([(place, file)])
        if len(self._asked) <= _AHEAD // 2:
            while self._expected and len(self._asked) < _AHEAD:
                self._say("open", *packets.of_message(*self._expected[0]))
                self._asked.append(self._expected.popleft())
        self._asked.popleft()
        descriptors: list[int] = []
        try:
            self._answer(list, descriptors)
            if len(descriptors) != 1:
                raise self._lost("an answer without what was asked for")
        except BaseException:
            for one in descriptors:
                os.close(one)
            raise
        return descriptors[0]

    def changes(self, timeout: float) -> Changes:
        """As `contract.Mailboxes.changes`; never a MailboxesError: that the other side has gone, or is back, changes everything."""
        if self._channel is None and not self._came_back(timeout):
            return Changes()
        if self._missed:
            self._missed = False
            return Changes(everything=True)
        waited = str(round(min(timeout, _LONGEST_WAIT) * 1000))
        try:
            return self._ask(packets.changes, "changes", waited)
        except MailboxesError:
            return Changes(everything=True)

    def close(self) -> None:
        """Hang up."""
        self._asked.clear()
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
        self._channel, self._missed = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), True
        self._channel.settimeout(_GREETING_SECONDS)
        try:
            self._channel.connect(str(self._path))
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        try:
            served = self._answer(list)
        except OSError as error:
            raise self._lost(f"it refuses: {error.strerror}") from error
        self._channel.settimeout(_ANSWER_SECONDS)
        if served != [self._fingerprint]:
            raise self._lost("its `watch` is not ours, or its version: systemctl restart spamguard-watch")

    def _ask(self, understand: Callable[[Sequence[str]], Found], verb: str, *values: str) -> Found:
        """What was answered. OSError: what the other side was told when it tried. MailboxesError: there is no other side."""
        self._hear_out()
        self._say(verb, *values)
        return self._answer(understand)

    def _hear_out(self) -> None:
        """Answers to what is no longer wanted."""
        while self._asked and self._channel is not None:
            self._asked.popleft()
            with suppress(OSError, MailboxesError):
                self._answer(list)

    def _say(self, verb: str, *values: str) -> None:
        if self._channel is None:
            raise self._lost("it has ended")
        try:
            self._channel.send(packets.pack([verb, *values]))
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error

    def _answer(self, understand: Callable[[Sequence[str]], Found], descriptors: list[int] | None = None) -> Found:
        received = bytearray()
        mark = packets.MORE
        while mark == packets.MORE:
            packet = self._received(descriptors)
            mark = packet[:1]
            received += packet[1:]
            if len(received) > packets.MOST:
                raise self._lost("an answer without end")
        try:
            values = packets.unpack(bytes(received))
            if mark == packets.LAST:
                return understand(values)
            raise packets.refused(values)
        except PacketError as error:
            raise self._lost(f"an answer that makes no sense ({error})") from error

    def _received(self, descriptors: list[int] | None) -> bytes:
        """One packet. MailboxesError: there is none to come."""
        assert self._channel is not None  # noqa: S101  # for the type checker: only who has just asked is answered
        try:
            packet, others, flags, _ = self._channel.recvmsg(packets.LONGEST_ANSWER, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        found = [number for _, _, data in others for number in array.array("i", data)]
        if descriptors is None or len(found) > 1:
            for one in found:
                os.close(one)
        else:
            descriptors += found
        if not packet or flags & socket.MSG_TRUNC:
            raise self._lost("it has ended")
        return packet

    def _lost(self, why: str) -> MailboxesError:
        """The error to raise, once the connection is given up."""
        self.close()
        self._missed = True
        return MailboxesError(f"{self._path}: nobody opens mailboxes there for us ({why}): {_REMEDY}")
