"""One connection of a mail server: what it says of its clients and their messages, and what it is told to do with each.

Must never end a connection because of a message, never answer anything but what was agreed on, and never leave a message without an
answer because of a fault of ours: it is judged, or it is told that it could not be.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from spamguard.doors.milter.connection import Connection
from spamguard.doors.milter.dialogue import IN_MESSAGE, NEXT, State
from spamguard.doors.milter.forged import Forged
from spamguard.doors.milter.incoming import Incoming
from spamguard.proxy.asking import Asking, Judged, Question
from spamguard.proxy.contract import NOT_JUDGED, REFUSALS
from spamguard.reception.arriving import Arriving
from spamguard.reception.clients import Crowd, sharer
from spamguard.reception.conversation import Gone, House
from spamguard.settings import Action
from spamguard.wire import milter
from spamguard.wire.milter import Actions, Command, MalformedError, Offer, Steps
from spamguard.wire.values import Client

_IDLE_SECONDS = 7210.0  # between two commands, as in libmilter: the server waits for its own client, which has its own limits there
_PROGRESS_SECONDS = 5.0  # between two words that a message is being judged; Sendmail waits 10 s for one, Postfix 5 minutes
_LINGER_SECONDS = 2.0  # for the last replies to be taken
_RECIPIENTS = 5000  # of one message that are remembered
_LONGEST = 512  # letters of an address or a name, as for SMTP
_TOLD = frozenset(("i", "j", "auth_authen", "tls_version"))  # macros of use to us
_OF_CLIENT = (Command.CONNECT.value, Command.HELLO.value)

_log = logging.getLogger("spamguard.doors")


@dataclass(slots=True)
class _Message:
    """What was said of one message so far. sender: None before MAIL. told: macros of use to us.

    ends: when its content must be here, a time of the loop's clock.
    """

    sender: str | None = None
    recipients: list[str] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    content: Incoming | None = None
    ends: float = 0.0

    def close(self) -> None:
        """Give everything back."""
        if self.content is not None:
            self.content.arriving.close()


class MilterSession:
    """One server (`reception.door.Session`). address: of the connection, "" of a Unix socket."""

    def __init__(self, house: House, asking: Asking, spool_directory: Path, address: str) -> None:
        self._house = house
        self._asking = asking
        self._spool_directory = spool_directory
        self._address = address
        self._sharer = sharer(address, trusted=asking.trusts(address))
        self._state = State.NEW
        self._agreed = Offer(0, Actions(0), Steps(0))
        self._client = Client()
        self._told: dict[str, str] = {}  # of the client
        self._message = _Message()
        self._writer: asyncio.StreamWriter | None = None
        self._idle_since: float | None = None

    @property
    def idle_since(self) -> float | None:
        """A transaction begins with MAIL and ends with the answer to the message.

        So a mail server whose own client keeps silent before MAIL is idle: else silent clients
        there would shut others out here.
        """
        return None if self._state in IN_MESSAGE else self._idle_since

    def drain(self) -> None:
        """Servers keep a connection for as long as their client stays, and have no word for being sent away between messages: they
        would defer the next one. So all are served to their end, or to that of the door's patience."""

    def abort(self) -> None:
        """Hang up at once."""
        if self._writer is not None:
            self._writer.transport.abort()

    async def serve(self, connected: socket.socket, refused: Crowd | None) -> None:
        """From its first packet to its last."""
        self._idle_since = asyncio.get_running_loop().time()
        try:
            reader, self._writer = await asyncio.open_connection(sock=connected)
            if refused is not None:
                why = "not a listed client" if refused is Crowd.NOT_LISTED else "too many connections"
                _log.warning("%s: hanging up: %s", self._peer, why)
            else:
                await self._talk(Connection(reader, self._writer, self._house.limits.data_seconds))
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
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._writer.wait_closed()
        self.abort()

    @property
    def _peer(self) -> str:
        return self._address or "a client of the socket"

    async def _talk(self, connection: Connection) -> None:
        try:
            while (packet := await connection.packet(self._deadline())).command is not Command.QUIT:
                await self._obey(packet.command, packet.data, connection)
        except Gone:
            pass
        except TimeoutError:
            _log.warning("%s: hanging up: silent for too long, %s", self._peer, self._state.name.lower())
        except MalformedError as error:
            _log.warning("%s: hanging up: %s", self._peer, error)
        except OSError as error:
            _log.info("%s: connection lost: %s", self._peer, error)
        except Exception:  # noqa: BLE001
            _log.exception("%s: a fault in this session", self._peer)

    def _deadline(self) -> float:
        now, limits = asyncio.get_running_loop().time(), self._house.limits
        if self._message.content is None:
            return now + _IDLE_SECONDS
        return min(now + limits.data_seconds, self._message.ends)

    async def _obey(self, command: Command, data: bytes, connection: Connection) -> None:
        """Also ends what the command ends, so that the next one finds the state that the table says."""
        if (self._state, command) not in NEXT:
            raise MalformedError(f"{command.name} in the state {self._state.name}")
        if command is Command.END_OF_MESSAGE:
            await self._end_of_message(data, connection)
        elif command in _HANDLERS:
            _HANDLERS[command](self, data)
        self._state = NEXT[self._state, command]
        if command is Command.OFFER:
            connection.say([self._agreed.encode()])
        elif self._agreed.answers(command):
            connection.say([milter.CONTINUE])

    # ---- commands

    def _offer(self, data: bytes) -> None:
        wanted = Actions(0) if self._asking.scanner.quarantine_from is None else Actions.QUARANTINE
        self._agreed = milter.agreed(milter.parse_offer(data), wanted)
        if wanted & ~self._agreed.actions:
            _log.warning("%s: this server cannot hold messages back: they are only tagged", self._peer)

    def _macros(self, data: bytes) -> None:
        if data[:1] in (Command.FIELD.value, Command.BODY.value):  # Postfix repeats them at each
            return
        if data[:1] == Command.SENDER.value:
            self._forget()  # these are of the message that begins now
        told = {name: value[:_LONGEST] for name, value in milter.parse_macros(data).items() if name in _TOLD}
        (self._told if data[:1] in _OF_CLIENT else self._message.told).update(told)

    def _connect(self, data: bytes) -> None:
        found = milter.parse_connect(data)
        self._client = Client(address=found.address, name=found.name[:_LONGEST], port=found.port, peer=self._address)

    def _hello(self, data: bytes) -> None:
        self._forget()
        self._client = replace(self._client, helo=milter.parse_words(data)[0][:_LONGEST])

    def _sender(self, data: bytes) -> None:
        if self._message.sender is not None:
            self._forget()
        self._message.sender = _address(data)

    def _recipient(self, data: bytes) -> None:
        if len(self._message.recipients) < _RECIPIENTS:
            self._message.recipients.append(_address(data))

    def _field(self, data: bytes) -> None:
        name, value = milter.parse_field(data)
        self._content().field(name, value)

    def _end_of_header(self, data: bytes) -> None:  # noqa: ARG002
        self._content().end_of_header()

    def _body(self, data: bytes) -> None:
        self._content().body(data)

    def _abort(self, data: bytes) -> None:  # noqa: ARG002
        self._forget()

    def _next_client(self, data: bytes) -> None:  # noqa: ARG002
        self._forget()
        self._client, self._told = Client(), {}

    # ---- a message

    def _content(self) -> Incoming:
        """Of the message; it begins with the first piece that comes."""
        if self._message.content is None:
            limits = self._house.limits
            gap = b"" if self._agreed.steps & Steps.LEADING_SPACE else b" "
            forged = Forged(self._asking.scanner.policy.forged)
            self._message.content = Incoming(Arriving(self._spool_directory, limits, self._house.load, self._sharer), forged, gap)
            self._message.ends = asyncio.get_running_loop().time() + limits.message_seconds
        return self._message.content

    def _forget(self) -> None:
        """Back to where a message may begin."""
        self._message.close()
        self._message = _Message()
        self._idle_since = asyncio.get_running_loop().time()

    async def _end_of_message(self, data: bytes, connection: Connection) -> None:
        incoming = self._content()
        incoming.body(data)
        try:
            judged = await self._patiently(self._asking.judge(self._question(incoming)), connection)
            connection.say(self._answer(judged, incoming))
        finally:
            self._forget()

    async def _patiently(self, judging: Coroutine[None, None, Judged], connection: Connection) -> Judged:
        """What comes of it; meanwhile the server hears that we are at it."""
        task = asyncio.create_task(judging)
        try:
            while not (await asyncio.wait([task], timeout=_PROGRESS_SECONDS))[0]:
                connection.say([milter.PROGRESS])
                await connection.flush()
            return task.result()
        finally:
            task.cancel()

    def _question(self, incoming: Incoming) -> Question:
        message, told = self._message, self._told | self._message.told
        login = told.get("auth_authen", "")
        protocol = "ESMTP" + ("S" if told.get("tls_version") else "") + ("A" if login else "")  # RFC 3848; which of HELO and EHLO: unknown
        return Question(
            message=incoming.arriving.spool,
            peer=self._address,
            sender=message.sender or "",
            recipients=message.recipients,
            client=replace(self._client, protocol=protocol, login=login),
            received_by=told.get("j", ""),
            queue=told.get("i", ""),
            problem=incoming.problem,
        )

    def _answer(self, judged: Judged, incoming: Incoming) -> Iterable[bytes]:
        """Our fields on top, above all; what is inserted first ends below the others."""
        if judged.action in REFUSALS:
            return [milter.refusal(NOT_JUDGED if judged.reason else REFUSALS[judged.action])]
        held = judged.action is Action.QUARANTINE and self._agreed.actions & Actions.QUARANTINE
        return [
            *incoming.forged.removals(),
            *[self._on_top(field) for field in reversed(judged.fields)],
            *([milter.quarantine(f"spamguard {judged.id}")] if held else []),
            milter.CONTINUE,
        ]

    def _on_top(self, field: bytes) -> bytes:
        name, _, value = field.partition(b":")
        return milter.insert_field(0, name, value if self._agreed.steps & Steps.LEADING_SPACE else value.lstrip(b" "))


_HANDLERS: Mapping[Command, Callable[[MilterSession, bytes], None]] = {
    Command.OFFER: MilterSession._offer,
    Command.MACROS: MilterSession._macros,
    Command.CONNECT: MilterSession._connect,
    Command.HELLO: MilterSession._hello,
    Command.SENDER: MilterSession._sender,
    Command.RECIPIENT: MilterSession._recipient,
    Command.FIELD: MilterSession._field,
    Command.END_OF_HEADER: MilterSession._end_of_header,
    Command.BODY: MilterSession._body,
    Command.ABORT: MilterSession._abort,
    Command.NEXT_CLIENT: MilterSession._next_client,
}
"""What is done at a command. The others say nothing that we need."""


def _address(data: bytes) -> str:
    """Of MAIL or RCPT, without its brackets and parameters."""
    return milter.parse_words(data)[0].removeprefix("<").removesuffix(">")[:_LONGEST]
