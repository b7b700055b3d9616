"""The milter door: one connection of a mail server (Sendmail, Postfix), and what it is answered.

The server shows a message field by field and piece by piece. `MilterSession` puts it together
again, has it judged, and answers with the changes that the server is to make: forged fields out,
ours on top. The bytes that come out are those that the server got, but for its own changes: it
ends lines, and drops blanks before the colon of a field. `milter_protocol` has packets and states.

Must never wait for ever, keep more than one incoming packet and a few replies, end a connection
because of a message, or answer anything that was not negotiated. A fault of ours must leave no
message without an answer: it is judged, or the server hears that it could not be.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from spamguard.config.options import FORGED_FIELDS, Action
from spamguard.mail.message import FieldNameSet
from spamguard.proxy.transaction import NOT_JUDGED_REPLY, REFUSAL_REPLIES
from spamguard.servers import listener, milter_protocol
from spamguard.servers.listener import ClientTimeout, ConnectionClosed, IncomingMessage, Refusal
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
from spamguard.servers.scanner import Conversation, ScannerContext, ScanRequest, ScanResult
from spamguard.smtp.envelope import MAX_ADDRESS_LENGTH, Client, bare_address

_log = logging.getLogger("spamguard.doors")

MAX_REMOVALS = 1000
"""Fields of one message that are removed. The server looks for each from the top, so some 100,000
would keep it busy for very long.
"""
MAX_NAME_BYTES = 998
"""Bytes of a field name, as of a line (RFC 5322, section 2.1.1): nobody reads longer ones, and we
would keep and send them back whole.
"""
# Between two commands, as in libmilter: the server waits for its own client, under its own limits.
_IDLE_TIMEOUT = 7210.0
# Between two PROGRESS packets while a message is judged. Sendmail waits 10 s, Postfix 5 minutes.
_PROGRESS_SECONDS = 5.0
_MAX_RECIPIENTS = 5000  # that are remembered
_USED_MACROS = frozenset(("i", "j", "auth_authen", "tls_version"))
_CLIENT_COMMANDS = (MilterCommand.CONNECT.value, MilterCommand.HELLO.value)
_CRLF = b"\r\n"
_FORGED_NAMES = FieldNameSet(FORGED_FIELDS)


class ForgedHeaderFilter:
    """Counts the fields of a header that claim a verdict, as they come."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._removals: list[bytes] = []

    def add_field(self, name: bytes) -> None:
        lower = name.strip(b" \t").lower()
        has_room = len(self._removals) < MAX_REMOVALS and len(lower) <= MAX_NAME_BYTES
        if has_room and lower in _FORGED_NAMES:
            self._counts[lower] += 1
            self._removals.append(encode_remove_field(lower, self._counts[lower]))

    def removal_packets(self) -> list[bytes]:
        """The packets that remove them, last field first: no removal renumbers another one."""
        return self._removals[::-1]


@dataclass
class MilterMessage:
    """What the server has said of one message so far.

    Attributes
    ----------
    content
        None before the first field.
    deadline
        For all of the content, a time of the event loop's clock.
    """

    sender: str | None = None
    recipients: list[str] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    content: IncomingMessage | None = None
    deadline: float = 0.0
    forged_filter: ForgedHeaderFilter = field(default_factory=ForgedHeaderFilter)


