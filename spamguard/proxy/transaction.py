"""One mail transaction from the door to the next hop, and what becomes of each message.

The procedure is `FilterTransaction.data`: judge, decide, deliver, record. Usually all recipients
share one verdict, and the message goes out in the transaction that is already open at the next hop.
A recipient whose user has taught otherwise may get another verdict: `decide_copies` gives the
recipients of each decision a copy, where the next hop answers for each recipient. A door that has
one answer for all, before such a hop, takes one recipient at a time; so a refusal is only for those
that it is meant for. A `DeliveryRecord` becomes the line in the log and the row of the history.

Must never answer yes before the next hop, or our own quarantine on the disk, has the message for
every accepted recipient; never refuse for good because of a fault of ours; never send a message
twice; never treat a recipient more harshly than the mildest verdict of those with the same copy.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from spamguard import keys
from spamguard.aio import run_in_thread
from spamguard.config.options import (
    FORGED_FIELDS,
    Action,
    Listener,
    OnError,
    Policy,
    Position,
    RejectSettings,
    Rule,
)
from spamguard.counters import DELIVER_STAGE, JUDGE_STAGE, Counters
from spamguard.delivery.next_hop import NextHop, NextHopTransaction, deliver
from spamguard.delivery.quarantine import REFUSED, Quarantine
from spamguard.engine import policy
from spamguard.engine.policy import Decision, decide
from spamguard.log import message_name, quote_value
from spamguard.mail.message import OutgoingMessage, has_received_on_top
from spamguard.proxy.history import (
    NOT_SCANNED,
    HistoryRow,
    HistoryWriter,
    decode_author,
    decode_subject,
)
from spamguard.proxy.scorer import NotScanned
from spamguard.records import EXTRACTOR, Scan, Verdict
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
_mail_log = logging.getLogger("spamguard.mail")

_DEFERRED = Reply.from_text(451, "4.7.1 Message deferred, try again later")
NOT_JUDGED_REPLY = Reply.from_text(451, "4.3.0 Message cannot be judged now, try again later")

MAX_HOPS = 50
"""Received fields from which on a message is in a loop (RFC 5321, section 6.3)."""

_NEXT_HOP_EXTENSIONS = ("8BITMIME", "SMTPUTF8", "DSN")
_MAIL_LOOP = Reply.from_text(554, "5.4.6 Too many hops")
_CANNOT_REDIRECT = Reply.from_text(451, "4.3.0 Message cannot be redirected now, try again later")
# For the log only: our own client gets a 421.
_CANCELLED = Reply.from_text(421, "4.3.2 Cut off, nobody knows whether the next hop has it")
_MAX_LOGGED = 5  # recipients, and users with an own decision; the others are counted


# ---- what is decided


class Copy(NamedTuple):
    """The message as some recipients get it."""

    recipients: Sequence[int]  # their indices in the envelope, from 0, in order
    scan: Scan
    verdict: Verdict  # the mildest of those for these recipients
    decision: Decision
    # Users among them with a decision that differs from that for all people, with the own label.
    personal: Mapping[str, str] = {}


def decide_copies(
    scan: Scan, users: Sequence[str], policy: Policy, *, separate_copies: bool
) -> list[Copy]:
    """The copies; the first is that of recipients judged as for all people.

    Users are those of the recipients, in `scan.personal` or "". Without separate copies there is
    one, and the mildest of the verdicts decides.
    """
    verdicts = {"": scan.verdict, **scan.personal}
    decisions = {user: decide(it, policy, scan.threshold) for user, it in verdicts.items()}
    keys = {user: (verdicts[user].label, decisions[user].rule) for user in verdicts}
    members: dict[tuple[str, Rule | None], list[int]] = {keys[""]: []}
    for index, user in enumerate(users):
        members.setdefault(keys[user if separate_copies else ""], []).append(index)
    copies = []
    for recipients in list(filter(None, members.values())) or [[]]:
        group = dict.fromkeys(users[index] for index in recipients) or {"": None}
        mildest = min(group, key=lambda user: verdicts[user].probability)
        if keys[mildest] == keys[""]:
            mildest = ""
        personal = {user: verdicts[user].label for user in group if keys[user] != keys[""]}
        copies.append(Copy(recipients, scan, verdicts[mildest], decisions[mildest], personal))
    return copies


# ---- what became of it


@dataclass(eq=False)
class DeliveryRecord:
    """Made when a message comes; `set_judged`, `set_copy` or `split`, and `finish` fill it."""

    door: str
    envelope: Envelope
    size: int
    oddities: frozenset[str] = frozenset()
    reason: str = ""  # why the message was not scanned
    subject: str = ""
    author: str = ""
    copy: Copy | None = None  # this and the action are None before the decision
    action: Action | None = None
    copy_of: str = ""  # the id of the message, where this is a further copy of it
    queue_id: str = ""  # of the message at the server that asks, if any
    replies: Sequence[Reply] = ()
    judging_seconds: float = 0.0  # from arrival to verdict
    delivery_seconds: float = 0.0  # from there to the final reply

    def __post_init__(self) -> None:
        self.time = time.time()
        self.id = _new_id(self.time)
        self._started_at = time.perf_counter()

    def set_judged(self, header: bytes) -> None:
        """Note that the judge has answered, and subject and author from the header section."""
        self.judging_seconds = time.perf_counter() - self._started_at
        self.subject, self.author = decode_subject(header), decode_author(header)

    def split(self, copies: Sequence[Copy]) -> list[DeliveryRecord]:
        """One record for each copy of the message.

        The first keeps the id. Further copies have ids of their own: an id is signed for one
        verdict, and names one file of the quarantine.
        """
        records: list[DeliveryRecord] = []
        for copy in copies:
            record = shallow_copy(self)
            record.set_copy(copy)
            recipients = [self.envelope.recipients[index] for index in copy.recipients]
            record.envelope = replace(self.envelope, recipients=tuple(recipients))
            if records:
                record.copy_of, record.id = self.id, _new_id(self.time)
            records.append(record)
        return records

    def set_copy(self, copy: Copy) -> None:
        self.copy, self.action = copy, copy.decision.action

    def finish(self, replies: Sequence[Reply]) -> None:
        self.replies = replies
        self.delivery_seconds = time.perf_counter() - self._started_at - self.judging_seconds

    @property
    def label(self) -> str:
        """The label of the verdict, or `NOT_SCANNED`."""
        return self.copy.verdict.label if self.copy else NOT_SCANNED

    def row(self, fingerprint: str) -> HistoryRow:
        """The row of the history, with the fingerprint of the installation's key."""
        row = HistoryRow(
            id=self.id,
            time=self.time,
            listener=self.door,
            client=self.envelope.client.address,
            sender=self.envelope.sender.address,
            recipients=tuple(recipient.address for recipient in self.envelope.recipients),
            subject=self.subject,
            author=self.author,
            size=self.size,
            label=self.label,
            action=self.action or "",
            reply=self._reply_text(),
            extractor=EXTRACTOR,
            fingerprint=fingerprint,
        )
        if self.copy is None:
            return row
        verdict, scan = self.copy.verdict, self.copy.scan
        return replace(
            row,
            digest=scan.digest,
            probability=verdict.probability,
            log_odds=verdict.log_odds,
            packed=scan.packed,
            words=scan.words,
            personal=self.copy.personal,
            sender_digest=scan.sender,
            line=scan.line,
        )

    def __str__(self) -> str:
        """The log line: `key=value` for each fact."""
        return " ".join([f"{key}={quote_value(value)}" for key, value in self.facts().items()])

    def facts(self) -> Mapping[str, str]:
        """The facts of the log line that are known; the values are as strangers wrote them."""
        copy, client, envelope = self.copy, self.envelope.client, self.envelope
        facts = {
            "id": self.id,
            "copy-of": self.copy_of,
            "queue": self.queue_id,
            "message": message_name(copy.scan.digest) if copy else "",
            "listener": self.door,
            "client": client.address,
            "helo": client.helo,
            "from": f"<{envelope.sender.address}>",
            "to": _join_first([f"<{recipient.address}>" for recipient in envelope.recipients]),
            "size": str(self.size),
            "normalised": ",".join(sorted(self.oddities)),
            "verdict": self.label,
            "reason": self.reason,
        }
        if copy is not None:
            words = [f"{word.text} {word.part:+.2f}" for word in copy.scan.words[:6]]
            facts |= {
                "probability": f"{copy.verdict.probability:.6f}",
                "personal": _join_first([f"{user}:{own}" for user, own in copy.personal.items()]),
                "action": self.action or "",
                "words": ", ".join(words),
            }
        facts |= {
            "reply": self._reply_text(),
            "judging": f"{1000 * self.judging_seconds:.1f}ms",
            "handing-on": f"{1000 * self.delivery_seconds:.1f}ms",
        }
        return {key: value for key, value in facts.items() if value}

    def _reply_text(self) -> str:
        return "; ".join(dict.fromkeys(map(str, self.replies)))


