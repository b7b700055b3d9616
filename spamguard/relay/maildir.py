"""The next hop is a Maildir (https://cr.yp.to/proto/maildir.html, folders as Maildir++ has them): for a first try, and for one user.

Must never show a message that is not whole and on the disk, never replace one, and never leave a transaction half delivered:
every recipient's copy becomes visible, or none. (A process killed while it makes them visible has answered nothing: its client
sends the message again, and who had a copy has two.)
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from spamguard.files import NO_ROOM, create_private, sync_directory
from spamguard.relay.contract import Notice, unnoticed
from spamguard.relay.threads import finished
from spamguard.spool import Content
from spamguard.wire.values import Client, Recipient, Reply, Sender

Result = TypeVar("Result")

_log = logging.getLogger("spamguard.relay")
_numbers = itertools.count()  # of deliveries of this process
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")
_HOST_LETTERS = 100  # of at most 255 that the name of a file may have
# Our own fields stand first, X-Spamguard is the last of them: what a sender wrote below counts for nothing.
_ENVELOPE = re.compile(rb">?From [^\n]*\n")  # of an mbox; it stays first, whoever sends such a thing
_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:[ \t]*([^\r\n]*)\r\n(?:[ \t][^\r\n]*\r\n)*")


class MaildirHop:
    """Delivers into the Maildir `directory`, made when missing, and spam into its folder `junk`.

    hostname: for the names of files.
    """

    def __init__(self, directory: Path, hostname: str, junk: str = ".Junk", *, notice: Notice = unnoticed) -> None:
        self.notice = notice
        self._directory = directory
        self._host = _NOT_IN_NAMES.sub(_octal, hostname)[:_HOST_LETTERS] or "localhost"
        self._junk = directory / junk

    @property
    def answers_each(self) -> bool:
        """Every recipient has a copy of its own."""
        return True

    @property
    def extensions(self) -> Mapping[str, str] | None:
        """A file takes any byte."""
        return {"8BITMIME": "", "SMTPUTF8": "", "SIZE": ""}

    async def probe(self) -> None:
        """What it takes is known."""

    def transaction(self, client: Client) -> _Delivery:  # noqa: ARG002
        """A new transaction; whom it comes from is not told to a file."""
        return _Delivery(self)

    async def close(self) -> None:
        """Nothing is kept open."""

    def deliver(self, sender: Sender, recipients: Sequence[Recipient], content: Content) -> None:
        """One copy for each recipient, on the disk; OSError when there is none of any. Blocks."""
        folder = self._folder(content)
        names = [self._name() for _ in recipients]
        linked: list[Path] = []
        try:
            for name, recipient in zip(names, recipients, strict=True):
                _write(folder / "tmp" / name, _copy(sender, recipient, content))
            for name in names:
                os.link(folder / "tmp" / name, folder / "new" / name)
                linked.append(folder / "new" / name)
            sync_directory(folder / "new")
        except BaseException:
            _remove(linked)
            raise
        finally:
            _remove(folder / "tmp" / name for name in names)

    def _folder(self, content: Content) -> Path:
        _make_maildir(self._directory)
        if not _is_spam(content.head):
            return self._directory
        _make_maildir(self._junk, "maildirfolder")
        return self._junk

    def _name(self) -> str:
        """Unlike any other: time, then microseconds, process, delivery of this process and chance, then host."""
        microseconds = time.time_ns() // 1000
        inside = f"M{microseconds % 1_000_000}P{os.getpid()}Q{next(_numbers)}R{secrets.token_hex(8)}"
        return f"{microseconds // 1_000_000}.{inside}.{self._host}"


class _Delivery:
    """A transaction."""

    def __init__(self, hop: MaildirHop) -> None:
        self._hop = hop
        self._sender = Sender("")
        self._recipients: list[Recipient] = []

    async def mail(self, sender: Sender) -> Reply:
        self._sender = sender
        return Reply.of(250, "2.1.0 Ok")

    async def recipient(self, recipient: Recipient) -> Reply:
        self._recipients.append(recipient)
        return Reply.of(250, "2.1.5 Ok")

    async def send(self, content: Content) -> Sequence[Reply]:
        try:
            await finished(lambda: self._hop.deliver(self._sender, self._recipients, content))
        except OSError as error:
            reply = self._not_delivered(error)
        else:
            reply = Reply.of(250, "2.0.0 Delivered")
        return [reply] * len(self._recipients)

    async def end(self) -> None:
        self._recipients = []

    def _not_delivered(self, error: OSError) -> Reply:
        _log.error("not delivered into a Maildir: %s", error)
        self._hop.notice(error)
        full = error.errno in NO_ROOM
        return Reply.of(452, "4.3.1 Insufficient system storage") if full else Reply.of(451, "4.3.0 Mailbox cannot be written now")


# ---- what is written


def _copy(sender: Sender, recipient: Recipient, content: Content) -> Iterator[bytes]:
    """The message as it lies in a Maildir: final delivery's two fields on top (RFC 5321, section 4.4), lines ended by LF."""
    yield b"Return-Path: <%s>\nDelivered-To: %s\n" % (_octets(sender.address), _octets(recipient.address))
    lines = _with_line_feeds(content.chunks())
    first = next(filter(None, lines), b"")
    yield b"\n" + first if first[:1] in (b" ", b"\t") else first  # else it would become the tail of our last field
    yield from lines


def _octets(address: str) -> bytes:
    return address.encode("utf-8", "surrogateescape")


def _with_line_feeds(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Every CRLF as LF, whichever chunks its two halves are in; a bare CR stays."""
    held = b""
    for chunk in chunks:
        text = held + chunk
        held = b"\r" if text.endswith(b"\r") else b""
        yield text[: len(text) - len(held)].replace(b"\r\n", b"\n")
    yield held


def _is_spam(head: bytes) -> bool:
    """Whether our own fields, on top of the message, call it spam."""
    envelope = _ENVELOPE.match(head)
    at = envelope.end() if envelope else 0
    while match := _FIELD.match(head, at):
        name = match[1].lower()
        if name in (b"x-spam-flag", b"x-spamguard"):
            return name == b"x-spam-flag" and match[2].strip().upper() == b"YES"
        at = match.end()
    return False


# ---- files


def _octal(match: re.Match[str]) -> str:
    """A letter that must not be in the name of a file, as the specification writes / and : of a host's name."""
    return "".join(f"\\{byte:03o}" for byte in match[0].encode("utf-8", "replace"))


def _make_maildir(directory: Path, *marks: str) -> None:
    """The three directories of a Maildir, and empty files that mark what it is, as far as they are missing."""
    missing = [directory / name for name in ("tmp", "cur", "new") if not (directory / name).is_dir()]
    unmarked = [directory / name for name in marks if not (directory / name).exists()]
    if not missing and not unmarked:
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in missing:
        name.mkdir(mode=0o700, exist_ok=True)
    for name in unmarked:
        with suppress(FileExistsError):
            create_private(name).close()
    sync_directory(directory)
    sync_directory(directory.parent)


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    with create_private(path) as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def _remove(paths: Iterable[Path]) -> None:
    """As far as possible: a draft that stays is seen by nobody, and mail readers remove it after some days."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
