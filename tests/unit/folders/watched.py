"""A filter and a watcher of real Maildirs; tests wait for nothing but the next turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spamguard import keys
from spamguard.config.options import Action, Listener, Settings, Watch
from spamguard.engine.filter import Filter
from spamguard.folders.maildir import Folder, LocalMailboxes, MessageFile
from spamguard.folders.watcher import Watcher
from tests.support.waiting import PATIENCE
from tests.unit.filters import mail
from tests.unit.folders.maildirs import maildir

MAIL = [raw for _, raw in mail(60, 5)]
DEBOUNCE = 0.05
SOON = 3 * DEBOUNCE


def rest(watcher: Watcher) -> None:
    """Run the watcher until there is nothing to do, now or soon."""
    while watcher.run_once(_left(watcher)) or _left(watcher):
        pass


def _left(watcher: Watcher) -> float:
    """Seconds until something is due; 0: nothing is due soon."""
    left = watcher.next_due - time.monotonic()
    return max(left, 0.001) if left < SOON else 0.0


class Watched:
    """Mailboxes below a directory, and their watcher. opened: files that were opened."""

    def __init__(self, place: Path, debounce: float = DEBOUNCE, **settings: object) -> None:
        self.debounce = debounce
        self.place = place
        self.state = place / "state"
        self.box = maildir(place / "home" / "anna", ".Junk", ".Archive", ".Trash", ".Sent")
        self.watch = replace(Watch(f"{place}/home/*"), **settings)
        self.listeners: tuple[Listener, ...] = ()
        self.reopen()
        self.settled = 0
        self.opened: list[MessageFile] = []
        self.start()

    def reopen(self) -> None:
        self.filter = Filter.open(self.state, _bits=14, _durable=False)

    def start(self) -> None:
        self.mailboxes = LocalMailboxes([self.watch])
        self._open = self.mailboxes.open_file
        self.mailboxes.open_file = self._opening
        self.watcher = Watcher(
            self.filter,
            Settings(self.state, self.listeners, watch=(self.watch,)),
            self.mailboxes,
            self._settle,
            self.debounce,
        )

    def _opening(self, place: Folder, file: MessageFile) -> int:
        self.opened.append(file)
        return self._open(place, file)

    def _settle(self) -> None:
        self.settled += 1

    def rest(self) -> None:
        """Run the watcher until there is nothing to do."""
        rest(self.watcher)

    def turn_until(self, check: Callable[[], object]) -> None:
        """Run the watcher until this is so; AssertionError: it never is."""
        until = time.monotonic() + PATIENCE
        while not check():
            assert time.monotonic() < until
            self.watcher.run_once(0.02)

    def stop(self) -> None:
        self.watcher.close()
        self.mailboxes.close()

    def close(self) -> None:
        self.stop()
        self.filter.close()

    def votes(self) -> dict[str, str | None]:
        """The vote on each message of MAIL, by user and number."""
        numbers = {self.filter._reader.digest(raw): number for number, raw in enumerate(MAIL)}
        last = {(vote.digest, vote.user): vote for vote in self.filter.ledger.all_votes()}
        return {f"{vote.user} {numbers[vote.digest]}": vote.label for vote in last.values()}


def signed_by(one: Watched, raw: bytes, label: str) -> bytes:
    """A message as it comes from us, with our verdict on top."""
    verdict = replace(one.filter.judge(raw), label=label)
    key = keys.derive_key(one.filter.key, b"verdict")
    value = keys.sign_verdict(
        key, verdict, Action.TAG, f"id{label}", one.filter._reader.digest(raw)
    )
    return (
        b"Return-Path: <x@example.org>\r\nX-Spam-Status: Yes\r\nX-Spamguard: "
        + value
        + b"\r\nX-Spamguard: spam\r\n"
        + raw
    )