class MilterSession(Conversation):
    """One connection of a mail server."""

    answers: Mapping[Refusal, Refusal] = {refusal: refusal for refusal in Refusal}

    def __init__(self, context: ScannerContext, address: str) -> None:
        super().__init__(context, address)
        self._state = MilterState.NEW
        self._negotiated = Offer(0, Actions(0), Steps(0))
        self._client = Client()
        self._client_macros: dict[str, str] = {}
        self._packets = PacketReader()
        self._unsent = bytearray()  # is sent before the next wait
        self._message = MilterMessage()
        self._idle_since = asyncio.get_running_loop().time()

    def drain(self) -> None:
        """Nothing: the session goes on to its end, or to the door's deadline.

        A server keeps the connection as long as its client stays. The protocol has no word that
        ends it between messages, so the server would defer the next one.
        """

    async def refuse(self, answer: object) -> None:
        _log.warning("%s: hanging up: %s", self.peer, answer)

    async def handle_requests(self) -> None:
        try:
            self._acknowledge()
            while (packet := await self._read_packet()).command is not MilterCommand.QUIT:
                await self._handle(*packet)
        except (ClientTimeout, MilterProtocolError) as error:
            await self.refuse(str(error) or "silent for too long")
        finally:
            self._close_content()

    # ---- packets

    async def _read_packet(self) -> Packet:
        """Raises MilterProtocolError, ClientTimeout and ConnectionClosed.

        A transaction begins with MAIL and ends with the answer to the message. A server whose own
        client is silent is idle: else silent clients there would shut others out here.
        """
        limits = self._context.limits
        has_begun = False
        now = asyncio.get_running_loop().time()
        deadline = now + _IDLE_TIMEOUT
        if self._message.content is not None:
            deadline = min(now + limits.data_timeout, self._message.deadline)
        while (packet := self._packets.next_packet()) is None:
            await self._flush()
            now = asyncio.get_running_loop().time()
            if self._packets.has_partial_packet and not has_begun:
                has_begun = True
                deadline = min(deadline, now + limits.data_timeout)
            in_message = self._state in MESSAGE_STATES
            evictable_from = now + listener.SILENT_SECONDS if in_message else self._idle_since
            data = await self.read(asyncio.timeout_at(deadline), evictable_from)
            if not data:
                raise ConnectionClosed
            self._acknowledge()
            self._packets.feed(data)
        return packet

    def _acknowledge(self) -> None:
        """Have TCP acknowledge at once what came.

        Postfix holds the next packet back until the last one is acknowledged, and Linux would wait
        40 ms. Linux forgets the option, so it is set after every read.
        """
        with suppress(OSError):  # a Unix socket, or lost, as the next read will show
            self._writer.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1
            )

    async def _flush(self) -> None:
        if self._unsent:
            data = bytes(self._unsent)
            self._unsent.clear()
            await self.send(data)

    # ---- commands

    async def _handle(  # noqa: PLR0912  one branch for each command
        self, command: MilterCommand, data: bytes
    ) -> None:
        """Do what a command says, go to the state that the table names, and answer.

        Commands that are not named here say nothing that we need.
        """
        if (self._state, command) not in TRANSITIONS:
            raise MilterProtocolError(f"{command.name} in the state {self._state.name}")
        match command:
            case MilterCommand.OFFER:
                self._negotiate(data)
            case MilterCommand.MACROS:
                self._keep_macros(data)
            case MilterCommand.CONNECT:
                client = milter_protocol.parse_connect(data)
                name = client.name[:MAX_ADDRESS_LENGTH]
                self._client = replace(client, name=name, peer=self.address)
            case MilterCommand.HELLO:
                self._reset_message()
                helo = milter_protocol.parse_words(data)[0][:MAX_ADDRESS_LENGTH]
                self._client = replace(self._client, helo=helo)
            case MilterCommand.SENDER:
                if self._message.sender is not None:
                    self._reset_message()
                self._message.sender = bare_address(milter_protocol.parse_words(data)[0])
            case MilterCommand.RECIPIENT if len(self._message.recipients) < _MAX_RECIPIENTS:
                recipient = bare_address(milter_protocol.parse_words(data)[0])
                self._message.recipients.append(recipient)
            case MilterCommand.FIELD:
                self._add_field(*milter_protocol.parse_field(data))
            case MilterCommand.END_OF_HEADER:
                self._begin_content().write(_CRLF)
            case MilterCommand.BODY:
                self._begin_content().write(data)
            case MilterCommand.END_OF_MESSAGE:
                await self._end_of_message(data)
            case MilterCommand.ABORT:
                self._reset_message()
            case MilterCommand.NEXT_CLIENT:
                self._reset_message()
                self._client, self._client_macros = Client(), {}
        self._state = TRANSITIONS[self._state, command]
        if command is MilterCommand.OFFER:
            self._unsent += self._negotiated.encode()
        elif self._negotiated.answers(command):
            self._unsent += milter_protocol.CONTINUE

    def _negotiate(self, data: bytes) -> None:
        holds = any(
            rule.action is Action.QUARANTINE for rule in self._context.service.scanner.rules
        )
        optional = Actions.QUARANTINE if holds else Actions(0)
        self._negotiated = milter_protocol.negotiate(milter_protocol.parse_offer(data), optional)
        if optional & ~self._negotiated.actions:
            _log.warning(
                "%s: this server cannot hold messages back: they are only tagged", self.peer
            )

    def _keep_macros(self, data: bytes) -> None:
        command = data[:1]
        if command in (MilterCommand.FIELD.value, MilterCommand.BODY.value):
            return  # Postfix repeats the macros at each
        if command == MilterCommand.SENDER.value:
            self._reset_message()  # they belong to the message that begins now
        macros = self._client_macros if command in _CLIENT_COMMANDS else self._message.macros
        for name, value in milter_protocol.parse_macros(data).items():
            if name in _USED_MACROS:
                macros[name] = value[:MAX_ADDRESS_LENGTH]

    def _add_field(self, name: bytes, value: bytes) -> None:
        value = value.replace(_CRLF, b"\n").replace(b"\n", _CRLF)
        # Without LEADING_SPACE the server drops the blank behind the colon.
        gap = b"" if self._negotiated.steps & Steps.LEADING_SPACE else b" "
        self._message.forged_filter.add_field(name)
        self._begin_content().write(name + b":" + gap + value + _CRLF)

    # ---- a message

    def _begin_content(self) -> IncomingMessage:
        message = self._message
        if message.content is None:
            message.content = self._context.incoming_message(self.address)
            now = asyncio.get_running_loop().time()
            message.deadline = now + self._context.limits.message_timeout
        return message.content

    def _close_content(self) -> None:
        if self._message.content is not None:
            self._message.content.close()

    def _reset_message(self) -> None:
        self._close_content()
        self._message = MilterMessage()
        self._idle_since = asyncio.get_running_loop().time()

    async def _end_of_message(self, data: bytes) -> None:
        content = self._begin_content()
        content.write(data)
        try:
            scan = self._context.service.scan(self._scan_request(content))
            result = await self._wait_with_progress(scan)
            self._unsent += b"".join(self._reply_packets(result))
        finally:
            self._reset_message()

    async def _wait_with_progress(self, scan: Coroutine[None, None, ScanResult]) -> ScanResult:
        task = asyncio.create_task(scan)
        try:
            while not (await asyncio.wait([task], timeout=_PROGRESS_SECONDS))[0]:
                self._unsent += milter_protocol.PROGRESS
                await self._flush()
            return task.result()
        finally:
            task.cancel()

    def _scan_request(self, content: IncomingMessage) -> ScanRequest:
        macros = self._client_macros | self._message.macros
        login = macros.get("auth_authen", "")
        # RFC 3848; whether the client said HELO or EHLO is unknown.
        protocol = "ESMTP" + ("S" if macros.get("tls_version") else "") + ("A" if login else "")
        return ScanRequest(
            message=content.spool,
            peer=self.address,
            sender=self._message.sender or "",
            recipients=self._message.recipients,
            client=replace(self._client, protocol=protocol, login=login),
            received_by=macros.get("j", ""),
            queue_id=macros.get("i", ""),
            problem=str(content.refusal or ""),
        )

    def _reply_packets(self, result: ScanResult) -> list[bytes]:
        """The changes to the message, and the reply. The field inserted last is on top."""
        if result.action in REFUSAL_REPLIES:
            refusal = NOT_JUDGED_REPLY if result.reason else REFUSAL_REPLIES[result.action]
            return [milter_protocol.encode_refusal(refusal)]
        packets = self._message.forged_filter.removal_packets()
        for line in reversed(result.fields):
            name, _, value = line.partition(b":")
            if not self._negotiated.steps & Steps.LEADING_SPACE:
                value = value.lstrip(b" ")
            packets.append(milter_protocol.encode_insert_field(name, value))
        if result.action is Action.QUARANTINE and self._negotiated.actions & Actions.QUARANTINE:
            packets.append(milter_protocol.encode_quarantine(f"spamguard {result.id}"))
        return [*packets, milter_protocol.CONTINUE]
