"""Users' mailboxes by way of a process that may open them: protocol, server and client.

The daemon parses mail, so it should have no right to users' files. The mailbox broker has that
right and parses nothing. They talk in lines of JSON over a Unix socket. The broker speaks first: a
fingerprint of the mailboxes that it serves, or why it refuses. A request is a list of a verb and
its arguments; an answer is ["answer", value], or ["error", number, text, file] for an OSError. The
answer to `open` comes with a descriptor (SCM_RIGHTS).

The server believes nothing: which mailboxes there are follows from patterns of its own, and only of
these it lists folders and opens messages. Both sides make nothing of what they read but numbers,
and texts that can be names of files.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import ValidationError, convert

from spamguard.config.accounts import Account, Mode
from spamguard.config.options import Watch
from spamguard.errors import MailboxesError
from spamguard.folders.maildir import (
    Changes,
    FileText,
    Folder,
    LocalMailboxes,
    Mailbox,
    MessageFile,
)
from spamguard.process import connect

MAX_REQUEST_BYTES = 32 << 10  # a path, a directory and a name, and then some
MAX_ANSWER_BYTES = 512 << 20  # more than `list_files` gives, in any letters
_PROTOCOL_VERSION = "3"

AnswerT = TypeVar("AnswerT")


# ---- the protocol


def fingerprint_watches(watches: Iterable[Watch]) -> str:
    """Hash what both sides must mean alike: the watches in their order, and the protocol."""
    line = pack_line(_PROTOCOL_VERSION, *((watch.maildir, watch.user) for watch in watches))
    return hashlib.blake2b(line, digest_size=16).hexdigest()


def account_watches(accounts: Sequence[Account]) -> tuple[Watch, ...]:
    """What an entry of `watch` would say of each account."""
    return tuple(
        Watch(
            account.name,
            account.name,
            account.folders,
            we_file=account.mode is Mode.MOVE,
        )
        for account in accounts
    )


def pack_line(*values: object) -> bytes:
    text = json.dumps(values, ensure_ascii=False, default=list)  # sets
    return text.encode("utf-8", "surrogateescape") + b"\n"


def unpack_line(line: bytes) -> list[Any]:
    try:
        return parse(json.loads(line.decode("utf-8", "surrogateescape")), list[Any])
    except RecursionError as error:
        raise ValueError(str(error)) from error


def pack_answer(value: object) -> bytes:
    return pack_line("answer", value)


def pack_error(error: OSError) -> bytes:
    name = error.filename if isinstance(error.filename, str) else ""
    return pack_line("error", error.errno or errno.EIO, error.strerror or "cannot be done", name)


def unpack_answer(line: bytes) -> object:
    match unpack_line(line):
        case ["answer", value]:
            return value
        case ["error", int(code), str(text), str(name)]:
            raise OSError(code, text, name or None)
    raise ValueError("neither an answer nor an error")


def parse(value: object, kind: type[AnswerT]) -> AnswerT:
    """A value of a line as what it stands for. ValueError: it is nothing of the kind."""
    try:
        return convert(value, kind)
    except ValidationError as error:
        raise ValueError(str(error)) from error


# ---- the server

MAX_WAIT_SECONDS = 5.0  # for changes, in one request: a client that has gone shows by its end
_SEND_TIMEOUT = 60  # seconds that a client may take for a piece of an answer


class Mailboxes(Protocol):
    """Users' mail, read only. An OSError concerns only what a method was asked about;
    MailboxesError: nothing can be reached now.
    """

    def find_mailboxes(self) -> list[Mailbox]:
        """All mailboxes that are there. From now on `wait_for_changes` reports new ones."""

    def unreadable_directories(self) -> dict[str, str]:
        """What could not be looked at, and why: mailboxes, or directories above them."""

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        """All folders of a mailbox. From now on `wait_for_changes` reports changes in them.

        FileNotFoundError: the mailbox is gone.
        """

    def list_files(self, folder: Folder) -> dict[str, list[str]]:
        """Names of a folder's messages by part. FileNotFoundError: the folder is gone."""

    def open_file(self, folder: Folder, file: MessageFile) -> int:
        """A descriptor to read one message from; the caller closes it.

        FileNotFoundError: the message is not there any more.
        """

    def wait_for_changes(self, timeout: float) -> Changes:
        """What may have changed since the last call; waits at most so many seconds for it."""

    def close(self) -> None:
        """End it."""