def record_delivery(
    counters: Counters,
    history: HistoryWriter,
    fingerprint: Callable[[], str],
    record: DeliveryRecord,
) -> None:
    """Count a finished record, log it and have it written, without waiting.

    The fingerprint is that of the installation's key, which is there once a message was judged.
    """
    counters.count_message(record.label, record.action or "none", record.size)
    if not record.copy_of:  # copies of a message are judged once
        counters.add_seconds(JUDGE_STAGE, record.judging_seconds)
    if record.replies:  # not where another program delivers
        counters.add_seconds(DELIVER_STAGE, record.delivery_seconds)
    _mail_log.info("%s", record, extra={"event": "handled", "facts": record.facts})
    history.put(record.row(fingerprint() if record.copy else ""))


def _new_id(seconds: float) -> str:
    return keys.new_id(seconds, os.urandom(keys.RANDOM_BYTES))


def _join_first(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_LOGGED
    return ",".join(texts[:_MAX_LOGGED]) + (f",+{more}" if more > 0 else "")


# ---- the way of a message


Judge = Callable[[Spool, bytes, tuple[str, ...]], Awaitable[Scan | NotScanned]]
"""`ScorerPool.judge` with the options of one door."""


class ProxyContext(NamedTuple):
    """The parts that all listeners and scanners of one worker share."""

    quarantine: Quarantine
    key: Callable[[], bytes]  # that signs verdicts; raises SpamguardError without one
    record: Callable[[DeliveryRecord], None]  # keeps a finished record, without waiting
    settle: Callable[[], None]  # called when lessons wait for settling
    user_resolver: UserResolver | None = None  # without it all recipients are judged alike
    reject: RejectSettings = RejectSettings()


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

        The names are addresses or users whose mail it is, as far as known.
        """
        resolver = self.context.user_resolver
        candidates = resolver.all_candidates(names) if resolver else ()
        scan = await self.scan(message, on_top, candidates)
        record.set_judged(header)
        if scan.settle:
            self.context.settle()
        if isinstance(scan, NotScanned):
            record.reason = scan.reason
            return []
        if keys.is_probe(self.context.key(), header, record.time):
            verdict = replace(scan.verdict, label="spam")
            decision = Decision(Action.TAG, is_unwanted=True, spam_from=scan.threshold)
            return [Copy(range(len(names)), scan, verdict, decision)]
        users = resolver.resolve(names, scan.personal) if resolver else [""] * len(names)
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

    def refusal(self, action: Action | None, name: str) -> Reply | None:
        """The reply to the sender of the message of this id, if the action refuses it."""
        if action is not Action.REJECT:
            return _DEFERRED if action is Action.DEFER else None
        more = f": {text}" if (text := self.context.reject.text) else ""
        return Reply.from_text(550, f"5.7.1 Message {name} refused as unsolicited{more}")

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
        """Whether every recipient gets a reply of its own after the data."""
        return self.next_hop.answers_each

    @property
    def extensions(self) -> Mapping[str, str]:
        """The next hop's 8BITMIME, SMTPUTF8 and DSN, if offered; empty before its first EHLO."""
        offered = self.next_hop.extensions or {}
        return {keyword: offered[keyword] for keyword in _NEXT_HOP_EXTENSIONS if keyword in offered}

    def message(self, client: Client) -> FilterTransaction:
        return FilterTransaction(self, client)


class Output(NamedTuple):
    """What becomes of a copy of the message. A copy that is refused may be held all the same."""

    record: DeliveryRecord
    content: SpoolView | None  # as it goes out, if it does
    refusal: Reply | None = None


class FilterTransaction:
    """One mail transaction.

    A door calls `mail`, `recipient` once or more, `data` once at most, and `end`.
    """

    def __init__(self, proxy: FilterProxy, client: Client) -> None:
        self._proxy = proxy
        self._client = client
        self._transaction = proxy.next_hop.transaction(client)
        self._sender = Sender("")
        self._accepted: list[Recipient] = []

    async def mail(self, sender: Sender) -> Reply:
        self._sender = sender
        if sender.needs_smtputf8 and self._client.protocol:  # RFC 6531, section 4.3
            protocol = "UTF8" + self._client.protocol.removeprefix("E")
            self._client = replace(self._client, protocol=protocol)
        return await self._transaction.mail(sender)

    async def recipient(self, recipient: Recipient) -> Reply:
        reply = await self._transaction.recipient(recipient)
        if reply.is_positive:
            self._accepted.append(recipient)
        return reply

    async def data(self, message: Spool, oddities: frozenset[str]) -> Sequence[Reply]:
        """Judge the message and deliver it.

        One reply for each accepted recipient, in order, where the proxy `answers_each`; else one.
        The door closes the spool afterwards. The oddities are odd bytes that it has normalised.
        """
        envelope = Envelope(self._sender, tuple(self._accepted), self._client)
        door = str(self._proxy.listener.listen)
        record = DeliveryRecord(door, envelope, message.size, oddities)
        outputs = await self._judge(message, record)
        # The transaction that is open serves if everybody gets the same message, and gets it here.
        opened: NextHopTransaction | None = self._transaction
        record, _, refusal = outputs[0]
        if len(outputs) > 1 or record.action not in (None, Action.TAG) or refusal:
            opened = None
            await self.end()
        replies: dict[int, Reply] = {}
        for output in outputs:
            record = output.record
            of_copy: Sequence[Reply] = [_CANCELLED]
            try:
                of_copy = await self._deliver(output, opened)
            finally:  # also if the worker is stopping
                record.finish(of_copy)
                self._proxy.judge.record(record)
            recipients = record.copy.recipients if record.copy else range(len(self._accepted))
            replies.update(zip(recipients, repeat_reply(of_copy, len(recipients)), strict=True))
        count = len(self._accepted) if self._proxy.answers_each else 1
        return [replies[index] for index in range(count)]

    async def end(self) -> None:
        """Release everything. Always called; idempotent."""
        await self._transaction.end()

    async def _judge(self, message: Spool, record: DeliveryRecord) -> list[Output]:
        """What each recipient gets. Nothing has happened to the message yet."""
        proxy, listener = self._proxy, self._proxy.listener
        is_server = listener.position is Position.STANDALONE
        make_received = partial(received_field, self._client, proxy.hostname)
        received = b""
        names = [recipient.address for recipient in self._accepted]
        if is_server:
            received = make_received(record.id, names[0] if len(names) == 1 else "", record.time)
        outgoing = OutgoingMessage(message, received, FORGED_FIELDS, listener.limits.header_size)
        header = outgoing.header
        if is_server and count_hops(header) > MAX_HOPS:
            return [Output(record, None, _MAIL_LOOP)]
        # The judge reads a Received field about the client as if it stood on top, unless a server
        # before us has written one. It has no id of ours: that would be a new word each time.
        on_top = b""
        if is_server or (self._client.forwarded and not has_received_on_top(header)):
            on_top = make_received("", "", record.time) + b"\r\n"
        try:
            copies = await proxy.judge.judge(
                message, header, on_top, names, record, separate_copies=proxy.answers_each
            )
            keeps_refused = proxy.judge.context.reject.keep is not None
            outputs = []
            for copy, part in zip(copies, record.split(copies), strict=True):
                refusal, content = proxy.judge.refusal(part.action, part.id), None
                if refusal is None or (part.action is Action.REJECT and keeps_refused):
                    fields = proxy.judge.header_fields(copy, part.id)
                    content = outgoing.tag(fields, copy.decision.subject_prefix)
                outputs.append(Output(part, content, refusal))
            if outputs:
                return outputs
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in judging this message", record.id)
            record.reason = "error"
        if listener.on_error is OnError.DEFER:
            return [Output(record, None, NOT_JUDGED_REPLY)]
        return [Output(record, outgoing.tag(policy.not_scanned_fields(record.reason)))]

    async def _deliver(self, output: Output, opened: NextHopTransaction | None) -> Sequence[Reply]:
        """A reply for each recipient of a copy, or one for all. Never raises.

        `opened` is a transaction in which exactly the copy's recipients were accepted; without it
        the copy gets one of its own.
        """
        record, content, refusal = output
        envelope = record.envelope
        try:
            if content is None:
                return [refusal or Replies.LOCAL_ERROR]
            if refusal or record.action is Action.QUARANTINE:
                store = self._proxy.judge.context.quarantine.store
                reason = REFUSED if refusal else record.label
                try:
                    await run_in_thread(
                        store, record.id, content, envelope, reason, record.time, record.door
                    )
                except OSError as error:
                    _log.error("%s: quarantine: %s", record.id, error)
                    return [Replies.LOCAL_ERROR]
                return [refusal or Reply.from_text(250, f"2.0.0 Held as {record.id}")]
            if opened is not None:
                return await opened.send(content)
            redirect_to = record.copy.decision.to if record.copy else ""
            if redirect_to:
                envelope = replace(envelope, recipients=(Recipient(redirect_to),))
            replies = await deliver(self._proxy.next_hop, envelope, content)
            # An error at the new address is temporary for this client.
            is_lost = redirect_to and not replies[0].is_positive
            return [_CANNOT_REDIRECT] if is_lost else replies
        except Exception:  # noqa: BLE001  a fault of ours must not cost the mail
            _log.exception("%s: a fault in handling this message", record.id)
            return [Replies.LOCAL_ERROR]
