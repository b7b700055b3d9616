"""One mail transaction from the door to the next hop.

The procedure is `FilterTransaction.data`: judge, decide, tag or refuse, deliver, record. Usually
all recipients share one verdict, and the message goes out in the transaction that is already open
at the next hop. Where users have taught otherwise, and the next hop answers for each recipient,
each group of recipients gets a copy of its own. A door that has one answer for all, before such a
hop, takes one recipient at a time; so a refusal is only for those that it is meant for.

Must never answer yes before the next hop, or our own quarantine on the disk, has the message for
every accepted recipient; never refuse for good because of a fault of ours; never send a message
twice; and never make mail of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

from spamguard import keys
from spamguard.aio import run_in_thread
from spamguard.config.options import FORGED_FIELDS, Action, Listener, OnError, Policy, Position
from spamguard.delivery.next_hop import (
    NextHop,
    NextHopTransaction,
    deliver,
    needs_smtputf8,
)
from spamguard.delivery.quarantine import Quarantine
from spamguard.engine import policy
from spamguard.engine.policy import Decision
from spamguard.mail.message import OutgoingMessage, has_received_on_top
from spamguard.proxy.delivery_log import Copy, DeliveryRecord, decide_copies
from spamguard.proxy.scorer import NotScanned
from spamguard.records import Scan
from spamguard.smtp.envelope import (
    Client,
    Envelope,
    Recipient,
    Replies,
    Reply,
    Sender,
    count_hops,
    received_field,
    repeat_reply,
)
from spamguard.storage import Spool, SpoolView
from spamguard.users import UserResolver

_log = logging.getLogger("spamguard.proxy")

REFUSAL_REPLIES: Mapping[Action, Reply] = {
    Action.REJECT: Reply.from_text(550, "5.7.1 Message refused as unsolicited"),
    Action.DEFER: Reply.from_text(451, "4.7.1 Message deferred, try again later"),
}
"""The reply to the sender, for actions that refuse a message."""
NOT_JUDGED_REPLY = Reply.from_text(451, "4.3.0 Message cannot be judged now, try again later")

MAX_HOPS = 50
"""Received fields from which on a message is in a loop (RFC 5321, section 6.3)."""

_NEXT_HOP_EXTENSIONS = ("8BITMIME", "SMTPUTF8", "DSN")
_SMTPUTF8_PROTOCOLS = {  # in Received (RFC 6531, section 4.3)
    "ESMTP": "UTF8SMTP",
    "ESMTPS": "UTF8SMTPS",
    "LMTP": "UTF8LMTP",
    "LMTPS": "UTF8LMTPS",
}
_MAIL_LOOP = Reply.from_text(554, "5.4.6 Too many hops")
_CANNOT_REDIRECT = Reply.from_text(451, "4.3.0 Message cannot be redirected now, try again later")
# For the log only: our own client gets a 421.
_CANCELLED = Reply.from_text(421, "4.3.2 Cut off, nobody knows whether the next hop has it")


class MailTransaction(Protocol):
    """A mail transaction, as a door calls it: `mail`, `recipient` …, `data` once at most, `end`."""

    async def mail(self, sender: Sender) -> Reply:
        """The reply to MAIL."""

    async def recipient(self, recipient: Recipient) -> Reply:
        """The reply to RCPT."""

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """Judge the message and deliver it.

        One reply for each accepted recipient, in order, where the proxy `answers_each`; else one.
        The door closes the spool afterwards.

        Parameters
        ----------
        oddities
            Odd bytes that the door has normalised (`DataReader`).
        """

    async def end(self) -> None:
        """Release everything. Always called; idempotent."""


class Proxy(Protocol):
    """What a door passes mail to."""

    @property
    def answers_each(self) -> bool:
        """Whether every recipient gets a reply of its own after the data."""

    @property
    def extensions(self) -> Mapping[str, str]:
        """The next hop's 8BITMIME, SMTPUTF8 and DSN, if offered; empty before its first EHLO."""

    def message(self, client: Client) -> MailTransaction:
        """A new transaction."""


Judge = Callable[[Spool, bytes, tuple[str, ...]], Awaitable[Scan | NotScanned]]
"""`ScorerPool.judge` with the options of one door."""


