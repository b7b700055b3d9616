"""Delivery into a Maildir (https://cr.yp.to/proto/maildir.html, folders as in Maildir++).

It is for a first try, and for one user. Each recipient's copy is written under `tmp` and linked
into `new` once it is on the disk: every copy of a transaction becomes visible, or none. (A process
killed while it links has answered nothing: its client sends the message again, and some recipients
have two copies.)

It is written by hand because `mailbox.Maildir` syncs no directory and shows each copy as soon as it
is written.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from spamguard.aio import run_in_thread
from spamguard.delivery.next_hop import ErrorCallback, ignore_error
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import SpoolView, create_private, sync_directory, write_private

_log = logging.getLogger("spamguard.relay")

# Our own field, the first of all: those that a sender wrote stand below. Only an mbox line stays
# above it, if a sender writes such a thing.
_SPAM = re.compile(rb"(?:>?From [^\n]*\n)?X-Spam-Flag: YES\r\n")


@dataclass
class MaildirNextHop:
    """Delivers into a Maildir, made when missing, and spam into its folder `Junk`."""

    _directory: Path
    _hostname: str
    on_error: ErrorCallback = ignore_error

    answers_each: ClassVar = True
    extensions: ClassVar = {"8BITMIME": "", "SMTPUTF8": "", "SIZE": ""}  # a file holds any byte

    async def probe(self) -> str:
        def find_fault() -> str:
            # A missing Maildir is fine if it can be created, as the first message does.
            new = self._directory / "new"
            path = next(path for path in (new, *new.parents) if path.exists())
            return "" if os.access(path, os.W_OK | os.X_OK) else f"{path} may not be written"

        return await asyncio.to_thread(find_fault)

    def transaction(self, client: Client) -> _MaildirTransaction:  # noqa: ARG002  as in NextHop
        return _MaildirTransaction(self)

    async def close(self) -> None:
        """Nothing is kept open."""

    def deliver(self, sender: Sender, recipients: Sequence[Recipient], content: SpoolView) -> None:
        """One copy for each recipient, on the disk; after an OSError nobody has one. Blocks."""
        _make_maildir(self._directory)
        folder = self._directory
        if _SPAM.match(content.head):
            folder /= ".Junk"
            _make_maildir(folder, "maildirfolder")
        names = [self._unique_name() for _ in recipients]
        linked: list[Path] = []
        try:
            for name, recipient in zip(names, recipients, strict=True):
                write_private(folder / "tmp" / name, _recipient_copy(sender, recipient, content))
            for name in names:
                os.link(folder / "tmp" / name, folder / "new" / name)
                linked.append(folder / "new" / name)
            sync_directory(folder / "new")
        except BaseException:
            _remove_files(linked)
            raise
        finally:
            _remove_files(folder / "tmp" / name for name in names)

    def _unique_name(self) -> str:
        """In order of time."""
        seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
        name = f"{seconds}.M{microseconds:06}R{secrets.token_hex(8)}.{self._hostname}"
        return name[:200]  # of 255 bytes; mail programs add to it


@dataclass
class _MaildirTransaction:
    """Keeps the envelope until the message comes."""

    _hop: MaildirNextHop
    _sender: Sender = field(init=False)
    _recipients: list[Recipient] = field(default_factory=list)

    async def mail(self, sender: Sender) -> Reply:
        self._sender = sender
        return Reply.from_text(250, "2.1.0 Ok")

    async def recipient(self, recipient: Recipient) -> Reply:
        self._recipients.append(recipient)
        return Reply.from_text(250, "2.1.5 Ok")

    async def send(self, content: SpoolView) -> Sequence[Reply]:
        reply = Reply.from_text(250, "2.0.0 Delivered")
        try:
            await run_in_thread(self._hop.deliver, self._sender, self._recipients, content)
        except OSError as error:
            _log.error("not delivered into a Maildir: %s", error)
            self._hop.on_error(error)
            reply = Reply.from_text(451, "4.3.0 Mailbox cannot be written now")
        return [reply] * len(self._recipients)

    async def end(self) -> None:
        """Nothing was opened."""


def _recipient_copy(sender: Sender, recipient: Recipient, content: SpoolView) -> Iterator[bytes]:
    """The message below final delivery's two fields (RFC 5321, 4.4), lines ended by LF."""
    head = f"Return-Path: <{sender.address}>\nDelivered-To: {recipient.address}\n"
    yield head.encode("utf-8", "surrogateescape")
    held = b""
    for chunk in content.chunks():
        text = held + chunk
        held = b"\r" if text.endswith(b"\r") else b""  # half of a CRLF, or a bare CR, which stays
        yield text[: len(text) - len(held)].replace(b"\r\n", b"\n")
    yield held


def _make_maildir(directory: Path, mark: str = "") -> None:
    folders = [directory / name for name in ("tmp", "cur", "new")]
    if all(folder.is_dir() for folder in folders):
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if mark:
        with suppress(FileExistsError):
            create_private(directory / mark).close()
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory)
    sync_directory(directory.parent)


def _remove_files(paths: Iterable[Path]) -> None:
    """Remove them if possible: mail readers ignore a draft, and remove it after some days."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
