"""One account on a real `imap` of Dovecot, step by step: what is cheap is spam."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spamguard.config.accounts import Mode
from spamguard.folders.maildir import Folder, MessageFile
from spamguard.imap.account import AccountWatch
from spamguard.imap.bodies import Body, RecentBodies
from spamguard.imap.judge import Answer
from spamguard.imap.mailboxes import ImapMailboxes
from tests.e2e.ports import open_directory
from tests.support import imap_server
from tests.support.imap_server import ImapServer
from tests.unit.folders.maildirs import deliver, maildir
from tests.unit.imap.stage import whole

FOLDERS = (".Junk", ".Archive", ".Trash")


@dataclass
class Desk:
    """What a test has before it."""

    box: Path
    server: ImapServer
    state: Path
    mode: Mode = Mode.MOVE
    options: dict[str, Any] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)
    watch: AccountWatch = field(init=False)
    mailboxes: ImapMailboxes = field(init=False)

    def start(self) -> None:
        """As the process does."""
        account = self.server.account("anna", self.mode, **self.options)
        self.watch = AccountWatch(
            account,
            self.state,
            self._judge,
            self._tell,
            RecentBodies(),
        )
        self.mailboxes = ImapMailboxes([self.watch])

    def _tell(self, watch: AccountWatch, names: Collection[str] | None) -> None:
        self.mailboxes.tell(watch, names)

    def _judge(self, body: Body, user: str) -> Answer:
        raw = whole(body)
        self.asked.append(raw)
        is_spam = b"cheap" in raw
        label = "spam" if is_spam else "ham"
        return Answer(f"X-Spamguard: {label}; id={len(self.asked)}".encode(), is_spam, label)

    def step(self, times: int = 2) -> None:
        """Look at everything, and do what follows."""
        for _ in range(times):
            self.watch._poll_at = 0.0
            self.watch.step()

    def deliver(self, text: str, folder: str = "") -> Path:
        raw = f"Message-ID: <{text.replace(' ', '.')}@x>\nSubject: {text}\n\nbody\n"
        return deliver(self.box / folder, raw.encode())

    def lying(self, folder: str = "") -> list[str]:
        """The subjects in a Maildir."""
        files = [file for part in ("new", "cur") for file in (self.box / folder / part).iterdir()]
        return sorted(
            file.read_bytes().split(b"Subject: ")[1].split(b"\n")[0].decode() for file in files
        )

    def move(self, text: str, source: str, target: str) -> None:
        """As a person does, by another program."""
        for file in [
            *(self.box / source / "new").iterdir(),
            *(self.box / source / "cur").iterdir(),
        ]:
            if f"Subject: {text}\n".encode() in file.read_bytes():
                file.rename(self.box / target / "cur" / f"{file.name.partition(':')[0]}:2,S")
                return
        raise AssertionError(f"there is no {text!r} in {source!r}")

    def shown(self, directory: str = "") -> dict[str, bytes]:
        """The messages that the watcher of folders sees, by subject."""
        (mailbox,) = self.mailboxes.find_mailboxes()
        folder, found = Folder(mailbox, directory), dict[str, bytes]()
        for name in self.mailboxes.list_files(folder)["cur"]:
            with os.fdopen(
                self.mailboxes.open_file(folder, MessageFile("cur", name)), "rb"
            ) as file:
                raw = file.read()
            found[raw.split(b"Subject: ")[1].split(b"\r\n")[0].decode()] = raw
        self.mailboxes.wait_for_changes(0.001)  # as the watcher does when it has noted all this
        return found

    def counts(self, directory: str = "") -> int:
        """How many messages the watcher sees, without opening them."""
        (mailbox,) = self.mailboxes.find_mailboxes()
        return len(self.mailboxes.list_files(Folder(mailbox, directory))["cur"])

    def uncertain(self) -> None:
        """The server counts anew: UIDVALIDITY, which is the time, is another one everywhere."""
        time.sleep(1.1)
        for folder in ("", *FOLDERS):
            for file in (self.box / folder).glob("dovecot*"):
                file.unlink()


@contextmanager
def desk(
    mode: Mode = Mode.MOVE,
    capability: str = "",
    refused: tuple[str, ...] = (),
    cuts: Callable[[str], bool] = lambda _: False,
    **options: Any,
) -> Iterator[Desk]:
    with ExitStack() as stack:
        place = stack.enter_context(open_directory())
        box, state = maildir(place / "mail", *FOLDERS), place / "state"
        state.mkdir()
        if os.getuid() == 0:  # Dovecot runs as somebody else then
            for path in (box, *box.rglob("*")):
                shutil.chown(path, "nobody")
        serving = imap_server.serving({"anna": box}, capability, cuts, refused)
        server = stack.enter_context(serving)
        found = Desk(box, server, state, mode, options)
        found.start()
        try:
            yield found
        finally:
            found.watch.close()
