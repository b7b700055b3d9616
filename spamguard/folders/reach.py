"""The way to people's mailboxes that the settings say: our own, or by the process that may open them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spamguard.folders import names
from spamguard.folders.contract import Mailbox, Mailboxes
from spamguard.folders.opener import LocalMailboxes
from spamguard.folders.remote import RemoteMailboxes
from spamguard.settings import Watch


def mailboxes_of(watches: Sequence[Watch], opener: Path | None, *, notify: bool = True) -> Mailboxes:
    """To be closed by the caller. Does not fail: whoever opens them may come later. opener: the socket; notify: as in `LocalMailboxes`."""
    return LocalMailboxes(watches, notify=notify) if opener is None else RemoteMailboxes(opener, watches)


def is_maildir(mailboxes: Mailboxes, mailbox: Mailbox, *, closed: bool) -> bool:
    """Whether what a pattern fits is one, and not what a Maildir lies in. closed: what to say of one that cannot be looked at."""
    try:
        return any(names.parts(place.directory) == names.INBOX for place in mailboxes.folders(mailbox))
    except OSError:
        return closed