class ProxyContext(NamedTuple):
    """The parts that all listeners and scanners of one worker share."""

    quarantine: Quarantine
    key: Callable[[], bytes]  # that signs verdicts; raises SpamguardError without one
    record: Callable[[DeliveryRecord], None]  # keeps a finished record, without waiting
    settle: Callable[[], None]  # called when lessons wait for settling
    user_resolver: UserResolver | None = None  # without it all recipients are judged alike


@dataclass
class PolicyJudge:
    """Judges by the policy of one listener or scanner."""

    scan: Judge
    context: ProxyContext
    policy: Policy

    async def judge(
        self,
        message: Spool,
        header: bytes,
        on_top: bytes,
        names: Sequence[str],
        record: DeliveryRecord,
        *,
        separate_copies: bool,
    ) -> list[Copy]:
        """The copies; none, with a reason in the record, if the message could not be judged.

        Parameters
        ----------
        on_top
            As in `ScorerPool.judge`.
        names
            Addresses or users whose mail it is, as far as known.
        separate_copies
            As in `decide_copies`.
        """
        resolver = self.context.user_resolver
        candidates = resolver.all_candidates(names) if resolver else ()
        scan = await self.scan(message, on_top, candidates)
        record.set_judged(header)
        if scan.settle:
            self.context.settle()
        if isinstance(scan, NotScanned):
            record.set_failure(scan.reason)
            return []
        if keys.is_probe(self.context.key(), header, record.time):
            verdict = replace(scan.verdict, label="spam")
            decision = Decision(Action.TAG, is_unwanted=True, spam_from=scan.threshold)
            return [Copy(range(len(names)), scan, verdict, decision)]
        users = [""] * len(names)
        if resolver and scan.personal:
            users = resolver.resolve(names, scan.personal)
        return decide_copies(scan, users, self.policy, separate_copies=separate_copies)

    def header_fields(self, copy: Copy, copy_id: str) -> list[bytes]:
        """The signed header fields of a copy. Raises SpamguardError if there is no key."""
        verdict, decision = copy.verdict, copy.decision
        signed = keys.sign_verdict(
            self.context.key(), verdict, decision.action, copy_id, copy.scan.digest
        )
        return policy.header_fields(
            verdict, decision, signed, tell_probability=self.policy.tell_probability
        )

    def record(self, record: DeliveryRecord) -> None:
        """Keep a finished record. A fault here must not change the reply: mail would come again."""
        try:
            self.context.record(record)
        except Exception:  # noqa: BLE001  see above
            _log.exception("%s: a fault in recording this message", record.id)


@dataclass
class FilterProxy:
    """The proxy behind one listener."""

    listener: Listener
    next_hop: NextHop
    judge: PolicyJudge
    hostname: str  # ours, in Received

    @property
    def answers_each(self) -> bool:
        return self.next_hop.answers_each

    @property
    def extensions(self) -> Mapping[str, str]:
        offered = self.next_hop.extensions or {}
        return {keyword: offered[keyword] for keyword in _NEXT_HOP_EXTENSIONS if keyword in offered}

    def message(self, client: Client) -> FilterTransaction:
        return FilterTransaction(self, client)


Output = tuple[DeliveryRecord, SpoolView | Reply]
"""A copy of the message: its record, and how it goes out, or the refusal."""


