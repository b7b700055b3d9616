"""One message from the door to the next hop: judged, tagged, handed on once; or in several copies, where its recipients differ.

Must never answer yes before the next hop, or our own quarantine on the disk, has the message for every accepted
recipient; never refuse for ever because of a fault of ours; never hand a message on twice; and never make mail of its own.

Copies differ only where the next hop answers for each recipient. A door that has one answer for all, before such a hop, takes
one recipient at a time; so a refusal is always for those alone whom it is meant for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spamguard import policy
from spamguard.ids import RANDOM_BYTES, new_id
from spamguard.proxy.contract import NOT_JUDGED, REFUSALS, Judge
from spamguard.proxy.delivery import TROUBLE, Copy, Delivery
from spamguard.proxy.groups import Group
from spamguard.proxy.journal import Entry
from spamguard.proxy.judging import Judging
from spamguard.proxy.outgoing import Outgoing
from spamguard.proxy.tools import Tools
from spamguard.records import Scan
from spamguard.relay.contract import NextHop, Transaction
from spamguard.relay.envelope import needs_smtputf8
from spamguard.settings import Listener, OnError, Position
from spamguard.spool import Content, Spool
from spamguard.wire.received import hops, received_field
from spamguard.wire.values import Client, Envelope, Recipient, Reply, Sender, for_each

MOST_HOPS = 50  # Received fields before a message counts as going round in circles (RFC 5321, section 6.3)
_OFFERED = ("8BITMIME", "SMTPUTF8", "DSN")
_SMTPUTF8 = {"ESMTP": "UTF8SMTP", "ESMTPS": "UTF8SMTPS", "LMTP": "UTF8LMTP", "LMTPS": "UTF8LMTPS"}  # in Received (RFC 6531, section 4.3)

_LOOP = Reply.of(554, "5.4.6 Too many hops")
_CUT_OFF = Reply.of(421, "4.3.2 Cut off, nobody knows whether the next hop has it")  # for the log

_log = logging.getLogger("spamguard.proxy")


class Exchange:
    """What stands behind one door (`contract.Proxy`). hostname: ours, in Received."""

    def __init__(self, listener: Listener, next_hop: NextHop, judge: Judge, tools: Tools, hostname: str) -> None:
        self.listener = listener
        self.next_hop = next_hop
        self.judging = Judging(judge, tools, listener.policy)
        self.delivery = Delivery(next_hop, tools.quarantine)
        self.hostname = hostname

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data."""
        return self.next_hop.answers_each

    @property
    def extensions(self) -> Mapping[str, str]:
        """What the next hop offers of those that must be its own to be announced; nothing before it was first seen."""
        seen = self.next_hop.extensions or {}
        return {keyword: seen[keyword] for keyword in _OFFERED if keyword in seen}

    def message(self, client: Client) -> Passage:
        """A new transaction. client: of the connection, or whom XFORWARD or XCLIENT names."""
        return Passage(self, client)


