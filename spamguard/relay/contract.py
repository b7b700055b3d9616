"""What every way out has in common. `tests/contract/test_next_hop.py` holds all of them to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from spamguard.spool import Content
from spamguard.wire.values import Client, Recipient, Reply, Sender

Notice = Callable[[Exception], None]
"""Is told each time that a hop could not be asked, was lost or kept us waiting; not of its refusals."""


def unnoticed(trouble: Exception) -> None:
    """Nobody wants to know."""


class Transaction(Protocol):
    """One message on its way out. Trouble (refused connection, timeout, lost session) is a 451 reply, never an exception.

    The calls come in this order: `mail`, `recipient` once or more, `send` at most once, `end` always. Only a positive reply
    lets the next call follow.
    """

    async def mail(self, sender: Sender) -> Reply:
        """Open or borrow a session and pass MAIL on; the next hop's reply, as it is."""

    async def recipient(self, recipient: Recipient) -> Reply:
        """Pass one RCPT on; the next hop's reply, as it is."""

    async def send(self, content: Content) -> Sequence[Reply]:
        """DATA, the message, the final dot: one attempt. One reply for each accepted recipient, in order, where the hop
        `answers_each`, else exactly one reply for all."""

    async def end(self) -> None:
        """Give the session back, or close it; idempotent."""


class NextHop(Protocol):
    """A way out, used by many transactions at once in one event loop."""

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data (LMTP, Maildir)."""

    @property
    def extensions(self) -> Mapping[str, str] | None:
        """EHLO keywords (upper case) and their parameters, as the last session saw them; None before the first."""

    async def probe(self) -> None:
        """Look at what the next hop offers, if that is not known or old; never raises: a hop that is down stays unknown."""

    def transaction(self, client: Client) -> Transaction:
        """A new transaction; nothing is sent before its `mail`. client: told by XFORWARD where the hop takes it."""

    async def close(self) -> None:
        """Close idle sessions; running transactions finish."""
