"""What the process that speaks IMAP says of each account, for `status`, page and monitors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spamguard.config.options import ACCOUNTS_DIRECTORY
from spamguard.status_file import StatusFile
from spamguard.times import local_time


@dataclass
class AccountStatus:
    """One account; times are in seconds since 1970, 0 for never.

    Attributes
    ----------
    connected_since
        0: there is no connection now.
    last_change
        When something was last seen to come, go or change.
    judged, spam, moved
        Messages since the account was added: all, those called spam, those we moved to Junk.
    waiting
        Messages that are not judged yet.
    recent, recent_spam
        The last 100 that were judged, and those of them that were called spam.
    disagreed
        What we called spam, and lies elsewhere; or what lies in Junk, and we called otherwise.
    trouble
        Why it cannot be used as it should; "" for no reason.
    """

    mode: str = ""
    connected_since: int = 0
    last_change: int = 0
    judged: int = 0
    spam: int = 0
    moved: int = 0
    waiting: int = 0
    disagreed: int = 0
    recent: int = 0
    recent_spam: int = 0
    trouble: str = ""

    @property
    def text(self) -> str:
        """All of it in one line, for people."""
        since = f"connected since {local_time(self.connected_since)}"
        texts = [self.mode, since if self.connected_since else "not connected"]
        if self.last_change:
            texts.append(f"last change {local_time(self.last_change)}")
        texts.append(f"{self.judged:,} judged ({self.spam:,} spam), {self.moved:,} moved")
        texts += [f"{self.disagreed:,} that lie elsewhere than we say"] * bool(self.disagreed)
        texts += [f"{self.waiting:,} to be judged"] * bool(self.waiting)
        return ", ".join([*texts, self.trouble] if self.trouble else texts)


_FILE = StatusFile("status.json", dict[str, AccountStatus])


def read_status(state: Path) -> dict[str, AccountStatus]:
    """By the name of the account; empty if nothing is known."""
    return _FILE.read(state / ACCOUNTS_DIRECTORY) or {}


def write_status(state: Path, accounts: dict[str, AccountStatus]) -> None:
    _FILE.write(state / ACCOUNTS_DIRECTORY, accounts)
