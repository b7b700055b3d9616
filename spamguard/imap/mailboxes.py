"""All accounts as `folders.broker.Mailboxes`, for the watcher of folders."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Collection, Sequence

from spamguard.folders.maildir import Changes, Folder, Mailbox, MessageFile, parse_file_name
from spamguard.imap.account import AccountWatch
from spamguard.imap.records import FolderRow

_PATIENCE_SECONDS = 5.0  # for an account that is being listed, as when we have just started
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class ImapMailboxes:
    """The accounts, for one watcher, which hears of every change once. An OSError concerns only
    what a method was asked about.
    """

    def __init__(self, watches: Sequence[AccountWatch]) -> None:
        self._watches = watches
        self._changed = threading.Condition()
        self._changes = Changes()
        self._listed: set[tuple[AccountWatch, FolderRow]] = set()

    def find_mailboxes(self) -> list[Mailbox]:
        return [self._mailbox(watch) for watch in self._watches]

    def unreadable_directories(self) -> dict[str, str]:
        troubles = ((watch.account.name, watch.status.trouble) for watch in self._watches)
        return {name: text for name, text in troubles if text}

    def list_folders(self, mailbox: Mailbox) -> list[Folder]:
        watch, until = self._watch(mailbox), time.monotonic() + _PATIENCE_SECONDS
        while not (watch.is_listed or watch.status.trouble) and time.monotonic() < until:
            time.sleep(0.1)
        if not watch.is_listed:
            raise OSError(errno.EAGAIN, watch.status.trouble or "is being listed", mailbox.path)
        return [Folder(mailbox, row.directory) for row in watch.folders()]

    def list_files(self, folder: Folder) -> dict[str, list[str]]:
        watch, row = self._find(folder)
        hide = watch.hides_unread and row.label not in ("", "ham")
        shown = watch.records.shown(row, hide_unread=hide)
        self._listed.add((watch, row))
        return {"new": [], "cur": [f"{name}:2,{flags}" for name, flags in shown]}

    def open_file(self, folder: Folder, file: MessageFile) -> int:
        watch, row = self._find(folder)
        name = parse_file_name(file.name)
        if name is None or file.part != "cur":
            raise FileNotFoundError(errno.ENOENT, "no message of an account", file.name)
        return _seal(watch.read(row, name.base))

    def wait_for_changes(self, timeout: float) -> Changes:
        if timeout:  # the watcher rests: it has written down all that was listed
            listed, self._listed = self._listed, set()
            for watch, row in listed:
                watch.note_known(row)
        with self._changed:
            if self._changes == Changes():
                self._changed.wait(timeout)
            changes, self._changes = self._changes, Changes()
        return changes

    def tell(self, watch: AccountWatch, directories: Collection[str] | None) -> None:
        """Something has changed in folders of an account; None: which folders it has."""
        if watch not in self._watches:
            return
        mailbox = self._mailbox(watch)
        with self._changed:
            folders, mailboxes = self._changes.folders, self._changes.mailboxes
            if directories is None:
                mailboxes |= {mailbox}
            else:
                folders |= {Folder(mailbox, directory) for directory in directories}
            self._changes = self._changes._replace(folders=folders, mailboxes=mailboxes)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is open."""

    def _mailbox(self, watch: AccountWatch) -> Mailbox:
        return Mailbox(watch.account.name, watch.account.name, self._watches.index(watch))

    def _watch(self, mailbox: Mailbox) -> AccountWatch:
        for watch in self._watches[mailbox.watch : mailbox.watch + 1]:
            if watch.account.name == mailbox.path:
                return watch
        raise FileNotFoundError(errno.ENOENT, "no such account", mailbox.path)

    def _find(self, folder: Folder) -> tuple[AccountWatch, FolderRow]:
        watch = self._watch(folder.mailbox)
        row = watch.folder(folder.directory)
        if row is None:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder.directory)
        return watch, row


def _seal(raw: bytes) -> int:
    """A descriptor of a file in memory that nobody can change any more."""
    descriptor = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(raw)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.utime(descriptor, (0, 0))  # it is whole, whoever asks by its age
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
