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
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple

from spamguard.config.options import Action, OnError, Scanner, ScannerLimits
from spamguard.delivery.next_hop import run_in_thread
from spamguard.engine import policy
from spamguard.learning.lessons import TrainingIntake, TrainingOutcome
from spamguard.log import printable
from spamguard.mail.message import has_received_on_top, read_header_section
from spamguard.proxy.delivery_log import DeliveryRecord
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.transaction import PolicyJudge
from spamguard.records import Scan
from spamguard.servers import listener
from spamguard.servers.listener import (
    CHUNK_BYTES,
    ByteQuota,
    ClientTimeout,
    ConnectionClosed,
    ConversationEnded,
    IncomingMessage,
    LimitExceeded,
    Rejection,
    close_stream,
    drain_input,
)
from spamguard.smtp.envelope import (
    Client,
    Envelope,
    Networks,
    Recipient,
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
    """A message, and what its client says about it.

    message: its bytes, any line ends. peer: address of the connection, "" for a Unix socket.
    sender, recipients: of the envelope, as far as known. client, user: where the message comes from
    and whose it is; believed only of a trusted peer. received_by: the server that got the message
    from that client and adds its own Received field later. queue_id: of the message at that server.
    problem: why the message cannot be judged, if that is known already.
    """

    message: Spool
    peer: str
    sender: str = ""
    recipients: Sequence[str] = ()
    client: Client = Client()
    user: str = ""
    received_by: str = ""
    queue_id: str = ""
    problem: str = ""


class ScanResult(NamedTuple):
    """The answer to a request.

    id: for `explain` and `learn --id`. fields: header fields to be put on top, without line ends.
    reason: why it was not judged, else "". words: those that weighed most, printable. action: TAG,
    REJECT, QUARANTINE or DEFER. label: of the verdict, "" if there is none. score: as in
    X-Spam-Status, `policy.REQUIRED_SCORE` at the threshold; 0.0 without verdict.
    """

    id: str
    fields: Sequence[bytes]
    action: Action
    reason: str = ""
    words: Sequence[str] = ()
    label: str = ""
    is_unwanted: bool = False
    score: float = 0.0

    @property
    def symbol(self) -> str:
        """The test that X-Spam-Status names."""
        return policy.symbol_name(self.label) if self.label else "SPAMGUARD_NOT_SCANNED"


class ScanService:
    """The service behind one scanner door. hostname: ours."""

    def __init__(
        self,
        scanner: Scanner,
        judge: PolicyJudge,
        training: TrainingIntake,
        hostname: str,
    ) -> None:
        self.scanner = scanner
        self._policy = scanner.policy
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

    async def scan(self, request: ScanRequest) -> ScanResult:
        """Judge a message; recorded like mail that passes."""
        trusted = self.trusts(request.peer)
        client = request.client if trusted else Client(address=request.peer, peer=request.peer)
        recipients = tuple(map(Recipient, request.recipients))
        envelope = Envelope(Sender(request.sender), recipients, client)
        record = DeliveryRecord(self.scanner, envelope, request.message.size)
        record.queue_id = request.queue_id
        result = None
        try:
            if request.problem:
                record.set_failure(request.problem)
            else:
                result = await self._judge_message(request, record, trusted=trusted)
        except Exception:  # noqa: BLE001  a fault of ours
            _log.exception("%s: a fault in judging this message", record.id)
            record.set_failure("error")
        if result is None:
            # A message that is too large would be deferred each time.
            defer = self._policy.on_error is OnError.DEFER and record.reason != Rejection.TOO_LARGE
            record.action = Action.DEFER if defer else Action.TAG
            fields = policy.not_scanned_fields(record.reason)
            result = ScanResult(record.id, fields, record.action, record.reason)
        record.finish(())
        self._judge.record(record)
        return result

    async def _judge_message(
        self, request: ScanRequest, record: DeliveryRecord, *, trusted: bool
    ) -> ScanResult | None:
        header = read_header_section(request.message)
        on_top = b""
        names: Sequence[str] = ()
        if trusted:
            on_top = self._client_field(record, header, request.received_by)
            names = (request.user,) if request.user else request.recipients
        copies = await self._judge.judge(
            request.message, header, on_top, names, record, separate_copies=False
        )
        if not copies:
            return None
        record.split(copies)
        (copy,) = copies
        return ScanResult(
            id=record.id,
            fields=self._judge.header_fields(copy, record.id),
            action=copy.decision.action,
            words=self._format_words(copy.scan),
            label=copy.verdict.label,
            is_unwanted=copy.decision.is_unwanted,
            score=policy.reported_score(copy.verdict, copy.decision),
        )

    def _format_words(self, scan: Scan) -> Sequence[str]:
        """Without weights, unless the policy tells them: they would help spammers to write."""
        form = "{} {:+.2f}" if self._policy.tell_probability else "{}"
        words = scan.words[:_MAX_WORDS_TOLD]
        return [form.format(printable(word.text, lambda _: "?"), word.part) for word in words]

    def _client_field(self, record: DeliveryRecord, header: bytes, received_by: str) -> bytes:
        """A Received field about the client; b"" where a server has written one already."""
        client = record.envelope.client
        is_recorded = not received_by and has_received_on_top(header)
        if is_recorded or not (client.address or client.name or client.helo):
            return b""
        return received_field(client, received_by or self._hostname, "", "", record.time) + b"\r\n"

    async def _may_teach(self, peer: str, password: str) -> bool:
        """Wrong passwords wait for each other; a listed client, or a right password, never does."""
        if self.scanner.teachers and peer in self._teachers:
            return True
        if self._password and compare_digest(password.encode("utf-8", "replace"), self._password):
            return True
        if password and self._password:
            _log.warning("%s: a wrong password", peer or "a client of the socket")
            async with self._guess_lock:
                await asyncio.sleep(_WRONG_PASSWORD_SECONDS)
        return False

    async def teach(self, request: ScanRequest, label: str, password: str = "") -> TrainingOutcome:
        """Queue a message as a lesson of this class; it is learnt within a second.

        label: "" takes earlier lessons of the message back.
        """
        if not await self._may_teach(request.peer, password):
            client = request.peer or "somebody"
            _log.warning("%s: %s wants to teach and may not", self.scanner.listen, client)
            return TrainingOutcome.FORBIDDEN
        user = ""
        if self.trusts(request.peer) and request.user:
            # The name under which this user's mail is judged.
            resolver = self._judge.context.user_resolver
            candidates = resolver.candidates(request.user) if resolver else ()
            user = candidates[0] if candidates else request.user
        try:
            scan = await self._judge.scan(request.message, b"", ())
            if isinstance(scan, NotScanned) and scan.reason in _OUTCOME_BY_REASON:
                return _OUTCOME_BY_REASON[scan.reason]
            digest = b"" if isinstance(scan, NotScanned) else scan.digest
            header = LessonHeader(label, request.message.size, user)
            message, origin = request.message.chunks(), self.scanner.listen.protocol
            return await run_in_thread(
                lambda: self._training.submit(header, message, origin, digest)
            )
        except OSError as error:
            _log.error("a lesson cannot be kept: %s", error)
        except Exception:  # noqa: BLE001  a fault of ours
            _log.exception("a fault in taking a lesson")
        return TrainingOutcome.TRY_LATER


# ---- who may teach

_MAX_PASSWORD_BYTES = 512  # as much as is read of what a client sends
_WRONG_PASSWORD_SECONDS = 1.0  # that each wrong password takes, one after the other


def _read_password(scanner: Scanner) -> bytes:
    """The password of teachers, b"" for none: mail is judged even if it cannot be read."""
    try:
        if scanner.password_file is not None:
            with scanner.password_file.open("rb") as file:
                return file.readline(_MAX_PASSWORD_BYTES).strip()
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
_DRAIN_GRACE_SECONDS = 1.0  # in which a draining door still accepts a request


def parse_recipients(fields: Iterable[bytes]) -> list[str]:
    """The addresses in fields that name recipients, of which some are remembered."""
    texts = b",".join(fields).decode("utf-8", "replace").split(",")
    return list(filter(None, map(bare_address, texts)))[:_MAX_RECIPIENTS]


class ScannerContext(NamedTuple):
    """What all sessions of one scanner door share."""

    service: ScanService
    byte_quota: ByteQuota
    spool_directory: Path

    @property
    def limits(self) -> ScannerLimits:
        return self.service.scanner.limits

    def incoming_message(self, address: str) -> IncomingMessage:
        key = "" if self.service.trusts(address) else client_prefix(address)
        return IncomingMessage(self.spool_directory, self.limits, self.byte_quota, key)


class Conversation(ABC):
    """A `ServerSession` in which a client asks and is answered. address: "" on a Unix socket."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    def __init__(self, context: ScannerContext, address: str) -> None:
        self._context = context
        self._service = context.service
        self.address = address
        self.is_draining = False
        self.evictable_from: float | None = None
        self._is_open = False
        self._request_timeout: asyncio.Timeout | None = None  # for the next request
        self._request_deadline = 0.0  # for all of the present request
        self.client_may_send = False  # more, when we close (`drain_input`)

    @abstractmethod
    async def handle_requests(self) -> None:
        """Answer requests until there are no more of them."""

    @abstractmethod
    async def reject(self, refused: LimitExceeded) -> None:
        """Answer a client that is not served."""

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        self.evictable_from = asyncio.get_running_loop().time()
        try:
            self._reader, self._writer = await asyncio.open_connection(
                sock=connected, limit=CHUNK_BYTES
            )
        except OSError as error:
            _session_log.info("connection lost at once: %s", error)
            connected.close()
            return
        self._is_open = True
        try:
            if refused is None:
                await self.handle_requests()
            else:
                await self.reject(refused)
        except ConversationEnded:
            pass
        except Exception:  # noqa: BLE001  a fault of ours must not end the door
            _session_log.exception("%s: a fault in this conversation", self.address)
        finally:
            self.evictable_from = None
            if self.client_may_send:
                await drain_input(self._reader, self._writer)
            await close_stream(self._writer)

    def drain(self) -> None:
        """End as soon as nothing is under way.

        A request that the client is sending at this moment would get no answer, so the client has
        `_DRAIN_GRACE_SECONDS`.
        """
        self.is_draining = True
        if self._request_timeout is not None and not self._request_timeout.expired():
            now = asyncio.get_running_loop().time()
            self._request_timeout.reschedule(now + _DRAIN_GRACE_SECONDS)

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task that serves. The client awaits no answer."""
        task.cancel()

    def abort(self) -> None:
        if self._is_open:
            self._writer.transport.abort()

    # For the protocols.

    async def next_request(self) -> bytes:
        """The first piece of the next request.

        b"" when there is none: the client has gone or is silent, or the door is closing.
        """
        loop = asyncio.get_running_loop()
        if self.evictable_from is None:
            self.evictable_from = loop.time()
        seconds = self._context.limits.command_timeout
        if self.is_draining:
            seconds = min(seconds, _DRAIN_GRACE_SECONDS)
        try:
            async with asyncio.timeout(seconds) as self._request_timeout:
                piece = await self._reader.read(CHUNK_BYTES)
        except OSError:  # TimeoutError is one
            return b""
        finally:
            self._request_timeout = None
        self.evictable_from = None
        self._request_deadline = loop.time() + self._context.limits.message_timeout
        return piece

    @contextmanager
    def _waiting_for_client(self) -> Iterator[None]:
        self.evictable_from = asyncio.get_running_loop().time() + listener.SILENT_SECONDS
        try:
            yield
        finally:
            self.evictable_from = None

    async def read_more(self) -> bytes:
        """The next piece of a request; b"" when the client sends no more.

        Raises
        ------
        ConnectionClosed, ClientTimeout
        """
        remaining = self._request_deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(min(self._context.limits.data_timeout, remaining), 0)):
                with self._waiting_for_client():
                    return await self._reader.read(CHUNK_BYTES)
        except TimeoutError:
            raise ClientTimeout from None
        except OSError:
            raise ConnectionClosed from None

    async def send(self, data: bytes) -> None:
        """Send bytes. ConnectionClosed: the client does not take them."""
        self._writer.write(data)
        try:
            async with asyncio.timeout(self._context.limits.data_timeout):
                with self._waiting_for_client():
                    await self._writer.drain()
        except OSError:
            self.abort()
            raise ConnectionClosed from None
