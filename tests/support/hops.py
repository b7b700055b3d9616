"""Next hops for tests: small real servers that follow a script at each step and record their
sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from spamguard.config.options import Endpoint, Protocol


class Act(Enum):
    """An action in the place of a reply."""

    STALL = "stall"  # for ever
    DROP = "drop"  # closes
    RESET = "reset"  # closes so that the other end gets an error


@dataclass(frozen=True)
class Then:
    """A reply, and an action right after it."""

    answer: bytes
    act: Act


@dataclass(frozen=True)
class Middle:
    """An action after so many bytes of a message; the rest is not read."""

    after: int
    then: Act | Then


Answer = bytes | Act | Then
Script = Mapping[str, Answer | Sequence[Answer]]
"""By verb (or GREETING, and DOT for the end of data): one answer for always, or a sequence of which
the last is repeated.
"""

_LIMIT = 64 << 20  # bytes of one line
EVERYTHING = (
    b"250-hop.example\r\n250-PIPELINING\r\n250-SIZE 1000000\r\n250-8BITMIME\r\n250-DSN\r\n"
    b"250 SMTPUTF8\r\n"
)
_USUAL: Script = {"GREETING": b"220 hop.example ready\r\n", "EHLO": EVERYTHING, "LHLO": EVERYTHING}
_USUAL |= {
    "DATA": b"354 go on\r\n",
    "STARTTLS": b"220 go on\r\n",
    "QUIT": Then(b"221 bye\r\n", Act.DROP),
}


@dataclass
class Delivered:
    """A message. data: its bytes, dots removed; raw: as it came, with the final dot."""

    sender: str
    recipients: list[str]
    raw: bytes

    @property
    def data(self) -> bytes:
        return (b"\r\n" + self.raw[:-3]).replace(b"\r\n.", b"\r\n")[2:]


@dataclass
class Heard:
    """The record of one session. halved: bytes of a message that had no end."""

    commands: list[str] = field(default_factory=list)
    messages: list[Delivered] = field(default_factory=list)
    halved: bytes = b""
    encrypted: bool = False


class FakeHop:
    """The server. middle: an action within the first message. sessions: records, in the order of
    connection.
    """

    def __init__(
        self,
        script: Script,
        lmtp: bool = False,
        middle: Middle | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._script = {**_USUAL, **script}
        self._turns: dict[str, int] = {}
        self._lmtp = lmtp
        self._middle = middle
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.endpoint: Endpoint
        self.sessions: list[Heard] = []

    @property
    def messages(self) -> list[Delivered]:
        return [message for session in self.sessions for message in session.messages]

    @property
    def commands(self) -> list[str]:
        return [command for session in self.sessions for command in session.commands]

    @contextlib.asynccontextmanager
    async def running(
        self, path: Path | None = None, host: str = "127.0.0.1"
    ) -> AsyncIterator[FakeHop]:
        protocol = Protocol.LMTP if self._lmtp else Protocol.SMTP
        if path is not None:
            server: asyncio.Server = await asyncio.start_unix_server(
                self._serve, path, limit=_LIMIT
            )
            self.endpoint = Endpoint(protocol, path=path)
        else:
            server = await asyncio.start_server(self._serve, host, 0, limit=_LIMIT)
            self.endpoint = Endpoint(protocol, host, server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            await self.hang_up()

    async def hang_up(self) -> None:
        """End all sessions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        heard = Heard()
        self.sessions.append(heard)
        try:
            await _Dialogue(self, heard, reader, writer).run()
        except (_OverError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def answer(self, verb: str) -> Answer:
        """The reply that is due now."""
        answers = self._script.get(verb, b"250 2.0.0 fine\r\n")
        if isinstance(answers, bytes | Act | Then):
            return answers
        turn = self._turns.get(verb, 0)
        self._turns[verb] = turn + 1
        return answers[min(turn, len(answers) - 1)]


class _OverError(Exception):
    pass


class _Dialogue:
    def __init__(
        self, hop: FakeHop, heard: Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._hop = hop
        self._heard = heard
        self._reader = reader
        self._writer = writer
        self._sender = ""
        self._recipients: list[str] = []

    async def run(self) -> None:
        await self._do(self._hop.answer("GREETING"))
        while line := await self._reader.readline():
            command = line.decode("utf-8", "surrogateescape")
            assert command.endswith("\r\n")
            self._heard.commands.append(command[:-2])
            await self._obey(command.split(maxsplit=1)[0].upper(), command)

    async def _obey(self, verb: str, command: str) -> None:
        answer = self._hop.answer(verb)
        await self._do(answer)
        positive = isinstance(answer, bytes) and answer[:1] in b"23"
        if verb == "MAIL" and positive:
            self._sender, self._recipients = (
                command[command.index("<") + 1 : command.rindex(">")],
                [],
            )
        elif verb == "RCPT" and positive:
            self._recipients.append(command[command.index("<") + 1 : command.rindex(">")])
        elif verb == "STARTTLS" and positive and self._hop._tls is not None:
            await self._writer.start_tls(self._hop._tls)
            self._heard.encrypted = True
        elif verb == "DATA" and isinstance(answer, bytes) and answer.startswith(b"354"):
            await self._message()

    async def _message(self) -> None:
        middle, self._hop._middle = self._hop._middle, None
        if middle is not None:
            self._heard.halved = await self._reader.readexactly(middle.after)
            await self._do(middle.then)
        lines: list[bytes] = []
        try:
            while lines[-1:] != [b".\r\n"]:
                lines.append(await self._reader.readuntil(b"\r\n"))
        except asyncio.IncompleteReadError as end:
            self._heard.halved = b"".join(lines) + end.partial
            raise
        self._heard.messages.append(Delivered(self._sender, self._recipients, b"".join(lines)))
        for _ in self._recipients if self._hop._lmtp else [""]:
            await self._do(self._hop.answer("DOT"))

    async def _do(self, answer: Answer) -> None:
        if isinstance(answer, Then):
            await self._do(answer.answer)
            answer = answer.act
        if isinstance(answer, bytes):
            self._writer.write(answer)
            await self._writer.drain()
        elif answer is Act.STALL:
            await asyncio.Event().wait()
        else:
            if answer is Act.RESET:
                self._writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            self._writer.transport.abort()
            raise _OverError