class BrokerSession:
    """The server's side of one connection. The caller closes the mailboxes, and gives them to no
    other session, because each change is reported once.
    """

    def __init__(self, channel: socket.socket, mailboxes: Mailboxes) -> None:
        channel.settimeout(None)
        # Of socket(7): seconds and microseconds.
        timeout = struct.pack("ll", _SEND_TIMEOUT, 0)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._channel = channel
        self._mailboxes = mailboxes
        self._served: frozenset[Mailbox] = frozenset()

    def run(self, fingerprint: str) -> None:
        """Serve until the client goes. ValueError; OSError: it does not listen."""
        self._channel.sendall(pack_answer(fingerprint))
        with self._channel.makefile("rb") as lines:
            while line := lines.readline(MAX_REQUEST_BYTES + 1):
                if len(line) > MAX_REQUEST_BYTES:
                    raise ValueError("the question is too long")
                try:
                    answer = self._execute(unpack_line(line))
                except OSError as error:
                    self._channel.sendall(pack_error(error))
                    continue
                if isinstance(answer, int):
                    try:
                        socket.send_fds(self._channel, [pack_answer(None)], [answer])
                    finally:
                        os.close(answer)
                else:
                    self._channel.sendall(pack_answer(answer))

    def _execute(self, request: list[object]) -> object:
        """The answer; a number is a descriptor. OSError: there is none. ValueError: it is no
        request.
        """
        mailboxes = self._mailboxes
        answer: object
        match request:
            case ["users"]:
                answer = mailboxes.find_mailboxes()
                self._served = frozenset(answer)
            case ["closed"]:
                answer = mailboxes.unreadable_directories()
            case ["folders", mailbox]:
                folders = mailboxes.list_folders(self._check_mailbox(parse(mailbox, Mailbox)))
                answer = [folder.directory for folder in folders]
            case ["names", folder]:
                answer = mailboxes.list_files(self._check_folder(folder))
            case ["open", folder, file]:
                answer = mailboxes.open_file(self._check_folder(folder), parse(file, MessageFile))
            case ["changes", int(milliseconds)]:
                seconds = max(0, min(milliseconds, MAX_WAIT_SECONDS * 1000)) / 1000
                answer = mailboxes.wait_for_changes(seconds)
            case _:
                raise ValueError("it is no question")
        return answer

    def _check_folder(self, value: object) -> Folder:
        folder = parse(value, Folder)
        self._check_mailbox(folder.mailbox)
        return folder

    def _check_mailbox(self, mailbox: Mailbox) -> Mailbox:
        """Refuse all mailboxes but those that were found: fitting a pattern is not enough."""
        if mailbox not in self._served:
            raise FileNotFoundError(errno.ENOENT, "not watched", mailbox.path)
        return mailbox


# ---- the client

_GREETING_TIMEOUT = 30.0
_ANSWER_TIMEOUT = 300.0  # disks may be slow
_RECONNECT_SECONDS = 1.0  # between two attempts to connect
_READ_BYTES = 64 << 10
_BROKER_REMEDY = "start spamguard-watch.service (`spamguard open-mailboxes`), or see its log"