class Passage:
    """One mail transaction (`contract.Message`)."""

    def __init__(self, exchange: Exchange, client: Client) -> None:
        self._next_hop = exchange.next_hop
        self._listener = exchange.listener
        self._judging = exchange.judging
        self._hostname = exchange.hostname
        self._client = client
        self._transaction = exchange.next_hop.transaction(client)
        self._delivery = exchange.delivery
        self._sender = Sender("")
        self._accepted: list[Recipient] = []

    async def mail(self, sender: Sender) -> Reply:
        """The next hop's answer to MAIL."""
        self._sender = sender
        if needs_smtputf8(sender):
            self._client = replace(self._client, protocol=_SMTPUTF8.get(self._client.protocol, self._client.protocol))
        return await self._transaction.mail(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        """The next hop's answer to RCPT."""
        reply = await self._transaction.recipient(recipient)
        if reply.positive:
            self._accepted.append(recipient)
        return reply

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """Judge it, do what the policy says, and answer what came of it."""
        envelope = Envelope(self._sender, tuple(self._accepted), self._client)
        now = time.time()
        entry = Entry(new_id(now, os.urandom(RANDOM_BYTES)), now, self._listener, envelope, message.size, oddities)
        copies = await self._copies(message, entry)
        opened = self._transaction if len(copies) == 1 and copies[0].goes_on else None
        if opened is None:
            await self.end()  # nobody gets the message in it, or not everybody the same
        replies: dict[int, Reply] = {}
        for copy in copies:
            replies |= zip(copy.numbers, for_each(await self._told(copy, opened), len(copy.numbers)), strict=True)
        return [replies[number] for number in range(len(self._accepted) if self._next_hop.answers_each else 1)]

    async def _told(self, copy: Copy, opened: Transaction | None) -> Sequence[Reply]:
        """What became of a copy, remembered too."""
        told: Sequence[Reply] = [_CUT_OFF]
        try:
            told = await self._delivery.of(copy, opened)
        finally:  # we may be stopping: the client hears so, and comes again
            copy.entry.finish(told)
            self._judging.record(copy.entry)
        return told

    async def end(self) -> None:
        """Give the session with the next hop back."""
        await self._transaction.end()

    def _received(self, entry: Entry) -> bytes:
        """Our Received field where we are a server, else b""."""
        if self._listener.position is not Position.STANDALONE:
            return b""
        only = self._accepted[0].address if len(self._accepted) == 1 else ""
        return received_field(self._client, self._hostname, entry.id, only, entry.time)

    def _evidence(self, entry: Entry) -> bytes:
        """What we know of the client, as a Received field. Without our id: that would be a word of its own each time."""
        known = self._listener.position is Position.STANDALONE or self._client.forwarded
        return received_field(self._client, self._hostname, "", "", entry.time) if known else b""

    async def _copies(self, message: Spool, entry: Entry) -> list[Copy]:
        """What everybody is to get. Nothing has happened yet."""
        try:
            outgoing = Outgoing(message, self._listener, self._received(entry))
            if self._listener.position is Position.STANDALONE and hops(outgoing.header) > MOST_HOPS:
                return [self._one_for_all(entry, _LOOP)]
            copies = await self._judged(outgoing, entry)
            if not copies and self._listener.policy.on_error is OnError.DEFER:
                return [self._one_for_all(entry, NOT_JUDGED)]
            return copies or [self._one_for_all(entry, outgoing.tagged(policy.not_scanned(entry.reason)))]
        except Exception:  # noqa: BLE001
            _log.exception("%s: a fault in handling this message", entry.id)
            return [self._one_for_all(entry, TROUBLE)]

    def _one_for_all(self, entry: Entry, what: Content | Reply) -> Copy:
        return Copy(entry, range(len(self._accepted)), what)

    async def _judged(self, outgoing: Outgoing, entry: Entry) -> list[Copy]:
        """By the verdict of each recipient; none when it could not be judged."""
        try:
            addresses, on_top = [one.address for one in self._accepted], outgoing.on_top(self._evidence(entry))
            apart = self._next_hop.answers_each
            judged = await self._judging.of(outgoing.spool, outgoing.header, on_top, addresses, entry, apart=apart)
            if judged is None:
                return []
            found, groups = judged
            return [self._copy(group, found, outgoing, one) for group, one in zip(groups, _parted(entry, groups), strict=True)]
        except Exception:  # nothing has happened yet; deferred, this message might meet the same fault for ever  # noqa: BLE001
            _log.exception("%s: a fault in judging this message", entry.id)
            entry.failed("error")
            return []

    def _copy(self, group: Group, found: Scan, outgoing: Outgoing, entry: Entry) -> Copy:
        decision = group.decision
        what = REFUSALS.get(decision.action) or outgoing.tagged(self._judging.fields(group, found, entry.id), decision.subject_prefix)
        return Copy(entry, group.numbers, what, decision.action, decision.to)


def _parted(entry: Entry, groups: Sequence[Group]) -> list[Entry]:
    """One entry for each group, the first with the name of the message: a name is signed for one verdict and held for one file."""
    if len(groups) == 1:
        entry.decided(groups[0])
        return [entry]
    names = [entry.id, *(new_id(entry.time, os.urandom(RANDOM_BYTES)) for _ in groups[1:])]
    return [entry.copy(name, group) for name, group in zip(names, groups, strict=True)]
