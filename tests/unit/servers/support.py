"""A door on a real socket, a scripted proxy behind it, and a client that sends any bytes."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from spamguard.config.options import Endpoint, Hop, Listener, Position, Protocol
from spamguard.daemon.doors import open_door
from spamguard.servers.smtp import DoorContext
from spamguard.smtp.envelope import Reply
from tests.support.waiting import PATIENCE, drain

OK = Reply.from_text(250, "2.1.5 fine by the next hop")
NO = Reply.from_text(550, "5.1.1 no such user")
LATER = Reply(451, (b"4.2.0 in a moment", b"4.2.0 or two"))
HOP = Hop(Endpoint(Protocol.SMTP, "127.0.0.1", 1))
MESSAGE = b"Subject: x\r\n\r\nhello\r\n"


@dataclass
class Passed:
    """What one transaction has seen."""

    client: object
    sender: object = None
    recipients: list = field(default_factory=list)
    content: bytes | None = None
    oddities: frozenset = frozenset()
    cancelled: bool = False
    ended: int = 0


class ScriptedProxy:
    """Says yes by default. `answers` maps "mail", an address, or "data" to a reply, a
    list of them, or an exception.
    """

    def __init__(self, answers=None, answers_each=False, extensions=None, hold=None):
        self.answers = answers or {}
        self.answers_each = answers_each
        self.extensions = extensions or {}
        self.hold = hold
        self.holding = asyncio.Event()
        self.passed = []

    def message(self, client):
        self.passed.append(Passed(client))
        return ScriptedMessage(self, self.passed[-1])

    def answer(self, what, default):
        found = self.answers.get(what, default)
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def contents(self):
        return [
            transaction.content for transaction in self.passed if transaction.content is not None
        ]


class ScriptedMessage:
    def __init__(self, proxy, passed):
        self.proxy, self.passed, self.accepted = proxy, passed, 0

    async def mail(self, sender):
        self.passed.sender = sender
        return self.proxy.answer("mail", OK)

    async def recipient(self, recipient):
        self.passed.recipients.append(recipient)
        reply = self.proxy.answer(recipient.address, OK)
        self.accepted += reply.is_positive
        return reply

    async def data(self, message, oddities):
        if self.proxy.hold is not None:
            self.proxy.holding.set()
            try:
                await self.proxy.hold.wait()
            except asyncio.CancelledError:
                self.passed.cancelled = True
                raise
        self.passed.content, self.passed.oddities = message.read(), oddities
        return self.proxy.answer("data", [OK] * (self.accepted if self.proxy.answers_each else 1))

    async def end(self):
        self.passed.ended += 1


class Caller:
    """A client. `say` sends a line and gives the code and the text of the reply."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def reply(self):
        lines = []
        while True:
            line = await asyncio.wait_for(self.reader.readline(), PATIENCE)
            if not line:
                return (0, "")
            lines.append(line[4:-2].decode("latin-1"))
            if line[3:4] == b" ":
                return int(line[:3]), "\n".join(lines)

    async def code(self):
        return (await self.reply())[0]

    def send(self, data):
        self.writer.write(data)

    async def say(self, line):
        self.send(line + b"\r\n")
        return await self.reply()

    async def codes(self, *lines):
        return [(await self.say(line))[0] for line in lines]

    async def begin(self, hello=b"EHLO me.example", recipients=(b"b@x.example",)):
        """To the point where data may come."""
        assert await self.code() == 220
        lines = [
            hello,
            b"MAIL FROM:<a@x.example>",
            *[b"RCPT TO:<" + recipient + b">" for recipient in recipients],
        ]
        assert await self.codes(*lines) == [250] * len(lines)
        assert await self.codes(b"DATA") == [354]

    async def at_end(self):
        """Whether the door has closed, with nothing more to say."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE) == b""
        except ConnectionError:
            return True

    def reset(self):
        """Leave with RST instead of FIN."""
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.writer.transport.abort()

    async def close(self):
        self.writer.close()
        with suppress(ConnectionError, OSError):
            await self.writer.wait_closed()


@dataclass
class Served:
    """An open door."""

    door: object
    port: int
    listening: socket.socket
    callers: list = field(default_factory=list)

    async def call(self, **options):
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self.callers.append(caller)
        return caller

    async def handing_on(self, proxy, behind=b""):
        """A client whose message the proxy hands on until its `hold` is set. behind: what came with
        it.
        """
        proxy.hold = asyncio.Event()
        caller = await self.call()
        await caller.begin()
        caller.send(MESSAGE + b".\r\n" + behind)
        await proxy.holding.wait()
        return caller


def listener(port=0, protocol=Protocol.SMTP, position=Position.BEFORE_QUEUE, **options):
    return Listener(Endpoint(protocol, "127.0.0.1", port), position, HOP, **options)


def make_door(directory, proxy, listening, **options):
    """A door in front of this proxy that is not open yet."""
    settings = listener(**options)
    context = DoorContext(settings, proxy, "mx.example", directory, lambda _: None)
    return open_door(context, listening)


@asynccontextmanager
async def serving(directory, proxy, **options):
    """A door in front of this proxy; at the end everything is closed."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as listening:
        port = listening.getsockname()[1]
        door = make_door(directory, proxy, listening, port=port, **options)
        door.open()
        served = Served(door, port, listening)
        try:
            yield served
        finally:
            for caller in served.callers:
                await caller.close()
            await drain(door, 2)
