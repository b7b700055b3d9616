"""What the doors share whose clients pass their mail on themselves (milter, rspamd, spamd).

`ScanService` judges and teaches; there is one behind each of these doors. A `Conversation` is the
session of a client that asks and is answered over a stream (rspamd, spamd). Every wait of it has a
deadline, and the connection is closed so that the last answer arrives.

Must never raise because of a message or of its client, never believe an untrusted client about
whose mail it is, never say that a lesson was learnt before it is on the disk, and never wait
without a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Any, NamedTuple

from spamguard.aio import run_in_thread
from spamguard.config.options import Action, OnError, Scanner
from spamguard.engine import policy
from spamguard.learning.lessons import TrainingIntake, TrainingOutcome
from spamguard.log import printable
from spamguard.mail.message import has_received_on_top, read_header_section
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.transaction import NOT_JUDGED_REPLY, DeliveryRecord, PolicyJudge
from spamguard.servers import listener
from spamguard.servers.listener import (
    CHUNK_BYTES,
    ByteQuota,
    ClientTimeout,
    ConnectionClosed,
    ConversationEnded,
    IncomingMessage,
    Refusal,
    ServerSession,
    drain_input,
)
from spamguard.smtp.envelope import (
    Client,
    Envelope,
    Networks,
    Recipient,
    RefusedError,
    Reply,
    Sender,
    bare_address,
    client_prefix,
    received_field,
)
from spamguard.storage import Spool
from spamguard.users import LessonHeader

_log = logging.getLogger("spamguard.proxy")
_session_log = logging.getLogger("spamguard.doors")

# The learner must not meet a message at which a scorer ended. Once may be chance; the second time
# it is poison.
_OUTCOME_BY_REASON = {
    "poison": TrainingOutcome.IMPOSSIBLE,
    "error": TrainingOutcome.IMPOSSIBLE,
    "crashed": TrainingOutcome.TRY_LATER,
    "timeout": TrainingOutcome.TRY_LATER,
}

_MAX_WORDS_TOLD = 16


class ScanRequest(NamedTuple):
    """A message, and what its client says about it, as far as known."""

    message: Spool
    peer: str  # address of the connection, "" for a Unix socket
    sender: str = ""
    recipients: Sequence[str] = ()
    # Where it comes from and whose it is; believed only of a trusted peer.
    client: Client = Client()
    user: str = ""
    received_by: str = ""  # the server that got it, and adds its own Received field later
    queue_id: str = ""
    problem: str = ""


class ScanResult(NamedTuple):
    """The answer to a request."""

    id: str  # for `explain` and `learn`
    fields: Sequence[bytes]  # of the header, to be put on top; without line ends
    action: Action
    refusal: Reply | None = None  # where the client passes it on to the sender
    reason: str = ""  # why it was not judged
    words: Sequence[str] = ()
    label: str = ""
    is_unwanted: bool = False
    # As in X-Spam-Status, `policy.REQUIRED_SCORE` at the threshold; 0.0 without verdict.
    score: float = 0.0

    @property
    def symbol(self) -> str:
        """The test that X-Spam-Status names."""
        return policy.symbol_name(self.label) if self.label else "SPAMGUARD_NOT_SCANNED"


class ScanService:
    """The service behind one scanner door."""

    def __init__(
        self,
        scanner: Scanner,
        judge: PolicyJudge,
        training: TrainingIntake,
        hostname: str,
        spool_directory: Path,
    ) -> None:
        self.scanner = scanner
        self.limits = scanner.limits
        self._byte_quota = ByteQuota(scanner.limits)
        self._spool_directory = spool_directory
        self._judge = judge
        self._training = training
        self._hostname = hostname
        self._trusted = Networks(scanner.trusted)
        self._password = _read_password(scanner)
        self._teachers = Networks(scanner.teachers)
        self._guess_lock = asyncio.Lock()

    def trusts(self, peer: str) -> bool:
        """Whether this client is believed about others."""
        return peer in self._trusted

    def incoming_message(self, address: str) -> IncomingMessage:
        key = "" if self.trusts(address) else client_prefix(address)
        return IncomingMessage(self._spool_directory, self.limits, self._byte_quota, key)

    async def scan(self, request: ScanRequest) -> ScanResult:
        """Judge a message; recorded like mail that passes."""
        trusted = self.trusts(request.peer)
        client = request.client if trusted else Client(address=request.peer, peer=request.peer)
        recipients = tuple(map(Recipient, request.recipients))
        envelope = Envelope(Sender(request.sender), recipients, client)
        record = DeliveryRecord(str(self.scanner.listen), envelope, request.message.size)
        record.queue_id = request.queue_id
        result = None
        try:
            if request.problem:
                record.reason = request.problem
            else:
                result = await self._judge_message(request, record, trusted=trusted)
        except Exception:  # noqa: BLE001  a fault of ours
            _log.exception("%s: a fault in judging this message", record.id)
            record.reason = "error"
        if result is None:
            # A message that is too large would be deferred each time.
            defer = self.scanner.on_error is OnError.DEFER and record.reason != Refusal.TOO_LARGE
            record.action = Action.DEFER if defer else Action.TAG
            fields = policy.not_scanned_fields(record.reason)
            refusal = NOT_JUDGED_REPLY if defer else None
            result = ScanResult(record.id, fields, record.action, refusal, record.reason)
        record.finish(())
        self._judge.record(record)
        return result

    async def _judge_message(
        self, request: ScanRequest, record: DeliveryRecord, *, trusted: bool
    ) -> ScanResult | None:
        header, client = read_header_section(request.message), record.envelope.client
        on_top = b""
        names: Sequence[str] = ()
        if trusted:
            names = (request.user,) if request.user else request.recipients
            # A Received field about the client, unless a server has written one already.
            is_missing = bool(request.received_by) or not has_received_on_top(header)
            if is_missing and (client.address or client.name or client.helo):
                by = request.received_by or self._hostname
                on_top = received_field(client, by, "", "", record.time) + b"\r\n"
        copies = await self._judge.judge(
            request.message, header, on_top, names, record, separate_copies=False
        )
        if not copies:
            return None
        (copy,) = copies
        # Without weights, unless the policy tells them: they would help spammers to write.
        form = "{} {:+.2f}" if self.scanner.tell_probability else "{}"
        words = copy.scan.words[:_MAX_WORDS_TOLD]
        result = ScanResult(
            id=record.id,
            fields=self._judge.header_fields(copy, record.id),
            action=copy.decision.action,
            refusal=self._judge.refusal(copy.decision.action, record.id),
            words=[form.format(printable(word.text, lambda _: "?"), word.part) for word in words],
            label=copy.verdict.label,
            is_unwanted=copy.decision.is_unwanted,
            score=policy.reported_score(copy.verdict, copy.decision),
        )
        record.set_copy(copy)
        return result

    async def teach(self, request: ScanRequest, label: str, password: str = "") -> TrainingOutcome:
        """Queue a message as a lesson of this class; it is learnt within a second.

        The class "" takes earlier lessons of the message back.
        """
        given = password.encode("utf-8", "replace")
        is_teacher = bool(self.scanner.teachers) and request.peer in self._teachers
        if not (is_teacher or (self._password and compare_digest(given, self._password))):
            if given and self._password:
                async with self._guess_lock:  # only wrong passwords wait, for each other
                    await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
            text = "%s: %s wants to teach and may not"
            _log.warning(text, self.scanner.listen, request.peer or "somebody")
            return TrainingOutcome.FORBIDDEN
        user = ""
        if self.trusts(request.peer) and request.user:
            # The name under which this user's mail is judged.
            resolver = self._judge.context.user_resolver
            candidates = resolver.candidates(request.user) if resolver else ()
            user = next(iter(candidates), request.user)
        try:
            scan = await self._judge.scan(request.message, b"", ())
            if isinstance(scan, NotScanned) and scan.reason in _OUTCOME_BY_REASON:
                return _OUTCOME_BY_REASON[scan.reason]
            header = LessonHeader(label, request.message.size, user)
            message, origin = request.message.chunks(), self.scanner.listen.protocol
            return await run_in_thread(self._training.submit, header, message, origin)
        except OSError as error:
            _log.error("a lesson cannot be kept: %s", error)
            return TrainingOutcome.TRY_LATER


# ---- who may teach

_WRONG_PASSWORD_SECONDS = 1.0  # that each wrong password takes, one after the other


def _read_password(scanner: Scanner) -> bytes:
    """b"" for none: mail is judged even if it cannot be read."""
    try:
        if scanner.password_file is not None:
            return scanner.password_file.read_bytes().partition(b"\n")[0].strip()
    except OSError as error:
        _log.error(
            "%s: cannot be read (%s), so nobody can teach by a password: "
            "the daemon's user must be able to read it",
            scanner.password_file,
            error.strerror,
        )
    return b""


# ---- sessions

_MAX_RECIPIENTS = 1000


def parse_recipients(fields: Iterable[bytes]) -> list[str]:
    """The addresses in fields that name recipients, of which some are remembered."""
    texts = b",".join(fields).decode("utf-8", "replace").split(",")
    return list(filter(None, map(bare_address, texts)))[:_MAX_RECIPIENTS]


class Conversation(ServerSession):
    """A session in which a client asks and is answered."""

    answers: Mapping[Refusal, Any]
    """Those of the protocol to what is refused."""
    evictable_from: float | None = None
    is_draining = False
    client_may_send = False  # more, when we close (`drain_input`)

    def __init__(self, service: ScanService, address: str) -> None:
        self.reader = asyncio.StreamReader(CHUNK_BYTES)
        self.unread = bytearray()  # what a protocol has read and not understood yet
        self._service = service
        self.address = address
        self._idle_timeout: asyncio.Timeout | None = None  # while there is no request
        self._request_deadline = 0.0  # for all of the present request

    @abstractmethod
    async def handle_requests(self) -> None:
        """Answer requests until there are no more of them."""

    @abstractmethod
    async def refuse(self, answer: Any) -> None:
        """Send an answer of `answers`, or of a `RefusedError`."""

    async def handle(self, request: Awaitable[None]) -> None:
        """Have one request answered, whatever happens; ConnectionClosed if it cannot be."""
        try:
            await request
        except RefusedError as error:
            _session_log.info("%s: refused: %s", self.peer, error.reply)
            await self.refuse(error.reply)
        except ClientTimeout:
            await self.refuse(self.answers[Refusal.TOO_SLOW])
        except ConnectionClosed:
            raise
        except Exception:  # noqa: BLE001  a fault of ours: the client must keep its message
            _session_log.exception("%s: a fault in this request", self.peer)
            await self.refuse(self.answers[Refusal.FAULT])

    def check_message(self, message: IncomingMessage) -> None:
        """Raises RefusedError for a message that is not accepted."""
        if message.refusal is not None:
            raise RefusedError(self.answers[message.refusal])

    async def converse(self, refused: Refusal | None) -> None:
        try:
            if refused is None:
                await self.handle_requests()
            else:
                await self.refuse(self.answers[refused])
        finally:
            if self.client_may_send:
                await drain_input(self.reader, self.writer)

    @property
    def peer(self) -> str:
        return self.address or "a client of the socket"

    def drain(self) -> None:
        """End as soon as nothing is under way.

        A request that the client is sending at this moment would get no answer, so the client has
        `DRAIN_GRACE_SECONDS`.
        """
        self.is_draining = True
        if self._idle_timeout is not None and not self._idle_timeout.expired():
            now = asyncio.get_running_loop().time()
            self._idle_timeout.reschedule(now + listener.DRAIN_GRACE_SECONDS)

    # For the protocols.

    async def next_request(self) -> bytes:
        """The first piece of the next request.

        b"" when there is none: the client has gone or is silent, or the door is closing.
        """
        loop = asyncio.get_running_loop()
        limits = self._service.limits
        seconds = limits.command_timeout
        if self.is_draining:
            seconds = min(seconds, listener.DRAIN_GRACE_SECONDS)
        self._idle_timeout = asyncio.timeout(seconds)
        try:
            piece = await self.read(self._idle_timeout, loop.time())
        except ConversationEnded:
            return b""
        finally:
            self._idle_timeout = None
        self._request_deadline = loop.time() + limits.message_timeout
        return piece

    async def read_more(self) -> bytes:
        """The next piece of a request; b"" when the client sends no more.

        Raises ConnectionClosed and ClientTimeout.
        """
        now = asyncio.get_running_loop().time()
        deadline = min(now + self._service.limits.data_timeout, self._request_deadline)
        return await self.read(asyncio.timeout_at(deadline), now + listener.SILENT_SECONDS)

    async def read(self, timeout: asyncio.Timeout, evictable_from: float) -> bytes:
        """What the client sends, as `read_more`."""
        self.evictable_from = evictable_from
        try:
            async with timeout:
                return await self.reader.read(CHUNK_BYTES)
        except TimeoutError:
            raise ClientTimeout from None
        except OSError as error:
            _session_log.info("%s: connection lost: %s", self.peer, error)
            raise ConnectionClosed from None
        finally:
            self.evictable_from = None

    async def send(self, data: bytes) -> None:
        """Raises ConnectionClosed if the client does not take the bytes."""
        self.writer.write(data)
        if not self.writer.transport.get_write_buffer_size():
            return  # all is sent: a deadline has its price
        self.evictable_from = asyncio.get_running_loop().time() + listener.SILENT_SECONDS
        try:
            await self.wait_until_sent(self._service.limits.data_timeout)
        finally:
            self.evictable_from = None
