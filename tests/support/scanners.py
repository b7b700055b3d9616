"""Scanner doors on real sockets, with the real `ScanService` and a scripted judge behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from spamguard.config.options import Endpoint, Protocol, Scanner
from spamguard.daemon.doors import open_scanner
from spamguard.delivery.quarantine import Quarantine
from spamguard.engine.policy import SPAM_THRESHOLD, logit
from spamguard.learning.lessons import TrainingIntake
from spamguard.learning.queue import QUEUE_DIRECTORY, LessonQueue
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.transaction import DeliveryRecord, PolicyJudge, ProxyContext
from spamguard.records import Scan, Verdict, Word
from spamguard.servers.listener import Door
from spamguard.servers.scanner import ScanService
from spamguard.storage import Spool
from spamguard.users import QueuedLesson, UserResolver
from tests.support.waiting import PATIENCE, drain

KEY = b"k" * 32


def verdict(probability: float) -> Verdict:
    label = "spam" if probability >= SPAM_THRESHOLD else "ham" if probability <= 0.1 else "unsure"
    return Verdict(
        label, probability, logit(probability), {"ham": 1 - probability, "spam": probability}
    )


SPAM, HAM, UNSURE = (verdict(probability) for probability in (0.999, 0.001, 0.5))


@dataclass
class ScriptedJudge:
    """Gives the same verdict for every message. personal: verdicts by user. hold: an event that it
    waits for.
    """

    says: Verdict | NotScanned = SPAM
    personal: Mapping[str, Verdict] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    raws: list[bytes] = field(default_factory=list)
    on_top: list[bytes] = field(default_factory=list)
    users: list[Sequence[str]] = field(default_factory=list)

    async def judge(
        self, message: Spool, on_top: bytes, users: Sequence[str] = ()
    ) -> Scan | NotScanned:
        self.raws.append(message.read())
        self.on_top.append(on_top)
        self.users.append(users)
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.says, NotScanned):
            return self.says
        digest = blake2b(self.raws[-1], digest_size=16).digest()
        words = (Word(1, "cheap", 1.5), Word(2, "odd\r\nX-Evil: yes\x00", -0.25))
        found = {user: self.personal[user] for user in users if user in self.personal}
        return Scan(self.says, digest, b"", words, SPAM_THRESHOLD, personal=found)


@dataclass
class Served:
    """An open scanner door, and all that came of it."""

    door: Door
    service: ScanService
    judge: ScriptedJudge
    address: Any
    state: Path
    entries: list[DeliveryRecord]
    settled: list[bool]
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        """All that are connected."""
        for writer in self.writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def say(self, data: bytes, *, end: bool = True) -> bytes:
        """All that is answered to that. end: nothing more is sent."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            if end:
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), PATIENCE)
        finally:
            writer.close()

    def lessons(self) -> list[QueuedLesson]:
        """Those that wait to be learnt, oldest first."""
        queue = LessonQueue(self.state / QUEUE_DIRECTORY)
        return [lesson for name in queue.names() if (lesson := queue.take(name))]


def in_transactions(door: Door) -> int:
    """How many clients are in one, and not silent for long."""
    now = asyncio.get_running_loop().time()
    times = [session.evictable_from for session in door._tasks]
    return sum(since is None or since > now for since in times)


def scan_service(
    state: Path,
    scanner: Scanner,
    judge: Any,
    *,
    entries: list[DeliveryRecord],
    settled: list[bool],
    resolver: UserResolver | None = None,
) -> ScanService:
    """As in a worker, for a filter in that directory."""
    context = ProxyContext(
        Quarantine(state / "quarantine"),
        lambda: KEY,
        entries.append,
        lambda: settled.append(True),
        resolver,
    )
    policy_judge = PolicyJudge(judge.judge, context, scanner)
    return ScanService(scanner, policy_judge, TrainingIntake(state), "mx.example.org", state)


def scanner(protocol: Protocol, **settings: Any) -> Scanner:
    return Scanner(Endpoint(protocol, "127.0.0.1"), **settings)


@asynccontextmanager
async def serving(
    state: Path,
    protocol: Protocol,
    judge: ScriptedJudge | None = None,
    resolver: UserResolver | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A door that is open, and closed in the end."""
    scripted, entries, settled = judge or ScriptedJudge(), list[DeliveryRecord](), list[bool]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        service = scan_service(
            state,
            scanner(protocol, **settings),
            scripted,
            entries=entries,
            settled=settled,
            resolver=resolver,
        )
        door = open_scanner(service, listening)
        door.open()
        assert isinstance(door, Door)
        try:
            served = Served(
                door, service, scripted, listening.getsockname(), state, entries, settled
            )
            yield served
        finally:
            await served.hang_up()
            await drain(door, 2)
