"""One message handed on in one go, for those who know all its recipients beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from spamguard.relay.contract import Transaction
from spamguard.spool import Content
from spamguard.wire.values import Recipient, Reply, Sender, for_each


async def hand_on(transaction: Transaction, sender: Sender, recipients: Sequence[Recipient], content: Content) -> list[Reply]:
    """All steps of a new transaction but its end; one attempt. What the next hop has said in the end about each recipient, in order."""
    reply = await transaction.mail(sender)
    if not reply.positive:
        return [reply] * len(recipients)
    replies = [await transaction.recipient(recipient) for recipient in recipients]
    accepted = [number for number, reply in enumerate(replies) if reply.positive]
    if accepted:
        for number, answer in zip(accepted, for_each(await transaction.send(content), len(accepted)), strict=True):
            replies[number] = answer
    return replies
