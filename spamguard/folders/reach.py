"""The way to people's mailboxes that the settings say: our own, or by the process that may open them."""

from __future__ import annotations

from collections.abc import Iterable

from spamguard.folders.contract import Mailboxes
from spamguard.folders.opener import LocalMailboxes, Pattern
from spamguard.folders.remote import RemoteMailboxes
from spamguard.settings import Settings, Watch


def patterns(watches: Iterable[Watch]) -> list[Pattern]:
    """Where the Maildirs are."""
    return [Pattern(watch.maildir, watch.user) for watch in watches]


def mailboxes(settings: Settings) -> Mailboxes:
    """To be closed by the caller. Does not fail: whoever opens them may come later."""
    found = patterns(settings.watch)
    return RemoteMailboxes(settings.watch_socket, found) if settings.watch_socket is not None else LocalMailboxes(found)
