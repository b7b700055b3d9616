"""Messages sent to scripted next hops."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from spamguard.config.options import Hop, Tls
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Client, EsmtpParameter, Recipient, Reply, Sender
from spamguard.storage import Spool, SpoolView
from tests.support.hops import FakeHop
from tests.support.waiting import PATIENCE

Result = TypeVar("Result")
CLIENT = Client("192.0.2.7", "client.example", "4711", "helo.example", "ESMTP", source="REMOTE")
MESSAGE = b"Subject: hello\r\n\r\n.dot\r\n..two\r\nbye\r\n"
LOST = UNREACHABLE = UNSAFE = Reply.from_text(
    451, "4.4.1 next hop cannot be asked now, try again later"
)


def content(body: bytes = MESSAGE, head: bytes = b"") -> SpoolView:
    """A message as it goes out."""
    spool = Spool(Path(tempfile.gettempdir()))
    spool.write(body)
    return SpoolView(head, spool, 0)


def hop_to(fake: FakeHop, **settings: object) -> SmtpNextHop:
    """A next hop that leads to this server, with waits of an hour by default."""
    waits = {
        "connect": 3600.0,
        "command": 3600.0,
        "data": 3600.0,
        "tls": Tls.OPPORTUNISTIC,
    } | settings
    return SmtpNextHop(Hop(fake.endpoint, **waits), "me.example")


async def hand_on(
    hop: SmtpNextHop,
    recipients: Sequence[str | Recipient] = ("to@r.example",),
    sender: str | Sender = "from@s.example",
    message: SpoolView | None = None,
    before_data: Callable[[], Awaitable[None]] | None = None,
) -> list[Reply]:
    """One message; the replies to MAIL, to each RCPT, and to the data, as far as it went."""
    transaction = hop.transaction(CLIENT)
    try:
        replies = [await transaction.mail(Sender(sender) if isinstance(sender, str) else sender)]
        if not replies[0].is_positive:
            return replies
        answers = [
            await transaction.recipient(Recipient(one) if isinstance(one, str) else one)
            for one in recipients
        ]
        if before_data is not None:
            await before_data()
        data = (
            await transaction.send(message or content())
            if any(answer.is_positive for answer in answers)
            else ()
        )
        return [*replies, *answers, *data]
    finally:
        await transaction.end()


def talk(
    fake: FakeHop, what: Callable[[SmtpNextHop], Awaitable[Result]], **settings: object
) -> Result:
    """Run the server, and this against it; nothing may stay open."""

    async def run() -> Result:
        async with fake.running():
            hop = hop_to(fake, **settings)
            try:
                async with asyncio.timeout(PATIENCE):
                    return await what(hop)
            finally:
                await hop.close()

    return asyncio.run(run())


def codes(replies: Sequence[Reply]) -> list[int]:
    """Only the codes."""
    return [reply.code for reply in replies]


def parameters(*pairs: tuple[str, str | None]) -> tuple[EsmtpParameter, ...]:
    """Parameters of MAIL or RCPT."""
    return tuple(EsmtpParameter(*pair) for pair in pairs)
