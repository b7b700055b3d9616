"""A next hop that refuses, stalls and drops at every step, and clients that send until they get a
250.

Both keep books. Every attempt of a client has a name of its own, so a message that was acknowledged
and lost, delivered twice by one attempt, or changed on the way is noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.support.waiting import PATIENCE

_NAME = re.compile(rb"^X-Attempt: (\d+/\d+)\r$", re.MULTILINE)
_SUM = re.compile(rb"^X-Sum: ([0-9a-f]{32})\r$", re.MULTILINE)
_OURS = re.compile(rb"^X-Spamguard: ", re.MULTILINE)
STEPS = ("greeting", "ehlo", "mail", "rcpt", "data", "middle", "dot", "answer")
FAULTS = ("refuse", "stall", "drop")


@dataclass
class FaultyHop:
    """The next hop. share: of all steps that go wrong; stall: seconds."""

    share: float
    stall: float = 1.0
    seed: int = 1
    received: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Listen on loopback; at the end all sessions are closed."""
        sessions: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._session(reader, writer))
            sessions[task] = writer
            task.add_done_callback(sessions.pop)

        server = await asyncio.start_server(begin, "127.0.0.1", port, limit=1 << 20, backlog=256)
        try:
            yield
        finally:
            server.close()
            for writer in sessions.values():
                writer.close()
            await asyncio.gather(*sessions)

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, _DropError):
            await self._dialogue(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _dialogue(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._say(writer, "greeting", b"220 hop ESMTP\r\n")
        while verb := (await reader.readline()).split(b" ")[0].strip().upper():
            if verb in (b"EHLO", b"LHLO"):
                await self._say(
                    writer,
                    "ehlo",
                    b"250-hop\r\n250-PIPELINING\r\n250-SIZE 100000000\r\n250 8BITMIME\r\n",
                )
            elif verb == b"DATA":
                if await self._say(writer, "data", b"354 go on\r\n"):
                    await self._data(reader, writer)
            elif verb == b"QUIT":
                writer.write(b"221 bye\r\n")
                return
            else:
                await self._say(
                    writer, verb.decode("ascii", "replace").lower(), b"250 2.0.0 ok\r\n"
                )
            await writer.drain()

    async def _data(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._fault("middle") == "drop":
            raise _DropError
        message = bytearray()
        while not message.endswith(
            b"\r\n.\r\n"
        ):  # every chunk is looked at by its end only: nobody pipelines after the dot here
            chunk = await reader.read(1 << 20)
            if not chunk:
                return  # half a message: forgotten
            message += chunk
        if await self._say(writer, "dot", b""):
            self._keep(bytes(message[:-3]))
            await self._say(writer, "answer", b"250 2.0.0 kept\r\n", refuse=False)

    def _keep(self, message: bytes) -> None:
        head, _, body = message.partition(b"\r\n\r\n")
        name, told = _NAME.search(head + b"\r\n"), _SUM.search(head + b"\r\n")
        found = name[1].decode() if name else "?"
        self.received[found] += 1
        if told is None or told[1].decode() != summed(body.replace(b"\r\n.", b"\r\n")):
            self.wrong.append(f"{found}: its body changed")
        if len(_OURS.findall(head)) != 1:
            self.wrong.append(f"{found}: not exactly one field of ours")

    async def _say(
        self, writer: asyncio.StreamWriter, step: str, text: bytes, *, refuse: bool = True
    ) -> bool:
        """Answer, unless this step goes wrong; whether it did not."""
        fault = self._fault(step)
        if fault == "drop":
            raise _DropError
        if fault == "stall":
            await asyncio.sleep(self.stall)
        refused = fault == "refuse" and refuse
        writer.write(b"451 4.3.2 not now\r\n" if refused else text)
        return not refused

    def _fault(self, step: str) -> str | None:
        if step not in STEPS or self._random.random() >= self.share:
            return None
        fault = self._random.choice(FAULTS)
        self.faults[f"{step} {fault}"] += 1
        return fault


class _DropError(Exception):
    """The connection goes."""


def summed(body: bytes) -> str:
    """A checksum of the body."""
    return hashlib.blake2b(body, digest_size=16).hexdigest()


def bodies(count: int, sizes: tuple[int, ...], seed: int = 1) -> Iterator[bytes]:
    """Bodies with all that is hard to pass on: dots, long lines, 8-bit, empty lines; CRLF line
    ends.
    """
    choose = random.Random(seed)
    lines = [
        b".",
        b"..",
        b".dot",
        b"",
        b"From here",
        b"gr\xc3\xbc\xc3\x9fe",
        b"x" * 3000,
        b"plain words of a message",
        b"\xff\xfe\xe9",
    ]
    blocks = [b"".join([choose.choice(lines) + b"\r\n" for _ in range(200)]) for _ in range(20)]
    for number in range(count):
        size = sizes[number % len(sizes)]
        blob = b"%d\r\n" % number
        while len(blob) < size:
            blob += (
                choose.choice(blocks) if size < 1 << 20 else b"".join(choose.choices(blocks, k=50))
            )
        end = blob.rfind(b"\r\n", 0, max(size, 8)) + 2
        yield blob[: max(end, 2)]


@dataclass
class Clients:
    """Clients that send until they get a 250. acknowledged: attempts that got one."""

    port: int
    acknowledged: set[str] = field(default_factory=set)
    attempts: Counter[int] = field(default_factory=Counter)

    async def send_all(self, messages: Iterator[bytes], connections: int) -> None:
        """Send all messages over so many connections at once."""
        numbered = enumerate(messages)
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._client(numbered))

    async def _client(self, numbered: Iterator[tuple[int, bytes]]) -> None:
        connection: _Connection | None = None
        try:
            for number, body in numbered:
                while True:
                    try:
                        connection = connection or await _Connection.open(self.port)
                        if await self._attempt(connection, number, body):
                            break
                    except (TimeoutError, OSError, asyncio.IncompleteReadError):
                        if connection is not None:
                            await connection.close()
                        connection = None
                    await asyncio.sleep(0.05)
        finally:
            if connection is not None:
                await connection.close()

    async def _attempt(self, connection: _Connection, number: int, body: bytes) -> bool:
        self.attempts[number] += 1
        name = f"{number}/{self.attempts[number]}"
        if not await connection.send(name, body):
            return False
        self.acknowledged.add(name)
        return True


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> _Connection:
        connection = cls(*await asyncio.open_connection("127.0.0.1", port))
        try:
            await connection._expect(b"2")
            await connection._ask(b"EHLO client.example\r\n", b"2")
        except BaseException:
            await connection.close()
            raise
        return connection

    async def send(self, name: str, body: bytes) -> bool:
        """Whether it was acknowledged; ConnectionError when the connection is of no more use."""
        if not await self._ask(b"MAIL FROM:<a@example.org>\r\n", b"2") or not await self._ask(
            b"RCPT TO:<b@example.net>\r\n", b"2"
        ):
            await self._ask(b"RSET\r\n", b"2")
            return False
        if not await self._ask(b"DATA\r\n", b"3"):
            await self._ask(b"RSET\r\n", b"2")
            return False
        head = (
            f"X-Attempt: {name}\r\nX-Sum: {summed(body)}\r\nSubject: {name}\r\n"
            "X-Spam-Flag: YES\r\n\r\n"
        ).encode()
        self._writer.write(head)
        stuffed = (b"\r\n" + body).replace(b"\r\n.", b"\r\n..")[2:]
        for start in range(0, len(stuffed), 1 << 16):
            self._writer.write(stuffed[start : start + (1 << 16)])
            await self._writer.drain()
        return await self._ask(b".\r\n", b"2")

    async def _ask(self, line: bytes, wanted: bytes) -> bool:
        self._writer.write(line)
        await self._writer.drain()
        return await self._expect(wanted)

    async def _expect(self, wanted: bytes) -> bool:
        while True:
            line = await asyncio.wait_for(self._reader.readuntil(b"\n"), PATIENCE)
            if line[3:4] != b"-":
                break
        if line.startswith(b"421"):
            raise ConnectionAbortedError(line)
        if line.startswith(b"5"):
            raise AssertionError(f"refused for ever: {line!r}")
        return line.startswith(wanted)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