class FilterTransaction:
    """One mail transaction."""

    def __init__(self, proxy: FilterProxy, client: Client) -> None:
        self._proxy = proxy
        self._client = client
        self._transaction = proxy.next_hop.transaction(client)
        self._sender = Sender("")
        self._accepted: list[Recipient] = []

    async def mail(self, sender: Sender) -> Reply:
        self._sender = sender
        if needs_smtputf8(sender):
            protocol = self._client.protocol
            protocol = _SMTPUTF8_PROTOCOLS.get(protocol, protocol)
            self._client = replace(self._client, protocol=protocol)
        return await self._transaction.mail(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        reply = await self._transaction.recipient(recipient)
        if reply.is_positive:
            self._accepted.append(recipient)
        return reply

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        envelope = Envelope(self._sender, tuple(self._accepted), self._client)
        record = DeliveryRecord(self._proxy.listener, envelope, message.size, oddities)
        try:
            outputs = await self._prepare(message, record)
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in handling this message", record.id)
            outputs = [(record, Replies.LOCAL_ERROR)]
        record, output = outputs[0]
        # The transaction that is open serves if everybody gets the same message, and gets it here.
        opened: NextHopTransaction | None = self._transaction
        if len(outputs) > 1 or record.action not in (None, Action.TAG) or isinstance(output, Reply):
            opened = None
            await self.end()
        replies: dict[int, Reply] = {}
        for record, output in outputs:
            of_copy: Sequence[Reply] = [_CANCELLED]
            try:
                of_copy = await self._deliver(record, output, opened)
            finally:  # also if the worker is stopping
                record.finish(of_copy)
                self._proxy.judge.record(record)
            recipients = record.copy.recipients if record.copy else range(len(self._accepted))
            replies.update(zip(recipients, repeat_reply(of_copy, len(recipients)), strict=True))
        count = len(self._accepted) if self._proxy.answers_each else 1
        return [replies[index] for index in range(count)]

    async def end(self) -> None:
        await self._transaction.end()

    async def _prepare(self, message: Spool, record: DeliveryRecord) -> list[Output]:
        """What each recipient gets. Nothing has happened to the message yet."""
        proxy, listener = self._proxy, self._proxy.listener
        is_server = listener.position is Position.STANDALONE
        make_received = partial(received_field, self._client, proxy.hostname)
        received = b""
        if is_server:
            recipient = self._accepted[0].address if len(self._accepted) == 1 else ""
            received = make_received(record.id, recipient, record.time)
        outgoing = OutgoingMessage(message, received, FORGED_FIELDS, listener.limits.header_size)
        header = outgoing.header
        if is_server and count_hops(header) > MAX_HOPS:
            return [(record, _MAIL_LOOP)]
        # The judge reads a Received field about the client as if it stood on top, unless a server
        # before us has written one. It has no id of ours: that would be a new word each time.
        on_top = b""
        if is_server or (self._client.forwarded and not has_received_on_top(header)):
            on_top = make_received("", "", record.time) + b"\r\n"
        names = [recipient.address for recipient in self._accepted]
        judge, separate_copies = proxy.judge, proxy.answers_each
        try:
            copies = await judge.judge(
                message, header, on_top, names, record, separate_copies=separate_copies
            )
            outputs: list[Output] = []
            for copy, part in zip(copies, record.split(copies), strict=True):
                output: SpoolView | Reply | None = REFUSAL_REPLIES.get(copy.decision.action)
                if output is None:
                    fields = judge.header_fields(copy, part.id)
                    output = outgoing.tag(fields, copy.decision.subject_prefix)
                outputs.append((part, output))
            if outputs:
                return outputs
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in judging this message", record.id)
            record.set_failure("error")
        if listener.on_error is OnError.DEFER:
            return [(record, NOT_JUDGED_REPLY)]
        return [(record, outgoing.tag(policy.not_scanned_fields(record.reason)))]

    async def _deliver(
        self, record: DeliveryRecord, output: SpoolView | Reply, opened: NextHopTransaction | None
    ) -> Sequence[Reply]:
        """Deliver a copy; a reply for each recipient, or one for all. Never raises.

        `opened` is a transaction in which exactly the copy's recipients were accepted; without it
        the copy gets one of its own.
        """
        envelope = record.envelope
        try:
            if isinstance(output, Reply):
                return [output]
            if record.action is Action.QUARANTINE:
                return [await self._hold(output, record)]
            if opened is not None:
                return await opened.send(output)
            redirect_to = record.copy.decision.to if record.copy else ""
            recipients = [Recipient(redirect_to)] if redirect_to else envelope.recipients
            transaction = self._proxy.next_hop.transaction(self._client)
            try:
                replies = await deliver(transaction, envelope.sender, recipients, output)
            finally:
                await transaction.end()
            # An error at the new address is temporary for this client.
            if redirect_to and not replies[0].is_positive:
                return [_CANNOT_REDIRECT]
            return replies
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in handling this message", record.id)
            return [Replies.LOCAL_ERROR]

    async def _hold(self, content: SpoolView, record: DeliveryRecord) -> Reply:
        """Quarantine the message: a yes once it is on the disk."""
        try:
            await run_in_thread(
                self._proxy.judge.context.quarantine.store,
                record.id,
                content,
                record.envelope,
                record.label,
                record.time,
                str(record.listener.listen),
            )
        except OSError as error:
            _log.error("%s: quarantine: %s", record.id, error)
            return Replies.LOCAL_ERROR
        return Reply.from_text(250, f"2.0.0 Held as {record.id}")
