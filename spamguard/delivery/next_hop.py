"""The contract that every next hop keeps, and its errors.

`tests/contract/test_next_hop.py` holds every implementation to the contract. An error has a text
for the log, and a short fixed reply for the client. That reply is always temporary: trouble of ours
or of the next hop must never make a permanent refusal. A parameter goes out only to a hop that has
announced its extension.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from spamguard.errors import error_text
from spamguard.smtp.envelope import Client, Envelope, Recipient, Reply, Sender, repeat_reply
from spamguard.storage import SpoolView

ErrorCallback = Callable[[Exception], None]
"""Called each time a hop cannot be reached, is lost or times out; not for its refusals."""


def ignore_error(error: Exception) -> None:
    """The callback where nobody counts errors."""


class NextHopTransaction(Protocol):
    """One message on its way out.

    The calls come in this order: `mail`, `recipient` once or more, `send` at most once, `end`
    always; only a positive reply allows the next call. Trouble (refused connection, timeout, lost
    session) is a 451 reply, never an exception.
    """

    async def mail(self, sender: Sender) -> Reply:
        """Open or borrow a session and pass MAIL on; the next hop's reply, unchanged."""

    async def recipient(self, recipient: Recipient) -> Reply:
        """Pass one RCPT on; the next hop's reply, unchanged."""

    async def send(self, content: SpoolView) -> Sequence[Reply]:
        """DATA, the message, the final dot: one attempt.

        One reply for each accepted recipient, in order, where the hop `answers_each`; else one.
        """

    async def end(self) -> None:
        """Give the session back, or close it; idempotent."""


class NextHop(Protocol):
    """A way out, used by many transactions at once in one event loop."""

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data (LMTP, Maildir)."""

    @property
    def extensions(self) -> Mapping[str, str] | None:
        """EHLO keywords (upper case) and parameters of the last session; None before the first."""

    async def probe(self) -> str:
        """Find out what the hop offers, and why it cannot be used, or ""; never raises."""

    def transaction(self, client: Client) -> NextHopTransaction:
        """A new transaction; the client is announced by XFORWARD where the hop accepts it."""

    async def close(self) -> None:
        """Close idle sessions; running transactions finish."""


async def deliver(hop: NextHop, envelope: Envelope, content: SpoolView) -> list[Reply]:
    """Attempt a transaction of its own once; the final reply for each recipient."""
    transaction = hop.transaction(envelope.client)
    try:
        reply = await transaction.mail(envelope.sender)
        if not reply.is_positive:
            return [reply] * len(envelope.recipients)
        replies = [await transaction.recipient(recipient) for recipient in envelope.recipients]
        accepted = [index for index, reply in enumerate(replies) if reply.is_positive]
        if accepted:
            data_replies = repeat_reply(await transaction.send(content), len(accepted))
            for index, reply in zip(accepted, data_replies, strict=True):
                replies[index] = reply
        return replies
    finally:
        await transaction.end()


# ---- errors

NO_SMTPUTF8 = Reply.from_text(553, "5.6.7 next hop does not take internationalised mail")


class DeliveryError(Exception):  # no error of ours: the network is like that
    """The next hop could not be asked. The text is for the log, the reply for the client."""

    kind = "trouble"  # for the metrics
    reply = Reply.from_text(451, "4.4.1 next hop cannot be asked now, try again later")


class UnreachableError(DeliveryError):
    """No session could be opened."""

    kind = "unreachable"


class UnsafeError(DeliveryError):
    """There is no TLS where it is required, or somebody meddles with it."""

    kind = "unsafe"


class TlsHandshakeError(UnsafeError):
    """TLS could not be started, although the next hop offers it."""

    kind = "nohandshake"


class NextHopTimeoutError(DeliveryError):
    """The next hop exceeded a deadline, or does not speak the protocol."""

    kind = "stalled"


class DisconnectedError(DeliveryError):
    """The session has ended or is out of step: before the data it may be opened again, once."""

    kind = "lost"


class ClosingError(DisconnectedError):
    """The hop ended the session with a 421; our client's goes on and is told so by a 451."""

    kind = "closing"

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = replace(reply, code=451)


def describe_error(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case OSError(errno=int(number)) if number > 0 and not isinstance(error, ssl.SSLError):
            return os.strerror(number)  # the event loop's own text names its call
    return error_text(error) or type(error).__name__


# ---- extensions

# AUTH is not here: our client's login does not concern the next hop.
_EXTENSION_BY_PARAMETER = {
    "SIZE": "SIZE",  # RFC 1870
    "BODY": "8BITMIME",  # RFC 6152
    "SMTPUTF8": "SMTPUTF8",  # RFC 6531
    "RET": "DSN",  # RFC 3461
    "ENVID": "DSN",
    "NOTIFY": "DSN",
    "ORCPT": "DSN",
}


def drop_unsupported(step: Sender | Recipient, extensions: Mapping[str, str]) -> Sender | Recipient:
    """The step without the parameters that a hop with these extensions does not accept."""
    supported = tuple(
        parameter
        for parameter in step.parameters
        if _EXTENSION_BY_PARAMETER.get(parameter.keyword) in extensions
    )
    return replace(step, parameters=supported)