class RemoteMailboxes:
    """`LocalMailboxes` of a broker that has the same watches, in the same order.

    MailboxesError, of any method with arguments and of `find_mailboxes`: no mailbox can be reached
    now; `wait_for_changes` reports a change of everything when that is over.
    """

    def __init__(self, path: Path, watches: Sequence[Watch]) -> None:
        self._path = path
        self._fingerprint = fingerprint_watches(watches)
        self._channel: socket.socket | None = None
        with suppress(MailboxesError):  # it may come later
            self._connect()
        self._missed_changes = False  # a client that has only begun has missed nothing

    def find_mailboxes(self) -> list[Mailbox]:
        if self._channel is None:
            self._connect()
        return self._request(list[Mailbox], "users")

    def unreadable_directories(self) -> dict[str, str]:
        return self._request(dict[FileText, FileText], "closed")

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        directories = self._request(list[FileText], "folders", mailbox)
        return [Folder(mailbox, directory) for directory in directories]

    def list_files(self, folder: Folder) -> dict[str, list[str]]:
        return self._request(dict[FileText, list[FileText]], "names", folder)

    def open_file(self, folder: Folder, file: MessageFile) -> int:
        with self._exchange("open", folder, file) as (_, descriptors):
            if len(descriptors) != 1:
                raise self._disconnect("an answer without what was asked for")
            return descriptors.pop()

    def wait_for_changes(self, timeout: float) -> Changes:
        """Never raises MailboxesError: if the broker goes or comes back, everything has changed."""
        try:
            if self._channel is None:
                self._connect()
        except MailboxesError:
            time.sleep(min(timeout, _RECONNECT_SECONDS))
            return Changes()
        if self._missed_changes:
            self._missed_changes = False
            return Changes(everything=True)
        try:
            return self._request(Changes, "changes", round(timeout * 1000))
        except MailboxesError:
            return Changes(everything=True)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connect(self) -> None:
        self._channel, self._missed_changes = socket.socket(socket.AF_UNIX), True
        self._channel.settimeout(_GREETING_TIMEOUT)
        try:
            connect(self._channel, self._path)
        except OSError as error:
            raise self._disconnect(error.strerror or str(error)) from error
        try:
            fingerprint = self._request(str)
        except OSError as error:
            raise self._disconnect(f"it refuses: {error.strerror}") from error
        self._channel.settimeout(_ANSWER_TIMEOUT)
        if fingerprint != self._fingerprint:
            raise self._disconnect(
                "its `watch` is not ours, or its version: systemctl restart spamguard-watch"
            )

    def _request(self, kind: type[AnswerT], *request: object) -> AnswerT:
        """The answer. OSError: the broker's, when it tried. MailboxesError: there is no broker."""
        with self._exchange(*request) as (answer, _):
            return parse(answer, kind)

    @contextmanager
    def _exchange(self, *request: object) -> Iterator[tuple[object, list[int]]]:
        """The answer, and the descriptors that came with it. Those that the caller leaves in the
        list are closed. Errors as of `_request`.
        """
        if self._channel is None:
            raise self._disconnect("it has ended")
        descriptors: list[int] = []
        try:
            line = bytearray()
            try:
                if request:
                    self._channel.sendall(pack_line(*request))
                while not line.endswith(b"\n"):
                    piece, received, _, _ = socket.recv_fds(
                        self._channel, _READ_BYTES, 1, socket.MSG_CMSG_CLOEXEC
                    )
                    descriptors += received
                    line += piece
                    if not piece:
                        raise self._disconnect("it has ended")
                    if len(line) > MAX_ANSWER_BYTES:
                        raise self._disconnect("an answer without end")
            except OSError as error:
                raise self._disconnect(error.strerror or str(error)) from error
            yield unpack_answer(bytes(line)), descriptors
        except ValueError as error:
            raise self._disconnect(f"an answer that makes no sense ({error})") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _disconnect(self, why: str) -> MailboxesError:
        self.close()
        self._missed_changes = True
        return MailboxesError(f"{self._path}: no mailbox broker there ({why}): {_BROKER_REMEDY}")


# ---- either way


def make_mailboxes(
    watches: Sequence[Watch], opener: Path | None, *, notify: bool = True
) -> Mailboxes:
    """Mailboxes for the caller to close: by way of the broker at the socket `opener`, which may
    come later, or our own, which may do without events.
    """
    if opener is None:
        return LocalMailboxes(watches, notify=notify)
    return RemoteMailboxes(opener, watches)
