"""All accounts as `folders.broker.Mailboxes`, for the watcher of folders."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Collection, Sequence

from spamguard.folders.maildir import Changes, Folder, Mailbox, MessageFile
from spamguard.imap.account import AccountWatch
from spamguard.imap.records import FolderRow

_PATIENCE_SECONDS = 5.0  # for an account that is being listed, as when we have just started


class ImapMailboxes:
    """The accounts, for one watcher, which hears of every change once. An OSError concerns only
    what a method was asked about.
    """

    def __init__(self, watches: Sequence[AccountWatch]) -> None:
        names = [watch.account.name for watch in watches]
        mailboxes = [Mailbox(name, name, number) for number, name in enumerate(names)]
        self._watches = dict(zip(mailboxes, watches, strict=True))
        self._changed = threading.Condition()
        self._changes = Changes()
        self._listed: set[tuple[AccountWatch, FolderRow]] = set()

    def find_mailboxes(self) -> list[Mailbox]:
        return list(self._watches)

    def unreadable_directories(self) -> dict[str, str]:
        troubles = ((mailbox, watch.status.trouble) for mailbox, watch in self._watches.items())
        return {mailbox.path: text for mailbox, text in troubles if text}

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        watch, until = self._watches[mailbox], time.monotonic() + _PATIENCE_SECONDS
        while not (watch.is_listed or watch.status.trouble) and time.monotonic() < until:
            time.sleep(0.1)
        if not watch.is_listed:
            raise OSError(errno.EAGAIN, watch.status.trouble or "is being listed", mailbox.path)
        return [Folder(mailbox, row.directory) for row in watch.folders()]

    def list_files(self, folder: Folder) -> dict[str, list[str]]:
        watch, row = self._find(folder)
        self._listed.add((watch, row))
        return {"new": [], "cur": [f"{name}:2,{flags}" for name, flags in watch.shown(row)]}

    def open_file(self, folder: Folder, file: MessageFile) -> int:
        watch, row = self._find(folder)
        return watch.read(row, file.name.partition(":")[0])

    def wait_for_changes(self, timeout: float) -> Changes:
        if timeout:  # the watcher rests: it has written down all that was listed
            listed, self._listed = self._listed, set()
            for watch, row in listed:
                watch.note_known(row)
        with self._changed:
            self._changed.wait_for(lambda: self._changes != Changes(), timeout)
            changes, self._changes = self._changes, Changes()
        return changes

    def tell(self, watch: AccountWatch, directories: Collection[str] | None) -> None:
        """Something has changed in folders of an account; None: which folders it has."""
        (mailbox,) = (each for each, known in self._watches.items() if known is watch)
        told = {Folder(mailbox, directory) for directory in directories or ()}
        with self._changed:
            gone = {mailbox} if directories is None else set[Mailbox]()
            before = self._changes
            self._changes = Changes(before.folders | told, before.mailboxes | gone)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is open."""

    def _find(self, folder: Folder) -> tuple[AccountWatch, FolderRow]:
        watch = self._watches.get(folder.mailbox)
        row = watch.folder(folder.directory) if watch else None
        if watch is None or row is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder.directory)
        return watch, row
