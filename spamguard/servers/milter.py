"""The milter door: one connection of a mail server (Sendmail, Postfix), and what it is answered.

The server shows a message field by field and piece by piece. `MilterSession` puts it together
again, has it judged, and answers with the changes that the server is to make: forged fields out,
ours on top. The bytes that come out are those that the server got, but for its own changes: it
ends lines, and drops blanks before the colon of a field.

The protocol, versions 2 to 6, is as Sendmail's libmilter and Postfix speak it; there is no
standard. Numbers are big-endian, texts end in NUL. Input is hostile: every length is checked before
anything is kept for it, and nonsense is a `MilterProtocolError`. It is written by hand because
pymilter is Sendmail's libmilter, which opens the socket and runs threads itself.

Must never be stricter than needed: a server that we hang up on defers the mail, or lets it through
unjudged. So steps that some servers leave out may be left out; but no message ends that has not
begun. Sendmail, once MAIL needs no reply, never says that a message was given up (RSET, or one too
large for it): the next MAIL or HELO is all that we hear. Must never wait for ever, keep more than
one incoming packet and a few replies, end a connection because of a message, or answer anything
that was not negotiated. A fault of ours must leave no message without an answer: it is judged, or
the server hears that it could not be.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, IntFlag, auto
from ipaddress import ip_address
from struct import Struct
from typing import NamedTuple

from spamguard.config.options import FORGED_FIELDS, Action
from spamguard.mail.message import FieldNameSet
from spamguard.servers import listener
from spamguard.servers.listener import ClientTimeout, ConnectionClosed, IncomingMessage, Refusal
from spamguard.servers.scanner import Conversation, ScanRequest, ScanService
from spamguard.smtp.envelope import MAX_ADDRESS_LENGTH, Client, bare_address

_log = logging.getLogger("spamguard.doors")

# ---- packets

# Of a packet with a piece of a message: Postfix cuts a header field at 102,400 bytes, and a body
# into pieces of 65,535.
MAX_LONG_PACKET_BYTES = 1 << 20
MAX_SHORT_PACKET_BYTES = 64 << 10  # of all other packets
_LENGTH = Struct("!I")
_HEAD = Struct("!Ic")  # length of what follows it, command


class MilterProtocolError(ValueError):
    """The server does not keep to the protocol."""


class MilterCommand(Enum):
    """The commands of a mail server."""

    OFFER = b"O"
    MACROS = b"D"
    CONNECT = b"C"
    HELLO = b"H"
    SENDER = b"M"
    RECIPIENT = b"R"
    DATA = b"T"
    FIELD = b"L"
    END_OF_HEADER = b"N"
    BODY = b"B"
    END_OF_MESSAGE = b"E"
    ABORT = b"A"
    UNKNOWN = b"U"  # a command of its client that the server does not know
    QUIT = b"Q"
    NEXT_CLIENT = b"K"  # quit, but the connection stays for another client


_LONG_COMMANDS = frozenset((MilterCommand.FIELD, MilterCommand.BODY, MilterCommand.END_OF_MESSAGE))


class Packet(NamedTuple):
    """A command and its data."""

    command: MilterCommand
    data: bytes


def take_packet(unread: bytearray) -> Packet | None:
    """Take the next packet away, None while it is incomplete.

    Raises MilterProtocolError as soon as the bytes can be no packet.
    """
    if len(unread) < _HEAD.size:
        return None
    length, letter = _HEAD.unpack_from(unread)
    try:
        command = MilterCommand(letter)
    except ValueError:
        raise MilterProtocolError(f"the unknown command {letter!r}") from None
    max_length = MAX_LONG_PACKET_BYTES if command in _LONG_COMMANDS else MAX_SHORT_PACKET_BYTES
    if not 1 <= length <= max_length:
        raise MilterProtocolError(f"a packet of {length} bytes")
    end = _LENGTH.size + length
    if len(unread) < end:
        return None
    data = bytes(memoryview(unread)[_HEAD.size : end])
    del unread[:end]
    return Packet(command, data)


def encode_packet(command: bytes, data: bytes = b"") -> bytes:
    return _LENGTH.pack(1 + len(data)) + command + data


# ---- negotiation

_VERSIONS = range(2, 7)
_OFFER = Struct("!III")


class Actions(IntFlag):
    """What a filter may do with a message."""

    ADD_FIELDS = 0x01
    CHANGE_FIELDS = 0x10
    QUARANTINE = 0x20


class Steps(IntFlag):
    """Commands that the server leaves out (NO_…), or that we do not answer (NO_REPLY_TO_…)."""

    NO_REPLY_TO_FIELD = 0x80
    NO_UNKNOWN = 0x100
    NO_DATA = 0x200
    NO_REPLY_TO_CONNECT = 0x1000
    NO_REPLY_TO_HELLO = 0x2000
    NO_REPLY_TO_SENDER = 0x4000
    NO_REPLY_TO_RECIPIENT = 0x8000
    NO_REPLY_TO_DATA = 0x10000
    NO_REPLY_TO_UNKNOWN = 0x20000
    NO_REPLY_TO_END_OF_HEADER = 0x40000
    NO_REPLY_TO_BODY = 0x80000
    LEADING_SPACE = 0x100000  # values of fields keep the blanks behind the colon


_NO_REPLY_STEPS = {
    command: Steps[name]
    for command in MilterCommand
    if (name := f"NO_REPLY_TO_{command.name}") in Steps.__members__
}
"""Commands that are answered at once, unless this step was negotiated."""

_WANTED_STEPS = Steps(sum(Steps))
_NEEDED_ACTIONS = Actions.ADD_FIELDS | Actions.CHANGE_FIELDS


class Offer(NamedTuple):
    """What one side can do, or what was negotiated."""

    version: int
    actions: Actions
    steps: Steps

    def answers(self, command: MilterCommand) -> bool:
        """Whether this command is answered at once, as the end of a message always is."""
        return command in _NO_REPLY_STEPS and not self.steps & _NO_REPLY_STEPS[command]


def negotiate(data: bytes, optional: Actions) -> Offer:
    """What we use of an offer: the needed actions, and those `optional` ones that there are.

    Raises MilterProtocolError if we are of no use to this server.
    """
    if len(data) < _OFFER.size:
        raise MilterProtocolError(f"an offer of {len(data)} bytes")
    version, actions, steps = _OFFER.unpack_from(data)
    if version < _VERSIONS[0]:
        raise MilterProtocolError(f"version {version} of the protocol")
    if actions & _NEEDED_ACTIONS != _NEEDED_ACTIONS:
        raise MilterProtocolError("a server that lets no filter add and remove header fields")
    used = Actions(actions) & (_NEEDED_ACTIONS | optional)
    return Offer(min(version, _VERSIONS[-1]), used, Steps(steps) & _WANTED_STEPS)


# ---- commands

_PORT = Struct("!H")


def parse_connect(data: bytes) -> Client:
    """The client in CONNECT. Its name is from the DNS, or the address in brackets."""
    name, end, rest = data.partition(b"\0")
    if not end:
        raise MilterProtocolError("a text without its end")
    if rest[:1] not in (b"4", b"6") or len(rest) < 1 + _PORT.size:
        # A Unix socket of the server, or unknown.
        return Client(name=_decode_text(name))
    text = _split_texts(rest[1 + _PORT.size :])[0]
    plain = text.decode("ascii", "replace").removeprefix("IPv6:").partition("%")[0]
    try:
        address = str(ip_address(plain))
    except ValueError:
        address = ""
    return Client(address, _decode_text(name), str(_PORT.unpack_from(rest, 1)[0]))


def parse_argument(data: bytes) -> str:
    """The argument of HELO, or the address of MAIL and RCPT, without its parameters."""
    return _decode_text(_split_texts(data)[0])


def parse_macros(data: bytes) -> Mapping[str, str]:
    """The macros that the server sends beside the next command, by name without braces."""
    texts = _split_texts(data[1:]) if data[1:] else []  # the first byte is that command
    return {
        _decode_text(name.strip(b"{}")): _decode_text(value)
        for name, value in zip(texts[::2], texts[1::2], strict=False)
    }


def _split_texts(data: bytes, count: int = -1) -> list[bytes]:
    if not data.endswith(b"\0"):
        raise MilterProtocolError("a text without its end")
    return data[:-1].split(b"\0", count)


def _decode_text(text: bytes) -> str:
    return text.decode("utf-8", "replace")[:MAX_ADDRESS_LENGTH]


# ---- states


class MilterState(Enum):
    """How far a connection has come."""

    NEW = auto()  # before the negotiation
    READY = auto()  # no client
    CLIENT = auto()  # between messages
    ENVELOPE = auto()  # after MAIL
    HEADER = auto()
    BODY = auto()


MESSAGE_STATES = (MilterState.ENVELOPE, MilterState.HEADER, MilterState.BODY)
_CLIENT_STATES = (MilterState.CLIENT, *MESSAGE_STATES)
_NEGOTIATED_STATES = (MilterState.READY, *_CLIENT_STATES)

TRANSITIONS: Mapping[tuple[MilterState, MilterCommand], MilterState] = {
    (MilterState.NEW, MilterCommand.OFFER): MilterState.READY,
    (MilterState.READY, MilterCommand.CONNECT): MilterState.CLIENT,
    (MilterState.ENVELOPE, MilterCommand.RECIPIENT): MilterState.ENVELOPE,
    (MilterState.ENVELOPE, MilterCommand.DATA): MilterState.ENVELOPE,
    (MilterState.ENVELOPE, MilterCommand.FIELD): MilterState.HEADER,
    (MilterState.HEADER, MilterCommand.FIELD): MilterState.HEADER,
    (MilterState.ENVELOPE, MilterCommand.END_OF_HEADER): MilterState.BODY,
    (MilterState.HEADER, MilterCommand.END_OF_HEADER): MilterState.BODY,
    (MilterState.BODY, MilterCommand.BODY): MilterState.BODY,
    (MilterState.BODY, MilterCommand.END_OF_MESSAGE): MilterState.CLIENT,
    (MilterState.READY, MilterCommand.ABORT): MilterState.READY,
    **{(state, MilterCommand.SENDER): MilterState.ENVELOPE for state in _CLIENT_STATES},
    **{
        (state, command): MilterState.CLIENT
        for state in _CLIENT_STATES
        for command in (MilterCommand.HELLO, MilterCommand.ABORT)
    },
    **{
        (state, command): state
        for state in _NEGOTIATED_STATES
        for command in (MilterCommand.MACROS, MilterCommand.UNKNOWN)
    },
    **{(state, MilterCommand.NEXT_CLIENT): MilterState.READY for state in _NEGOTIATED_STATES},
    **{(state, MilterCommand.QUIT): MilterState.NEW for state in MilterState},
}
"""State and command to the next state. A pair that is missing is out of order, and ends the
connection.
"""


# ---- the session

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
_REPEATING_COMMANDS = (MilterCommand.FIELD.value, MilterCommand.BODY.value)
_CRLF = b"\r\n"
_FORGED_NAMES = FieldNameSet(FORGED_FIELDS)
_CONTINUE = encode_packet(b"c")
_PROGRESS = encode_packet(b"p")


@dataclass
class MilterMessage:
    """What the server has said of one message so far."""

    sender: str | None = None
    recipients: list[str] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    content: IncomingMessage | None = None  # before the first field
    removals: list[bytes] = field(default_factory=list)  # packets that remove forged fields
    _forged: Counter[bytes] = field(default_factory=Counter)

    def add_field(self, name: bytes) -> None:
        lower = name.strip(b" \t").lower()
        has_room = len(self.removals) < MAX_REMOVALS and len(lower) <= MAX_NAME_BYTES
        if has_room and lower in _FORGED_NAMES:
            # The first, second … field of this name, from 1; case does not matter.
            self._forged[lower] += 1
            data = _LENGTH.pack(self._forged[lower]) + lower + b"\0\0"
            self.removals.append(encode_packet(b"m", data))


class MilterSession(Conversation):
    """One connection of a mail server."""

    answers: Mapping[Refusal, Refusal] = {refusal: refusal for refusal in Refusal}

    def __init__(self, service: ScanService, address: str) -> None:
        super().__init__(service, address)
        self._state = MilterState.NEW
        self._negotiated = Offer(0, Actions(0), Steps(0))
        self._client = Client()
        self._client_macros: dict[str, str] = {}
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
            self._reset_message()

    # ---- packets

    async def _read_packet(self) -> Packet:
        """Raises MilterProtocolError, ClientTimeout and ConnectionClosed.

        A transaction begins with MAIL and ends with the answer to the message. A server whose own
        client is silent is idle: else silent clients there would shut others out here.
        """
        limits = self._service.limits
        has_begun = False
        now = asyncio.get_running_loop().time()
        deadline = now + _IDLE_TIMEOUT
        if self._message.content is not None:
            deadline = min(now + limits.data_timeout, self._request_deadline)
        while (packet := take_packet(self.unread)) is None:
            await self._flush()
            now = asyncio.get_running_loop().time()
            if self.unread and not has_begun:
                has_begun = True
                deadline = min(deadline, now + limits.data_timeout)
            in_message = self._state in MESSAGE_STATES
            evictable_from = now + listener.SILENT_SECONDS if in_message else self._idle_since
            data = await self.read(asyncio.timeout_at(deadline), evictable_from)
            if not data:
                raise ConnectionClosed
            self._acknowledge()
            self.unread += data
        return packet

    def _acknowledge(self) -> None:
        """Have TCP acknowledge at once what came.

        Postfix holds the next packet back until the last one is acknowledged, and Linux would wait
        40 ms. Linux forgets the option, so it is set after every read.
        """
        with suppress(OSError):  # a Unix socket, or lost, as the next read will show
            self.writer.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1
            )

    async def _flush(self) -> None:
        if self._unsent:
            data = bytes(self._unsent)
            self._unsent.clear()
            await self.send(data)

    # ---- commands

    async def _handle(  # noqa: PLR0912, PLR0915  one branch for each command
        self, command: MilterCommand, data: bytes
    ) -> None:
        """Do what a command says, go to the state that the table names, and answer.

        Commands that are not named here say nothing that we need.
        """
        if (self._state, command) not in TRANSITIONS:
            raise MilterProtocolError(f"{command.name} in the state {self._state.name}")
        match command:
            case MilterCommand.OFFER:
                rules = self._service.scanner.rules
                holds = any(rule.action is Action.QUARANTINE for rule in rules)
                optional = Actions.QUARANTINE if holds else Actions(0)
                self._negotiated = negotiate(data, optional)
                if optional & ~self._negotiated.actions:
                    warning = "%s: this server cannot hold messages back: they are only tagged"
                    _log.warning(warning, self.peer)
            # Postfix repeats the macros at each field and each piece.
            case MilterCommand.MACROS if data[:1] not in _REPEATING_COMMANDS:
                if data[:1] == MilterCommand.SENDER.value:
                    self._reset_message()  # they belong to the message that begins now
                is_of_client = data[:1] in _CLIENT_COMMANDS
                macros = self._client_macros if is_of_client else self._message.macros
                for name, text in parse_macros(data).items():
                    if name in _USED_MACROS:
                        macros[name] = text
            case MilterCommand.CONNECT:
                self._client = replace(parse_connect(data), peer=self.address)
            case MilterCommand.HELLO:
                self._reset_message()
                self._client = replace(self._client, helo=parse_argument(data))
            case MilterCommand.SENDER:
                if self._message.sender is not None:
                    self._reset_message()
                self._message.sender = bare_address(parse_argument(data))
            case MilterCommand.RECIPIENT if len(self._message.recipients) < _MAX_RECIPIENTS:
                self._message.recipients.append(bare_address(parse_argument(data)))
            case MilterCommand.FIELD:
                field_name, *rest = _split_texts(data, 1)
                if not rest:
                    raise MilterProtocolError("a field without a value")
                self._message.add_field(field_name)
                # Without LEADING_SPACE the server drops the blank behind the colon.
                colon = b":" if self._negotiated.steps & Steps.LEADING_SPACE else b": "
                value = rest[0].replace(_CRLF, b"\n").replace(b"\n", _CRLF)
                self._begin_content().write(field_name + colon + value + _CRLF)
            case MilterCommand.END_OF_HEADER:
                self._begin_content().write(_CRLF)
            case MilterCommand.BODY:
                self._begin_content().write(data)
            case MilterCommand.END_OF_MESSAGE:
                self._begin_content().write(data)
                try:
                    await self._judge()
                finally:
                    self._reset_message()
            case MilterCommand.ABORT:
                self._reset_message()
            case MilterCommand.NEXT_CLIENT:
                self._reset_message()
                self._client, self._client_macros = Client(), {}
        self._state = TRANSITIONS[self._state, command]
        if command is MilterCommand.OFFER:
            self._unsent += encode_packet(command.value, _OFFER.pack(*self._negotiated))
        elif self._negotiated.answers(command):
            self._unsent += _CONTINUE

    # ---- a message

    def _begin_content(self) -> IncomingMessage:
        message = self._message
        if message.content is None:
            message.content = self._service.incoming_message(self.address)
            now = asyncio.get_running_loop().time()
            self._request_deadline = now + self._service.limits.message_timeout
        return message.content

    def _reset_message(self) -> None:
        if self._message.content is not None:
            self._message.content.close()
        self._message = MilterMessage()
        self._idle_since = asyncio.get_running_loop().time()

    async def _judge(self) -> None:
        """Answer with the changes to the message, and the reply."""
        content, macros = self._begin_content(), self._client_macros | self._message.macros
        login = macros.get("auth_authen", "")
        # RFC 3848; whether the client said HELO or EHLO is unknown.
        protocol = "ESMTP" + ("S" if macros.get("tls_version") else "") + ("A" if login else "")
        request = ScanRequest(
            message=content.spool,
            peer=self.address,
            sender=self._message.sender or "",
            recipients=self._message.recipients,
            client=replace(self._client, protocol=protocol, login=login),
            received_by=macros.get("j", ""),
            queue_id=macros.get("i", ""),
            problem=str(content.refusal or ""),
        )
        scan = asyncio.create_task(self._service.scan(request))
        try:
            while not (await asyncio.wait([scan], timeout=_PROGRESS_SECONDS))[0]:
                self._unsent += _PROGRESS
                await self._flush()
            result = scan.result()
        finally:
            scan.cancel()
        if (reply := result.refusal) is not None:
            words = b"%d %s\0" % (reply.code, b" ".join(reply.lines))
            self._unsent += encode_packet(b"y", words)
            return
        for packet in reversed(self._message.removals):  # the last first: none renumbers another
            self._unsent += packet
        for line in reversed(result.fields):  # what is inserted last is on top
            name, _, value = line.partition(b":")
            if not self._negotiated.steps & Steps.LEADING_SPACE:
                value = value.lstrip(b" ")
            self._unsent += encode_packet(b"i", _LENGTH.pack(0) + name + b"\0" + value + b"\0")
        if result.action is Action.QUARANTINE and self._negotiated.actions & Actions.QUARANTINE:
            self._unsent += encode_packet(b"q", b"spamguard %s\0" % result.id.encode("ascii"))
        self._unsent += _CONTINUE
