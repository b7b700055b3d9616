"""What is done with a message, or with one of several copies of it: handed on, held, redirected or refused.

Must never answer yes before the next hop, or our own quarantine on the disk, has the copy for every recipient of it, never try
twice, and never raise: what became of other copies must still be said.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spamguard.proxy.journal import Entry
from spamguard.quarantine import Quarantine
from spamguard.relay.contract import NextHop, Transaction
from spamguard.relay.threads import finished
from spamguard.relay.whole import hand_on
from spamguard.settings import Action
from spamguard.spool import Content
from spamguard.wire.values import Envelope, Recipient, Reply, Sender

TROUBLE = Reply.of(451, "4.3.0 Local trouble, try again later")
_NOT_REDIRECTED = Reply.of(451, "4.3.0 Message cannot be redirected now, try again later")

_log = logging.getLogger("spamguard.proxy")


@dataclass(frozen=True, slots=True)
class Copy:
    """What some recipients get. numbers: theirs among all that were accepted. entry: tells of this copy only.

    what: the message as it goes out, or, where nothing does, the refusal. action: what is done with it. to: address to redirect to.
    """

    entry: Entry
    numbers: Sequence[int]
    what: Content | Reply
    action: Action = Action.TAG
    to: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether its recipients are to get it from the next hop."""
        return self.action is Action.TAG and isinstance(self.what, Content)


class Delivery:
    """What is done with copies."""

    def __init__(self, next_hop: NextHop, quarantine: Quarantine) -> None:
        self._next_hop = next_hop
        self._quarantine = quarantine

    async def of(self, copy: Copy, opened: Transaction | None) -> Sequence[Reply]:
        """Do it; a reply for each recipient, or one for all.

        opened: a transaction in which all recipients of the copy, and no others, were accepted; None: it gets one of its own.
        """
        try:
            return await self._done(copy, opened)
        except Exception:  # a fault of ours must not cost the mail  # noqa: BLE001
            _log.exception("%s: a fault in handling this message", copy.entry.id)
            return [TROUBLE]

    async def _done(self, copy: Copy, opened: Transaction | None) -> Sequence[Reply]:
        if isinstance(copy.what, Reply):
            return [copy.what]
        if copy.action is Action.QUARANTINE:
            return [await self._quarantined(copy.what, copy.entry)]
        if copy.action is Action.REDIRECT:
            return [await self._redirected(copy.what, copy.entry.envelope, copy.to)]
        if opened is not None:
            return await opened.send(copy.what)
        envelope = copy.entry.envelope
        return await self._handed_on(copy.what, envelope, envelope.sender, envelope.recipients)

    async def _handed_on(self, content: Content, envelope: Envelope, sender: Sender, recipients: Sequence[Recipient]) -> list[Reply]:
        transaction = self._next_hop.transaction(envelope.client)
        try:
            return await hand_on(transaction, sender, recipients, content)
        finally:
            await transaction.end()

    async def _quarantined(self, content: Content, entry: Entry) -> Reply:
        """Yes once it is on the disk. The next hop gets nothing."""
        try:
            await finished(
                partial(self._quarantine.store, entry.id, content, entry.envelope, entry.label, entry.time, str(entry.listener.endpoint))
            )
        except OSError as error:
            _log.error("%s: quarantine: %s", entry.id, error)
            return TROUBLE
        return Reply.of(250, f"2.0.0 Held as {entry.id}")

    async def _redirected(self, content: Content, envelope: Envelope, to: str) -> Reply:
        """To another recipient; whatever goes wrong there is temporary for this client."""
        asked = envelope.sender
        sender = Sender(asked.address, tuple(one for one in asked.parameters if one.keyword not in ("ENVID", "RET")))
        (reply,) = await self._handed_on(content, envelope, sender, [Recipient(to)])
        return reply if reply.positive else _NOT_REDIRECTED
