"""Packets in and out of one connection, each with its deadline.

Must never wait for ever, and never keep more than a packet that is coming in and a few replies.

Which fields of a message claim a verdict that was not given here, and how a server is told to
remove them. Pure.

A message as a mail server shows it, field by field and piece by piece, put together again.

What comes out are the bytes that the server got, but for what it has changed itself: it ends lines,
and drops blanks before the colon of a field. Must never fail because a message is too much.

One connection of a mail server: what it says of its clients and their messages, and what it is told
to do with each.

Must never end a connection because of a message, never answer anything but what was agreed on, and
never leave a message without an answer because of a fault of ours: it is judged, or it is told that
it could not be.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from spamguard.config.options import Action
from spamguard.limits import LimitExceeded, quota_key
from spamguard.mail.rewrite import FieldNameSet
from spamguard.proxy.base import NOT_JUDGED_REPLY, REFUSAL_REPLIES
from spamguard.proxy.scan import TOO_LARGE, ScanRequest, ScanResult, ScanService
from spamguard.servers import milter_protocol
from spamguard.servers.listener import ConnectionClosed, IncomingMessage, Rejection, ServerContext
from spamguard.servers.milter_protocol import (
    MESSAGE_STATES,
    TRANSITIONS,
    Actions,
    MilterCommand,
    MilterProtocolError,
    MilterState,
    Offer,
    Packet,
    PacketReader,
    Steps,
    encode_remove_field,
)
from spamguard.smtp.envelope import Client

_log = logging.getLogger("spamguard.doors")


_READ_BYTES = 128 << 10  # at a time
_PACKETS_PER_TURN = 200  # packets in a row before others get theirs


class MilterConnection:
    """What is said is sent before the next waiting. seconds: for a packet that has begun, and for
    the server to take replies.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._seconds = seconds
        self._packets = PacketReader()
        self._unsent = bytearray()
        self._packets_in_turn = 0
        self._socket: socket.socket | None = writer.get_extra_info("socket")
        self._acknowledge()

    async def read_packet(self, until: float) -> Packet:
        """The next one, if it begins before `until`, a time of the loop's clock. Gone,
        TimeoutError, `MalformedError`.
        """
        self._packets_in_turn += 1
        if self._packets_in_turn >= _PACKETS_PER_TURN:
            self._packets_in_turn = 0
            await self.flush()  # who has had its answer is idle, and may be evicted
            await asyncio.sleep(0)
        begun = False
        while (found := self._packets.next_packet()) is None:
            await self.flush()
            if self._packets.has_partial_packet and not begun:
                begun, until = True, min(until, asyncio.get_running_loop().time() + self._seconds)
            await self._read(until)
        return found

    async def _read(self, until: float) -> None:
        async with asyncio.timeout_at(until):
            data = await self._reader.read(_READ_BYTES)
        if not data:
            raise ConnectionClosed
        self._acknowledge()
        self._packets.feed(data)

    def _acknowledge(self) -> None:
        """At once, what came by TCP: Postfix holds the next packet back until the last was
        acknowledged, and Linux would wait 40 ms.

        Asked for after every reading, as Linux forgets it.
        """
        if self._socket is not None and self._socket.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(OSError):  # gone meanwhile, as the next reading tells
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def write(self, packets: Iterable[bytes]) -> None:
        """Answer, together with what else there is to say before the next waiting."""
        for one in packets:
            self._unsent += one

    async def flush(self) -> None:
        """Hand everything said to the server. TimeoutError when it does not take it."""
        if self._unsent:
            self._writer.write(bytes(self._unsent))
            self._unsent.clear()
            async with asyncio.timeout(self._seconds):
                await self._writer.drain()


MAX_REMOVALS = 1000
"""Fields of one message that are removed: the server looks for each from the top, so some 100,000
would keep it busy for very long.
"""
MAX_NAME_BYTES = 998
"""Bytes of a name, as of a line (RFC 5322, section 2.1.1): nobody reads longer ones, and they would
be kept here, and sent back, whole.
"""


