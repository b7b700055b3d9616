"""What is said between the process that opens people's mailboxes and the one that reads them: lines
of JSON on a Unix socket. Pure.

Whoever listens speaks first: what it serves, by `fingerprint`, or why it will not. A question is a
list of a verb and what it is about, an answer one of "answer" and what was found, or of "error" and
the number, text and file of an OSError. To `open` the answer has the descriptor with it
(SCM_RIGHTS). Tuples, such as a `Place`, go as lists.

Must never build anything from what it reads but numbers, and texts that can be names of files; and
never take more than there are bounds for.

Answers to one client about people's mailboxes, and descriptors of the messages in them. Runs with
rights that nothing else has.

Believes nothing it is told: which mailboxes there are follows from patterns of its own, and only of
these it lists folders and opens regular files in `new` and `cur`, to be read. Must never parse
mail, write anywhere, or wait for a client that does not listen.

People's mailboxes by way of the process that may open them: this one then needs no right to
anybody's files.

That process may end and come back at any time. Until then every question is a `MailboxesError`,
which is about no mailbox; when it is back, that is told as changes to everything, as nobody knows
what was missed.

The way to people's mailboxes that the settings say: our own, or by the process that may open them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import close
from pathlib import Path
from typing import Any, TypeVar

from spamguard.config.options import Watch
from spamguard.errors import MailboxesError
from spamguard.folders.local import LocalMailboxes
from spamguard.folders.mailboxes import (
    INBOX_NAME,
    Changes,
    Folder,
    Mailbox,
    Mailboxes,
    MessageFile,
    folder_parts,
)

MAX_REQUEST_BYTES = 32 << 10  # bytes: a path, a directory and a name, and then some
MAX_ANSWER_BYTES = 512 << 20  # bytes of an answer: some millions of names
_PROTOCOL_VERSION = "3"


class BrokerProtocolError(ValueError):
    """What was received is not what this module writes."""


def fingerprint_watches(watches: Iterable[Watch]) -> str:
    """Of where Maildirs are and whose they are, in their order, and of this way to talk: both sides
    must mean the same.
    """
    said = pack_line(_PROTOCOL_VERSION, *((watch.maildir, watch.user) for watch in watches))
    return hashlib.blake2b(said, digest_size=16).hexdigest()


def pack_line(*values: object) -> bytes:
    """A line."""
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def unpack_line(line: bytes) -> list[Any]:
    """What `pack` has packed. ProtocolError."""
    try:
        return _parse_list(json.loads(line.decode("utf-8", "surrogateescape")))
    except (ValueError, RecursionError) as error:
        raise BrokerProtocolError(str(error)) from error


def pack_answer(found: object) -> bytes:
    """The line that tells it."""
    return pack_line("answer", found)


def pack_error(error: OSError) -> bytes:
    """The line that says no."""
    named = error.filename if isinstance(error.filename, str) else ""
    return pack_line("error", error.errno or errno.EIO, error.strerror or "cannot be done", named)


def unpack_answer(line: bytes) -> object:
    """What an `answer` tells. OSError: that of a `refusal`. ProtocolError."""
    match unpack_line(line):
        case ["answer", value]:
            return value
        case ["error", int(code), str(text), str(named)]:
            raise OSError(code, text, named or None)
    raise BrokerProtocolError("neither an answer nor an error")


# ---- what is talked about; all of these raise ProtocolError


def parse_mailbox(value: object) -> Mailbox:
    """One Maildir."""
    user, path, watch = _parse_list(value, 3)
    if not isinstance(watch, int):
        raise BrokerProtocolError("no number where one is expected")
    return Mailbox(parse_text(user), parse_text(path), watch)


def parse_folder(value: object) -> Folder:
    """A folder."""
    of, directory = _parse_list(value, 2)
    return Folder(parse_mailbox(of), parse_text(directory))


def parse_file(value: object) -> MessageFile:
    """A message of a folder."""
    part, name = _parse_list(value, 2)
    return MessageFile(parse_text(part), parse_text(name))


def parse_texts(value: object) -> list[str]:
    """Such as names of files."""
    return [parse_text(one) for one in _parse_list(value)]


def parse_mailboxes(value: object) -> list[Mailbox]:
    """All there are."""
    return [parse_mailbox(one) for one in _parse_list(value)]


def parse_names(value: object) -> dict[str, list[str]]:
    """Of each part of a folder."""
    return {parse_text(part): parse_texts(some) for part, some in _parse_pairs(value)}


def parse_words(value: object) -> dict[str, str]:
    """One by another, such as keywords by their letters."""
    return {parse_text(one): parse_text(other) for one, other in _parse_pairs(value)}


def dump_changes(changes: Changes) -> tuple[object, ...]:
    """As `changes` reads it."""
    return tuple(changes.folders), tuple(changes.mailboxes), changes.users, changes.everything


def parse_changes(value: object) -> Changes:
    """What may be another now."""
    folders, boxes, users, everything = _parse_list(value, 4)
    return Changes(
        frozenset(map(parse_folder, _parse_list(folders))),
        frozenset(parse_mailboxes(boxes)),
        bool(users),
        bool(everything),
    )


def parse_text(value: object) -> str:
    """One that can be the name of a file."""
    if not isinstance(value, str) or "\0" in value:
        raise BrokerProtocolError("no text where one is expected")
    try:
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise BrokerProtocolError("a text that no file is called") from error
    return value


def _parse_list(value: object, count: int | None = None) -> list[Any]:
    if not isinstance(value, list) or count not in (None, len(value)):
        raise BrokerProtocolError("no list where one is expected, or one of another length")
    return value


def _parse_pairs(value: object) -> Iterable[tuple[object, object]]:
    if not isinstance(value, dict):
        raise BrokerProtocolError("no pairs where they are expected")
    return value.items()


MAX_WAIT_SECONDS = 3600.0  # seconds for changes
_POLL_SECONDS = (
    5.0  # seconds between two looks whether a client that waits for changes is still there
)
_SEND_TIMEOUT = 60  # that a client may take for a piece of an answer
_TIMEVAL = struct.Struct("ll")  # SO_SNDTIMEO of socket(7): seconds and microseconds


class BrokerSession:
    """One client. mailboxes: those it may ask about; they stay the caller's, and should be nobody
    else's: changes are told once.
    """

    def __init__(self, channel: socket.socket, mailboxes: Mailboxes) -> None:
        channel.settimeout(None)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(_SEND_TIMEOUT, 0))
        self._channel = channel
        self._mailboxes = mailboxes
        self._served: frozenset[Mailbox] | None = None

    def run(self, fingerprint: str) -> None:
        """Until the client goes. ProtocolError: it says what makes no sense. OSError: it does not
        listen.
        """
        self._send_answer(fingerprint)
        with self._channel.makefile("rb") as lines:
            while line := lines.readline(MAX_REQUEST_BYTES + 1):
                if len(line) > MAX_REQUEST_BYTES:
                    raise BrokerProtocolError("the question is too long")
                self._handle(unpack_line(line))

    def _handle(self, question: list[object]) -> None:
        try:
            found = self._execute(question)
        except OSError as error:
            if isinstance(error, ConnectionError) and self._is_client_gone():
                raise
            self._channel.sendall(pack_error(error))
            return
        if isinstance(found, int):
            self._send_descriptor(found)
        else:
            self._send_answer(found)

    def _send_answer(self, found: object) -> None:
        line = pack_answer(found)
        if len(line) > MAX_ANSWER_BYTES:
            line = pack_error(OSError(errno.EFBIG, "there is more than an answer may hold"))
        self._channel.sendall(line)

    def _send_descriptor(self, descriptor: int) -> None:
        try:
            socket.send_fds(self._channel, [pack_answer(None)], [descriptor])
        finally:
            close(descriptor)

    # ---- questions

    def _execute(self, question: list[object]) -> object:
        """The answer; a number: the descriptor to be handed over. OSError: there is none.
        ProtocolError: it is no question.
        """
        ours = self._mailboxes
        found: object
        match question:
            case ["users"]:
                found = self._find_mailboxes()
            case ["closed"]:
                found = dict(ours.unreadable_directories())
            case ["folders", mailbox]:
                found = [
                    place.directory
                    for place in ours.list_folders(self._check_mailbox(parse_mailbox(mailbox)))
                ]
            case ["names", place]:
                found = dict(ours.list_files(self._check_folder(place)))
            case ["keywords", place]:
                found = dict(ours.read_keywords(self._check_folder(place)))
            case ["open", place, file]:
                found = ours.open_file(self._check_folder(place), parse_file(file))
            case ["changes", int(milliseconds)]:
                found = dump_changes(
                    self._wait_for_changes(
                        max(0, min(milliseconds, MAX_WAIT_SECONDS * 1000)) / 1000
                    )
                )
            case _:
                raise BrokerProtocolError("it is no question")
        return found

    def _find_mailboxes(self) -> list[Mailbox]:
        found = list(self._mailboxes.find_mailboxes())
        self._served = frozenset(found)
        return found

    def _wait_for_changes(self, seconds: float) -> Changes:
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            found = self._mailboxes.wait_for_changes(min(left, _POLL_SECONDS))
            if found != Changes() or left <= _POLL_SECONDS:
                return found
            if self._is_client_gone():
                raise ConnectionResetError("the client has gone")

    def _check_folder(self, value: object) -> Folder:
        place = parse_folder(value)
        self._check_mailbox(place.mailbox)
        return place

    def _check_mailbox(self, mailbox: Mailbox) -> Mailbox:
        """A path below the fixed part of a pattern is not enough: it must be one of those that were
        found there.
        """
        if self._served is None:
            self._find_mailboxes()
        if mailbox not in (self._served or ()):
            raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)
        return mailbox

    def _is_client_gone(self) -> bool:
        poller = select.poll()
        poller.register(
            self._channel, select.POLLIN
        )  # who waits for an answer says nothing: it can only be the end
        return bool(poller.poll(0))


_GREETING_TIMEOUT = 30.0
_ANSWER_TIMEOUT = 300.0  # disks may be slow
_RECONNECT_SECONDS = 1.0  # between two attempts to connect
_CLIENT_WAIT_SECONDS = 240.0  # seconds for changes, in one question: less than for an answer
_READ_BYTES = 64 << 10  # bytes
_BROKER_REMEDY = "start spamguard-watch.service (`spamguard open-mailboxes`), or see its log"
_MISMATCH = "its `watch` is not ours, or its version: systemctl restart spamguard-watch"

AnswerT = TypeVar("AnswerT")


class RemoteMailboxes:
    """`contract.Mailboxes` at a socket. watches: of our own configuration; the other side must have
    the same, in the same order.
    """

    def __init__(self, path: Path, watches: Sequence[Watch]) -> None:
        self._path = path
        self._fingerprint = fingerprint_watches(watches)
        self._channel: socket.socket | None = None
        with suppress(MailboxesError):  # it may come yet
            self._connect()
        # whether to tell that nobody knows what has changed; who has only begun has missed nothing
        self._missed_changes = False

    def find_mailboxes(self) -> list[Mailbox]:
        """As `contract.Mailboxes.users`."""
        if self._channel is None:
            self._connect()
        return self._request(parse_mailboxes, "users")

    def unreadable_directories(self) -> dict[str, str]:
        """As `contract.Mailboxes.closed`."""
        return self._request(parse_words, "closed")

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        """As `contract.Mailboxes.folders`."""
        return [
            Folder(mailbox, directory)
            for directory in self._request(parse_texts, "folders", mailbox)
        ]

    def list_files(self, place: Folder) -> dict[str, list[str]]:
        """As `contract.Mailboxes.names`."""
        return self._request(parse_names, "names", place)

    def read_keywords(self, place: Folder) -> dict[str, str]:
        """As `contract.Mailboxes.keywords`."""
        return self._request(parse_words, "keywords", place)

    def open_file(self, place: Folder, file: MessageFile) -> int:
        """As `contract.Mailboxes.open`."""
        with self._exchange("open", place, file) as (_, descriptors):
            if len(descriptors) != 1:
                raise self._disconnect("an answer without what was asked for")
            return descriptors.pop()

    def wait_for_changes(self, timeout: float) -> Changes:
        """As `contract.Mailboxes.changes`; never a MailboxesError: that the other side has gone, or
        is back, changes everything.
        """
        if self._channel is None and not self._reconnect(timeout):
            return Changes()
        if self._missed_changes:
            self._missed_changes = False
            return Changes(everything=True)
        try:
            return self._request(
                parse_changes, "changes", round(min(timeout, _CLIENT_WAIT_SECONDS) * 1000)
            )
        except MailboxesError:
            return Changes(everything=True)

    def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # ----

    def _reconnect(self, timeout: float) -> bool:
        """Whether it did within so many seconds."""
        until = time.monotonic() + timeout
        while True:
            with suppress(MailboxesError):
                self._connect()
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _RECONNECT_SECONDS))

    def _connect(self) -> None:
        """MailboxesError."""
        self._channel, self._missed_changes = socket.socket(socket.AF_UNIX), True
        self._channel.settimeout(_GREETING_TIMEOUT)
        try:
            self._channel.connect(str(self._path))
        except OSError as error:
            older = error.errno == errno.EPROTOTYPE  # it speaks in packets
            raise self._disconnect(_MISMATCH if older else error.strerror or str(error)) from error
        try:
            served = self._request(parse_text)
        except OSError as error:
            raise self._disconnect(f"it refuses: {error.strerror}") from error
        self._channel.settimeout(_ANSWER_TIMEOUT)
        if served != self._fingerprint:
            raise self._disconnect(_MISMATCH)

    def _request(self, parse: Callable[[object], AnswerT], *question: object) -> AnswerT:
        """What was answered. OSError: what the other side was told when it tried. MailboxesError:
        there is no other side.
        """
        with self._exchange(*question) as (found, _):
            return parse(found)

    @contextmanager
    def _exchange(self, *question: object) -> Iterator[tuple[object, list[int]]]:
        """To a question, if there is one; with descriptors that are closed unless they are taken
        out. Errors as of `_ask`.
        """
        descriptors: list[int] = []
        try:
            yield unpack_answer(self._transfer(question, descriptors)), descriptors
        except BrokerProtocolError as error:
            raise self._disconnect(f"an answer that makes no sense ({error})") from error
        finally:
            for one in descriptors:
                os.close(one)

    def _transfer(self, question: Sequence[object], descriptors: list[int]) -> bytes:
        """What is said to it. descriptors: gets those that come with that. MailboxesError."""
        if self._channel is None:
            raise self._disconnect("it has ended")
        line = bytearray()
        try:
            if question:
                self._channel.sendall(pack_line(*question))
            while not line.endswith(b"\n"):
                piece, some, _, _ = socket.recv_fds(
                    self._channel, _READ_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                )
                descriptors += some
                line += piece
                if not piece:
                    raise self._disconnect("it has ended")
                if len(line) > MAX_ANSWER_BYTES:
                    raise self._disconnect("an answer without end")
        except OSError as error:
            raise self._disconnect(error.strerror or str(error)) from error
        return bytes(line)

    def _disconnect(self, why: str) -> MailboxesError:
        """The error to raise, once the connection is given up."""
        self.close()
        self._missed_changes = True
        return MailboxesError(
            f"{self._path}: nobody opens mailboxes there for us ({why}): {_BROKER_REMEDY}"
        )


def make_mailboxes(
    watches: Sequence[Watch], opener: Path | None, *, notify: bool = True
) -> Mailboxes:
    """To be closed by the caller. Does not fail: whoever opens them may come later. opener: the
    socket; notify: as in `LocalMailboxes`.
    """
    return (
        LocalMailboxes(watches, notify=notify)
        if opener is None
        else RemoteMailboxes(opener, watches)
    )


def is_maildir(mailboxes: Mailboxes, mailbox: Mailbox, *, if_unreadable: bool) -> bool:
    """Whether what a pattern fits is one, and not what a Maildir lies in. closed: what to say of
    one that cannot be looked at.
    """
    try:
        return any(
            folder_parts(place.directory) == INBOX_NAME for place in mailboxes.list_folders(mailbox)
        )
    except OSError:
        return if_unreadable
