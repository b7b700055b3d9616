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
from collections.abc import Callable, Mapping, Sequence
from os import close

from spamguard.folders import packets
from spamguard.folders.contract import Changes, Mailbox, Mailboxes, Place
from spamguard.folders.packets import PacketError

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
        """Until the client goes. PacketError: it says what makes no sense. OSError: it does not listen."""
        self._send([fingerprint])
        while question := self._channel.recv(packets.LONGEST_QUESTION + 1):
            if len(question) > packets.LONGEST_QUESTION:
                raise PacketError("the question is too long")
            verb, *values = packets.unpack(question) or [""]
            if verb not in _VERBS:
                raise PacketError("it is no question")
            self._answer(_VERBS[verb], values)

    def _answer(self, find: _Find, values: Sequence[str]) -> None:
        try:
            found = find(self, values)
        except ConnectionError:
            raise
        except OSError as error:
            self._channel.send(packets.refusal(error))
            return
        if isinstance(found, int):
            self._hand_over(found)
        else:
            self._send(found)

    def _send(self, values: Sequence[str]) -> None:
        for packet in packets.answer(values):
            self._channel.send(packet)

    def _hand_over(self, descriptor: int) -> None:
        try:
            socket.send_fds(self._channel, list(packets.answer([])), [descriptor])
        finally:
            close(descriptor)

    # ---- questions

    def _users(self, values: Sequence[str]) -> list[str]:
        _none(values)
        found = list(self._mailboxes.users())
        self._known = frozenset(found)
        return packets.of_mailboxes(found)

    def _closed(self, values: Sequence[str]) -> list[str]:
        _none(values)
        return packets.of_pairs(self._mailboxes.closed())

    def _folders(self, values: Sequence[str]) -> list[str]:
        mailbox = self._checked(packets.mailbox(values))
        return [place.directory for place in self._mailboxes.folders(mailbox)]

    def _names(self, values: Sequence[str]) -> list[str]:
        return packets.of_names(self._mailboxes.names(self._place(values)).items())

    def _keywords(self, values: Sequence[str]) -> list[str]:
        return packets.of_pairs(self._mailboxes.keywords(self._place(values)))

    def _open(self, values: Sequence[str]) -> int:
        place, file = packets.message(values)
        self._checked(place.mailbox)
        return self._mailboxes.open(place, file)

    def _changes(self, values: Sequence[str]) -> list[str]:
        until = time.monotonic() + min(_milliseconds(values) / 1000, LONGEST_WAIT)
        while True:
            left = max(0.0, until - time.monotonic())
            found = self._mailboxes.changes(min(left, _SLICE))
            if found != Changes() or left <= _SLICE:
                return packets.of_changes(found)
            if self._gone():
                raise ConnectionResetError("the client has gone")

    def _place(self, values: Sequence[str]) -> Place:
        place = packets.place(values)
        self._checked(place.mailbox)
        return place

    def _checked(self, mailbox: Mailbox) -> Mailbox:
        """A path below the fixed part of a pattern is not enough: it must be one of those that were found there."""
        if self._known is None:
            self._known = frozenset(self._mailboxes.users())
        if mailbox not in self._known:
            raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)
        return mailbox

    def _gone(self) -> bool:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)  # who waits for an answer says nothing: it can only be the end
        return bool(poller.poll(0))


def _none(values: Sequence[str]) -> None:
    if values:
        raise PacketError("values where none are expected")


def _milliseconds(values: Sequence[str]) -> int:
    if len(values) != 1:
        raise PacketError("one time is expected")
    return packets.number(values[0])


_Find = Callable[[Session, Sequence[str]], list[str] | int]
_VERBS: Mapping[str, _Find] = {
    "users": Session._users,
    "closed": Session._closed,
    "folders": Session._folders,
    "names": Session._names,
    "keywords": Session._keywords,
    "open": Session._open,
    "changes": Session._changes,
}
"""What can be asked, and what finds the answer: values, or a descriptor to be handed over."""
