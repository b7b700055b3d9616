"""Answers to one client about people's mailboxes, and descriptors of the messages in them. Runs with rights that nothing else has.

Believes nothing it is told: which mailboxes there are follows from patterns of its own, and only of these it lists folders and opens
regular files in `new` and `cur`, to be read. Must never parse mail, write anywhere, or wait for a client that does not listen.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from os import close

from spamguard.folders import protocol
from spamguard.folders.contract import Changes, Mailbox, Mailboxes, Place
from spamguard.folders.protocol import ProtocolError

LONGEST_WAIT = 3600.0  # seconds for changes
_SLICE = 5.0  # seconds between two looks whether a client that waits for changes is still there
_SEND_SECONDS = 60  # that a client may take for a piece of an answer
_TIME = struct.Struct("ll")  # SO_SNDTIMEO of socket(7): seconds and microseconds


class Session:
    """One client. mailboxes: those it may ask about; they stay the caller's, and should be nobody else's: changes are told once."""

    def __init__(self, channel: socket.socket, mailboxes: Mailboxes) -> None:
        channel.settimeout(None)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(_SEND_SECONDS, 0))
        self._channel = channel
        self._mailboxes = mailboxes
        self._known: frozenset[Mailbox] | None = None

    def run(self, fingerprint: str) -> None:
        """Until the client goes. ProtocolError: it says what makes no sense. OSError: it does not listen."""
        self._say(fingerprint)
        with self._channel.makefile("rb") as lines:
            while line := lines.readline(protocol.LONGEST_QUESTION + 1):
                if len(line) > protocol.LONGEST_QUESTION:
                    raise ProtocolError("the question is too long")
                self._answer(protocol.unpack(line))

    def _answer(self, question: list[object]) -> None:
        try:
            found = self._found(question)
        except OSError as error:
            if isinstance(error, ConnectionError) and self._gone():
                raise
            self._channel.sendall(protocol.refusal(error))
            return
        if isinstance(found, int):
            self._hand_over(found)
        else:
            self._say(found)

    def _say(self, found: object) -> None:
        line = protocol.answer(found)
        if len(line) > protocol.MOST:
            line = protocol.refusal(OSError(errno.EFBIG, "there is more than an answer may hold"))
        self._channel.sendall(line)

    def _hand_over(self, descriptor: int) -> None:
        try:
            socket.send_fds(self._channel, [protocol.answer(None)], [descriptor])
        finally:
            close(descriptor)

    # ---- questions

    def _found(self, question: list[object]) -> object:
        """The answer; a number: the descriptor to be handed over. OSError: there is none. ProtocolError: it is no question."""
        ours = self._mailboxes
        found: object
        match question:
            case ["users"]:
                found = self._users()
            case ["closed"]:
                found = dict(ours.closed())
            case ["folders", mailbox]:
                found = [place.directory for place in ours.folders(self._checked(protocol.mailbox(mailbox)))]
            case ["names", place]:
                found = dict(ours.names(self._place(place)))
            case ["keywords", place]:
                found = dict(ours.keywords(self._place(place)))
            case ["open", place, file]:
                found = ours.open(self._place(place), protocol.file(file))
            case ["changes", int(milliseconds)]:
                found = protocol.of_changes(self._changes(max(0, min(milliseconds, LONGEST_WAIT * 1000)) / 1000))
            case _:
                raise ProtocolError("it is no question")
        return found

    def _users(self) -> list[Mailbox]:
        found = list(self._mailboxes.users())
        self._known = frozenset(found)
        return found

    def _changes(self, seconds: float) -> Changes:
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            found = self._mailboxes.changes(min(left, _SLICE))
            if found != Changes() or left <= _SLICE:
                return found
            if self._gone():
                raise ConnectionResetError("the client has gone")

    def _place(self, value: object) -> Place:
        place = protocol.place(value)
        self._checked(place.mailbox)
        return place

    def _checked(self, mailbox: Mailbox) -> Mailbox:
        """A path below the fixed part of a pattern is not enough: it must be one of those that were found there."""
        if self._known is None:
            self._users()
        if mailbox not in (self._known or ()):
            raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)
        return mailbox

    def _gone(self) -> bool:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)  # who waits for an answer says nothing: it can only be the end
        return bool(poller.poll(0))
