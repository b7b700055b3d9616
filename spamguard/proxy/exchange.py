"""One message from the door to the next hop: judged, tagged, handed on once.

Must never answer yes before the next hop, or our own quarantine on the disk, has the message for every accepted
recipient; never refuse for ever because of a fault of ours; never hand a message on twice; and never make mail of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial

from spamguard import policy, signature
from spamguard.ids import RANDOM_BYTES, new_id
from spamguard.proxy.contract import Judge, NotScanned
from spamguard.proxy.journal import Entry
from spamguard.proxy.outgoing import Outgoing
from spamguard.proxy.tools import Tools
from spamguard.records import Scan
from spamguard.relay.contract import NextHop
from spamguard.relay.threads import finished
from spamguard.settings import Action, Listener, OnError, Position
from spamguard.spool import Content, Spool
from spamguard.wire.received import hops, received_field
from spamguard.wire.values import Client, Envelope, Recipient, Reply, Sender

MOST_HOPS = 50  # Received fields before a message counts as going round in circles (RFC 5321, section 6.3)
_OFFERED = ("8BITMIME", "SMTPUTF8", "DSN")

_LOOP = Reply.of(554, "5.4.6 Too many hops")
_DEFERRED = Reply.of(451, "4.7.1 Message deferred, try again later")
_REJECTED = Reply.of(550, "5.7.1 Message refused as unsolicited")
_NOT_JUDGED = Reply.of(451, "4.3.0 Message cannot be judged now, try again later")
_TROUBLE = Reply.of(451, "4.3.0 Local trouble, try again later")
_NOT_REDIRECTED = Reply.of(451, "4.3.0 Message cannot be redirected now, try again later")

_log = logging.getLogger("spamguard.proxy")


class Exchange:
    """What stands behind one door (`contract.Proxy`). hostname: ours, in Received."""

    def __init__(self, listener: Listener, next_hop: NextHop, judge: Judge, tools: Tools, hostname: str) -> None:
        self.listener = listener
        self.next_hop = next_hop
        self.judge = judge
        self.tools = tools
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
        self._judge = exchange.judge
        self._tools = exchange.tools
        self._hostname = exchange.hostname
        self._client = client
        self._transaction = exchange.next_hop.transaction(client)
        self._sender = Sender("")
        self._accepted: list[Recipient] = []

    async def mail(self, sender: Sender) -> Reply:
        """The next hop's answer to MAIL."""
        self._sender = sender
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
        entry = Entry(new_id(time.time(), os.urandom(RANDOM_BYTES)), self._listener, envelope, message.size, oddities)
        try:
            replies = await self._handled(Outgoing(message, self._listener, self._received(entry)), entry)
        except Exception:  # a fault of ours must not cost the mail  # noqa: BLE001
            _log.exception("%s: a fault in handling this message", entry.id)
            replies = [_TROUBLE]
        entry.finish(replies)
        self._record(entry)
        return self._for_each(replies)

    async def end(self) -> None:
        """Give the session with the next hop back."""
        await self._transaction.end()

    def _record(self, entry: Entry) -> None:
        try:
            self._tools.record(entry)
        except Exception:  # somebody has the message: what came of it must be said, or it is sent again  # noqa: BLE001
            _log.exception("%s: a fault in recording this message", entry.id)

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

    def _for_each(self, replies: Sequence[Reply]) -> Sequence[Reply]:
        """One reply for every accepted recipient where that is asked for."""
        wanted = len(self._accepted) if self._next_hop.answers_each else 1
        return replies if len(replies) == wanted else [replies[0]] * wanted

    async def _handled(self, outgoing: Outgoing, entry: Entry) -> Sequence[Reply]:
        if self._listener.position is Position.STANDALONE and hops(outgoing.header) > MOST_HOPS:
            return [_LOOP]
        try:
            prepared = await self._prepared(outgoing, entry)
        except Exception:  # nothing has happened yet; deferred, this message might meet the same fault for ever  # noqa: BLE001
            _log.exception("%s: a fault in judging this message", entry.id)
            entry.failed("error")
            prepared = None
        if prepared is not None:
            return await self._act(*prepared, entry)
        if self._listener.policy.on_error is OnError.DEFER:
            return [_NOT_JUDGED]
        return await self._hand_on(outgoing.tagged(policy.not_scanned(entry.reason)))

    async def _prepared(self, outgoing: Outgoing, entry: Entry) -> tuple[policy.Decision, Content] | None:
        """What is to be done, and with which bytes; None when it could not be judged."""
        found = await self._judge.judge(outgoing.spool, outgoing.on_top(self._evidence(entry)))
        entry.judged(found, outgoing.header)
        if isinstance(found, NotScanned):
            return None
        if found.settle:
            self._tools.settle()
        decision = policy.decide(found.verdict, self._listener.policy, found.threshold)
        entry.decided(decision)
        return decision, outgoing.tagged(self._fields(found, decision, entry.id), decision.subject_prefix)

    def _fields(self, found: Scan, decision: policy.Decision, name: str) -> list[bytes]:
        told = self._listener.policy.tell_probability
        signed = signature.sign(self._tools.key(), found.verdict, decision.action, name, found.digest)
        return policy.header_fields(found.verdict, decision, signed, tell_probability=told)

    async def _act(self, decision: policy.Decision, content: Content, entry: Entry) -> Sequence[Reply]:
        if decision.action is Action.REJECT:
            return [_REJECTED]
        if decision.action is Action.DEFER:
            return [_DEFERRED]
        if decision.action is Action.QUARANTINE:
            return [await self._quarantine(content, entry)]
        if decision.action is Action.REDIRECT:
            return [await self._redirect(content, decision.to)]
        return await self._hand_on(content)

    async def _hand_on(self, content: Content) -> Sequence[Reply]:
        return await self._transaction.send(content)

    async def _quarantine(self, content: Content, entry: Entry) -> Reply:
        """Yes once it is on the disk. The next hop gets nothing: its session is reset."""
        await self.end()
        try:
            await finished(partial(self._tools.quarantine.store, entry.id, content, entry.envelope, entry.label, entry.time))
        except OSError as error:
            _log.error("%s: quarantine: %s", entry.id, error)
            return _TROUBLE
        return Reply.of(250, f"2.0.0 Held as {entry.id}")

    async def _redirect(self, content: Content, to: str) -> Reply:
        """To another recipient in a transaction of its own; whatever goes wrong there is temporary for this client."""
        await self.end()
        transaction = self._next_hop.transaction(self._client)
        try:
            sender = Sender(self._sender.address, tuple(one for one in self._sender.parameters if one.keyword not in ("ENVID", "RET")))
            if not (await transaction.mail(sender)).positive or not (await transaction.recipient(Recipient(to))).positive:
                return _NOT_REDIRECTED
            (reply,) = await transaction.send(content)
            return reply if reply.positive else _NOT_REDIRECTED
        finally:
            await transaction.end()