class ForgedHeaderFilter:
    """Finds forged fields as they come. names: as in `settings.FORGED`: `*` at the end stands for
    anything.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = FieldNameSet(names)
        self._counts: Counter[bytes] = Counter()
        self._forged_fields: list[tuple[bytes, int]] = []

    def add_field(self, name: bytes) -> None:
        """The next field of the header has this name."""
        lower = name.strip(b" \t").lower()
        if (
            len(self._forged_fields) < MAX_REMOVALS
            and len(lower) <= MAX_NAME_BYTES
            and lower in self._names
        ):
            self._counts[lower] += 1
            self._forged_fields.append((lower, self._counts[lower]))

    def removal_packets(self) -> list[bytes]:
        """Packets for the server. The last goes first, so that none changes its number before its
        turn.
        """
        return [
            encode_remove_field(name, occurrence)
            for name, occurrence in reversed(self._forged_fields)
        ]


_CRLF = b"\r\n"
_PROBLEM_BY_REJECTION = {Rejection.TOO_LARGE: TOO_LARGE, Rejection.TRY_LATER: "no-room"}


class MilterMessage:
    """One message. gap: what stands between the colon of a field and the value that the server
    shows.
    """

    def __init__(self, arriving: IncomingMessage, forged: ForgedHeaderFilter, gap: bytes) -> None:
        self.message = arriving
        self.forged_filter = forged
        self._gap = gap

    @property
    def problem(self) -> str:
        """Why it cannot be judged, a word of `proxy.contract.NotScanned`; "" while it can."""
        return _PROBLEM_BY_REJECTION[self.message.rejection] if self.message.rejection else ""

    def add_field(self, name: bytes, value: bytes) -> None:
        """The next field of the header."""
        self.forged_filter.add_field(name)
        self.message.write(
            name + b":" + self._gap + value.replace(_CRLF, b"\n").replace(b"\n", _CRLF) + _CRLF
        )

    def end_header(self) -> None:
        """What comes now is the body."""
        self.message.write(_CRLF)

    def add_body(self, piece: bytes) -> None:
        """The next piece of it."""
        self.message.write(piece)


# between two commands, as in libmilter: the server waits for its own client, which has its own
# limits there
_IDLE_TIMEOUT = 7210.0
# between two words that a message is being judged; Sendmail waits 10 s for one, Postfix 5 minutes
_PROGRESS_SECONDS = 5.0
_CLOSE_TIMEOUT = 2.0  # for the last replies to be taken
_MAX_RECIPIENTS = 5000  # of one message that are remembered
_MAX_ADDRESS_LENGTH = 512  # letters of an address or a name, as for SMTP
_USED_MACROS = frozenset(("i", "j", "auth_authen", "tls_version"))  # macros of use to us
_CLIENT_COMMANDS = (MilterCommand.CONNECT.value, MilterCommand.HELLO.value)


@dataclass(slots=True)
class _MessageState:
    """What was said of one message so far. sender: None before MAIL. told: macros of use to us.

    ends: when its content must be here, a time of the loop's clock.
    """

    sender: str | None = None
    recipients: list[str] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    content: MilterMessage | None = None
    deadline: float = 0.0

    def close(self) -> None:
        """Give everything back."""
        if self.content is not None:
            self.content.message.close()


class MilterSession:
    """One server (`reception.door.Session`). address: of the connection, "" of a Unix socket."""

    def __init__(
        self, house: ServerContext, asking: ScanService, spool_directory: Path, address: str
    ) -> None:
        self._context = house
        self._scan_service = asking
        self._spool_directory = spool_directory
        self._address = address
        self._quota_key = quota_key(address, trusted=asking.trusts(address))
        self._state = MilterState.NEW
        self._negotiated = Offer(0, Actions(0), Steps(0))
        self._client = Client()
        self._client_macros: dict[str, str] = {}  # of the client
        self._message = _MessageState()
        self._writer: asyncio.StreamWriter | None = None
        self._idle_since: float | None = None

    @property
    def idle_since(self) -> float | None:
        """A transaction begins with MAIL and ends with the answer to the message.

        So a mail server whose own client keeps silent before MAIL is idle: else silent clients
        there would shut others out here.
        """
        return None if self._state in MESSAGE_STATES else self._idle_since

    def drain(self) -> None:
        """Servers keep a connection for as long as their client stays, and have no word for being
        sent away between messages: they would defer the next one. So all are served to their end,
        or to that of the door's patience.
        """

    def abort(self) -> None:
        """Hang up at once."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def serve(self, connected: socket.socket, refused: LimitExceeded | None) -> None:
        """From its first packet to its last."""
        self._idle_since = asyncio.get_running_loop().time()
        try:
            reader, self._writer = await asyncio.open_connection(sock=connected)
            if refused is not None:
                why = (
                    "not a listed client"
                    if refused is LimitExceeded.NOT_LISTED
                    else "too many connections"
                )
                _log.warning("%s: hanging up: %s", self._peer, why)
            else:
                await self._run(
                    MilterConnection(reader, self._writer, self._context.limits.data_timeout)
                )
        except OSError as error:
            _log.info("%s: connection lost at once: %s", self._peer, error)
        finally:
            self._idle_since = None
            self._message.close()
            await self._close(connected)

    async def _close(self, connected: socket.socket) -> None:
        if self._writer is None:
            connected.close()
            return
        self._writer.close()
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._writer.wait_closed()
        self.abort()

    @property
    def _peer(self) -> str:
        return self._address or "a client of the socket"

    async def _run(self, connection: MilterConnection) -> None:
        try:
            while (
                packet := await connection.read_packet(self._deadline())
            ).command is not MilterCommand.QUIT:
                await self._handle(packet.command, packet.data, connection)
        except ConnectionClosed:
            pass
        except TimeoutError:
            _log.warning(
                "%s: hanging up: silent for too long, %s", self._peer, self._state.name.lower()
            )
        except MilterProtocolError as error:
            _log.warning("%s: hanging up: %s", self._peer, error)
        except OSError as error:
            _log.info("%s: connection lost: %s", self._peer, error)
        except Exception:  # noqa: BLE001
            _log.exception("%s: a fault in this session", self._peer)

    def _deadline(self) -> float:
        now, limits = asyncio.get_running_loop().time(), self._context.limits
        if self._message.content is None:
            return now + _IDLE_TIMEOUT
        return min(now + limits.data_timeout, self._message.deadline)

    async def _handle(
        self, command: MilterCommand, data: bytes, connection: MilterConnection
    ) -> None:
        """Also ends what the command ends, so that the next one finds the state that the table
        says.
        """
        if (self._state, command) not in TRANSITIONS:
            raise MilterProtocolError(f"{command.name} in the state {self._state.name}")
        if command is MilterCommand.END_OF_MESSAGE:
            await self._end_of_message(data, connection)
        elif command in _HANDLERS:
            _HANDLERS[command](self, data)
        self._state = TRANSITIONS[self._state, command]
        if command is MilterCommand.OFFER:
            connection.write([self._negotiated.encode()])
        elif self._negotiated.answers(command):
            connection.write([milter_protocol.CONTINUE])

    # ---- commands

    def _offer(self, data: bytes) -> None:
        wanted = (
            Actions(0) if self._scan_service.scanner.quarantine_from is None else Actions.QUARANTINE
        )
        self._negotiated = milter_protocol.negotiate(milter_protocol.parse_offer(data), wanted)
        if wanted & ~self._negotiated.actions:
            _log.warning(
                "%s: this server cannot hold messages back: they are only tagged", self._peer
            )

    def _macros(self, data: bytes) -> None:
        if data[:1] in (
            MilterCommand.FIELD.value,
            MilterCommand.BODY.value,
        ):  # Postfix repeats them at each
            return
        if data[:1] == MilterCommand.SENDER.value:
            self._reset_message()  # these are of the message that begins now
        told = {
            name: value[:_MAX_ADDRESS_LENGTH]
            for name, value in milter_protocol.parse_macros(data).items()
            if name in _USED_MACROS
        }
        (self._client_macros if data[:1] in _CLIENT_COMMANDS else self._message.macros).update(told)

    def _connect(self, data: bytes) -> None:
        found = milter_protocol.parse_connect(data)
        self._client = Client(
            address=found.address,
            name=found.name[:_MAX_ADDRESS_LENGTH],
            port=found.port,
            peer=self._address,
        )

    def _hello(self, data: bytes) -> None:
        self._reset_message()
        self._client = replace(
            self._client, helo=milter_protocol.parse_words(data)[0][:_MAX_ADDRESS_LENGTH]
        )

    def _sender(self, data: bytes) -> None:
        if self._message.sender is not None:
            self._reset_message()
        self._message.sender = _parse_address(data)

    def _recipient(self, data: bytes) -> None:
        if len(self._message.recipients) < _MAX_RECIPIENTS:
            self._message.recipients.append(_parse_address(data))

    def _field(self, data: bytes) -> None:
        name, value = milter_protocol.parse_field(data)
        self._begin_content().add_field(name, value)

    def _end_of_header(self, data: bytes) -> None:  # noqa: ARG002
        self._begin_content().end_header()

    def _body(self, data: bytes) -> None:
        self._begin_content().add_body(data)

    def _abort(self, data: bytes) -> None:  # noqa: ARG002
        self._reset_message()

    def _next_client(self, data: bytes) -> None:  # noqa: ARG002
        self._reset_message()
        self._client, self._client_macros = Client(), {}

    # ---- a message

    def _begin_content(self) -> MilterMessage:
        """Of the message; it begins with the first piece that comes."""
        if self._message.content is None:
            limits = self._context.limits
            gap = b"" if self._negotiated.steps & Steps.LEADING_SPACE else b" "
            forged = ForgedHeaderFilter(self._scan_service.scanner.policy.forged)
            self._message.content = MilterMessage(
                IncomingMessage(
                    self._spool_directory, limits, self._context.byte_quota, self._quota_key
                ),
                forged,
                gap,
            )
            self._message.deadline = asyncio.get_running_loop().time() + limits.message_timeout
        return self._message.content

    def _reset_message(self) -> None:
        """Back to where a message may begin."""
        self._message.close()
        self._message = _MessageState()
        self._idle_since = asyncio.get_running_loop().time()

    async def _end_of_message(self, data: bytes, connection: MilterConnection) -> None:
        incoming = self._begin_content()
        incoming.add_body(data)
        try:
            judged = await self._wait_with_progress(
                self._scan_service.scan(self._scan_request(incoming)), connection
            )
            connection.write(self._reply_packets(judged, incoming))
        finally:
            self._reset_message()

    async def _wait_with_progress(
        self, judging: Coroutine[None, None, ScanResult], connection: MilterConnection
    ) -> ScanResult:
        """What comes of it; meanwhile the server hears that we are at it."""
        task = asyncio.create_task(judging)
        try:
            while not (await asyncio.wait([task], timeout=_PROGRESS_SECONDS))[0]:
                connection.write([milter_protocol.PROGRESS])
                await connection.flush()
            return task.result()
        finally:
            task.cancel()

    def _scan_request(self, incoming: MilterMessage) -> ScanRequest:
        message, told = self._message, self._client_macros | self._message.macros
        login = told.get("auth_authen", "")
        protocol = (
            "ESMTP" + ("S" if told.get("tls_version") else "") + ("A" if login else "")
        )  # RFC 3848; which of HELO and EHLO: unknown
        return ScanRequest(
            message=incoming.message.spool,
            peer=self._address,
            sender=message.sender or "",
            recipients=message.recipients,
            client=replace(self._client, protocol=protocol, login=login),
            received_by=told.get("j", ""),
            queue_id=told.get("i", ""),
            problem=incoming.problem,
        )

    def _reply_packets(self, judged: ScanResult, incoming: MilterMessage) -> Iterable[bytes]:
        """Our fields on top, above all; what is inserted first ends below the others."""
        if judged.action in REFUSAL_REPLIES:
            return [
                milter_protocol.encode_refusal(
                    NOT_JUDGED_REPLY if judged.reason else REFUSAL_REPLIES[judged.action]
                )
            ]
        held = judged.action is Action.QUARANTINE and self._negotiated.actions & Actions.QUARANTINE
        return [
            *incoming.forged_filter.removal_packets(),
            *[self._insert_packet(field) for field in reversed(judged.fields)],
            *([milter_protocol.encode_quarantine(f"spamguard {judged.id}")] if held else []),
            milter_protocol.CONTINUE,
        ]

    def _insert_packet(self, field: bytes) -> bytes:
        name, _, value = field.partition(b":")
        return milter_protocol.encode_insert_field(
            0, name, value if self._negotiated.steps & Steps.LEADING_SPACE else value.lstrip(b" ")
        )


_HANDLERS: Mapping[MilterCommand, Callable[[MilterSession, bytes], None]] = {
    MilterCommand.OFFER: MilterSession._offer,
    MilterCommand.MACROS: MilterSession._macros,
    MilterCommand.CONNECT: MilterSession._connect,
    MilterCommand.HELLO: MilterSession._hello,
    MilterCommand.SENDER: MilterSession._sender,
    MilterCommand.RECIPIENT: MilterSession._recipient,
    MilterCommand.FIELD: MilterSession._field,
    MilterCommand.END_OF_HEADER: MilterSession._end_of_header,
    MilterCommand.BODY: MilterSession._body,
    MilterCommand.ABORT: MilterSession._abort,
    MilterCommand.NEXT_CLIENT: MilterSession._next_client,
}
"""What is done at a command. The others say nothing that we need."""


def _parse_address(data: bytes) -> str:
    """Of MAIL or RCPT, without its brackets and parameters."""
    return (
        milter_protocol.parse_words(data)[0]
        .removeprefix("<")
        .removesuffix(">")[:_MAX_ADDRESS_LENGTH]
    )
