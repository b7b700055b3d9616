"""What the proxy needs of the one who judges, and what the doors need of the proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from spamguard.records import Scan
from spamguard.settings import Action
from spamguard.spool import Spool
from spamguard.wire.values import Client, Recipient, Reply, Sender

REFUSALS: Mapping[Action, Reply] = {
    Action.REJECT: Reply.of(550, "5.7.1 Message refused as unsolicited"),
    Action.DEFER: Reply.of(451, "4.7.1 Message deferred, try again later"),
}
"""What a sender is told where that is what the verdict asks for."""
NOT_JUDGED = Reply.of(451, "4.3.0 Message cannot be judged now, try again later")


@dataclass(frozen=True, slots=True)
class NotScanned:
    """A message that could not be judged. reason: one of a few words such as "timeout", "crashed", "no-model", "poison"."""

    reason: str

    @property
    def settle(self) -> bool:
        """Whether that may be for want of tables, which whoever settles makes anew."""
        return self.reason == "no-model"


class Judge(Protocol):
    """Judges messages; never raises, never takes longer than its deadline plus waiting for a free scorer."""

    async def judge(self, message: Spool, on_top: bytes, users: Sequence[str] = ()) -> Scan | NotScanned:
        """on_top: header fields (CRLF after each) that count as if they stood on top of the message.

        users: whose mail it may be, at most `frames.MOST_USERS` of them; no others are in the scan's `personal`.
        """


class Message(Protocol):
    """One mail transaction, as a door sees it: `mail`, `recipient` …, `data` at most once, `end` always."""

    async def mail(self, sender: Sender) -> Reply:
        """Answer to MAIL."""

    async def recipient(self, recipient: Recipient) -> Reply:
        """Answer to RCPT."""

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """Judge it and hand it on. Replies for each accepted recipient, in order, where the proxy `answers_each`, else one.

        oddities: what the door has normalised in it (`wire.data`). The door closes the spool afterwards.
        """

    async def end(self) -> None:
        """Give everything back; idempotent."""


class Proxy(Protocol):
    """What stands behind one door."""

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data."""

    @property
    def extensions(self) -> Mapping[str, str]:
        """What the next hop offers of 8BITMIME, SMTPUTF8 and DSN; nothing before it was first seen."""

    def message(self, client: Client) -> Message:
        """A new transaction."""
