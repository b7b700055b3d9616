"""A milter door on a real socket with a scripted service behind it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from spamguard.config.options import Action, Endpoint, Protocol, Scanner
from spamguard.daemon.doors import open_scanner
from spamguard.servers.listener import ByteQuota, IncomingMessage
from spamguard.servers.scanner import ScanResult
from tests.support.waiting import PATIENCE, drain
from tests.unit.servers.milter.mta import Mta

FIELDS = (b"X-Spam-Flag: YES", b"X-Spam-Status: Yes, score=9.0", b"X-Spamguard: spam; id=1")
SPAM = ScanResult("1", FIELDS, Action.TAG)
RAW = (
    b"Received: from x\r\n\tby y; date\r\nSubject:no blank\r\nX-Empty:\r\nFrom:  two "
    b"blanks\r\n\r\nbody\xff\r\n\r\n.\r\nend"
)


class ScriptedService:
    """Answers `judged`, or raises it. raws: the messages, read before they are gone. hold: what is
    waited for before that.
    """

    def __init__(self, judged=SPAM, hold=None, **settings):
        self.scanner = replace(Scanner(Endpoint(Protocol.MILTER, "127.0.0.1")), **settings)
        self.judged, self.hold = judged, hold
        self.holding = asyncio.Event()
        self.questions, self.raws = [], []

    @property
    def limits(self):
        return self.scanner.limits

    def incoming_message(self, _address):
        return IncomingMessage(self.directory, self.limits, ByteQuota(self.limits))

    async def scan(self, question):
        self.questions.append(question)
        self.holding.set()
        if self.hold is not None:
            await self.hold.wait()
        self.raws.append(b"" if question.problem else question.message.read())
        if isinstance(self.judged, Exception):
            raise self.judged
        return self.judged


class Served:
    """An open door."""

    def __init__(self, door, address):
        self.door, self.address, self.servers = door, address, []

    async def connect(self):
        """A server that has said nothing yet."""
        opened = (
            asyncio.open_unix_connection(self.address)
            if isinstance(self.address, str)
            else asyncio.open_connection(*self.address)
        )
        self.servers.append(Mta(*await opened))
        return self.servers[-1]

    async def ready(self, **options):
        """A server with a client."""
        server = await self.connect()
        await server.agree(**options)
        await server.client()
        return server


@asynccontextmanager
async def serving(directory: Path, service: ScriptedService, path: Path | None = None):
    """A door; at the end everything is closed."""
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as listening:
        listening.bind(str(path) if path else ("127.0.0.1", 0))
        listening.listen(200)
        service.directory = directory
        door = open_scanner(service, listening)
        door.open()
        served = Served(door, listening.getsockname())
        try:
            yield served
        finally:
            for server in served.servers:
                await server.close()
            await drain(door, 2)


def run(directory, service, talk, **options):
    """What comes of `talk` with a door."""

    async def main():
        async with serving(directory, service, **options) as served:
            return await asyncio.wait_for(talk(served), PATIENCE)

    return asyncio.run(main())
