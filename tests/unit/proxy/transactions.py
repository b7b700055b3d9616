"""A mail transaction with a scripted next hop and a scripted judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spamguard.config.options import Endpoint, Hop, Listener, Position, Protocol
from spamguard.delivery.quarantine import Quarantine
from spamguard.proxy.scorer import NotScanned
from spamguard.proxy.transaction import DeliveryRecord, FilterProxy, PolicyJudge, ProxyContext
from spamguard.records import Scan, Verdict, Word
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import Spool, SpoolView
from spamguard.users import UserResolver

KEY = b"k" * 32
DIGEST = b"0123456789abcdef"
OK = Reply.from_text(250, "2.0.0 taken")
NO = Reply.from_text(550, "5.1.1 nobody here")
RAW = (
    b"From: a@example.org\r\nX-Spam-Flag: NO\r\n"
    b"Subject: =?utf-8?q?gr=C3=BC=C3=9Fe?=\r\n\r\nhello\r\n.\r\n"
)
SPAM = Verdict("spam", 0.999, 6.9, {"spam": 0.999, "ham": 0.001})
HAM = Verdict("ham", 0.001, -6.9, {"spam": 0.001, "ham": 0.999})


@dataclass
class FakeHop:
    """A next hop that records its calls. answers: replies by call ("mail", "rcpt
    b@example.net", "send").
    """

    answers_each: bool = False
    answers: dict[str, Reply | list[Reply]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    extensions: Mapping[str, str] | None = None
    broken: bool = False
    made: list[FakeTransaction] = field(default_factory=list)

    async def probe(self) -> None: ...

    async def close(self) -> None: ...

    def transaction(self, client: Client) -> FakeTransaction:
        self.made.append(FakeTransaction(self))
        return self.made[-1]


@dataclass
class FakeTransaction:
    hop: FakeHop
    accepted: int = 0
    ended: bool = False

    def _answer(self, what: str, default: Reply = OK) -> Reply:
        assert not self.ended
        self.hop.said.append(what)
        answer = self.hop.answers.get(what, default)
        return answer.pop(0) if isinstance(answer, list) else answer

    async def mail(self, sender: Sender) -> Reply:
        assert all(session.ended for session in self.hop.made if session is not self), (
            "a session is kept that nobody needs"
        )
        return self._answer(f"mail {sender.address}")

    async def recipient(self, recipient: Recipient) -> Reply:
        reply = self._answer(f"rcpt {recipient.address}")
        self.accepted += reply.is_positive
        return reply

    async def send(self, content: SpoolView) -> Sequence[Reply]:
        reply = self._answer("send")
        if self.hop.broken:
            raise RuntimeError("a bug")
        self.hop.contents.append(b"".join(content.chunks()))
        return [reply] * (self.accepted if self.hop.answers_each else 1)

    async def end(self) -> None:
        self.ended = True


@dataclass
class FakeJudge:
    found: Scan | NotScanned
    on_top: bytes = b""
    users: Sequence[str] = ()

    async def judge(
        self, message: Spool, on_top: bytes, users: Sequence[str] = ()
    ) -> Scan | NotScanned:
        self.on_top, self.users = on_top, users
        return self.found


@dataclass
class Case:
    """A message on its way, with everything that can be looked at afterwards."""

    place: Path
    hop: FakeHop = field(default_factory=FakeHop)
    judge: FakeJudge = field(default_factory=lambda: FakeJudge(scan(SPAM)))
    listener: Listener = field(default_factory=lambda: at(Position.BEFORE_QUEUE))
    client: Client = field(
        default_factory=lambda: Client(
            address="192.0.2.1", helo="client.example", protocol="ESMTP", peer="192.0.2.1"
        )
    )
    entries: list[DeliveryRecord] = field(default_factory=list)
    settled: list[bool] = field(default_factory=list)
    key: Callable[[], bytes] = field(default=lambda: KEY)
    record: Callable[[DeliveryRecord], None] | None = None
    people: UserResolver | None = None

    @property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.place / "quarantine")

    def send(
        self,
        raw: bytes = RAW,
        recipients: Sequence[str] = ("b@example.net",),
        sender: Sender | None = None,
    ) -> Sequence[Reply]:
        return asyncio.run(self.send_async(raw, recipients, sender or Sender("a@example.org")))

    async def send_async(
        self, raw: bytes, recipients: Sequence[str], sender: Sender
    ) -> Sequence[Reply]:
        tools = ProxyContext(
            self.quarantine,
            self.key,
            self.record or self.entries.append,
            lambda: self.settled.append(True),
            self.people,
        )
        judge = PolicyJudge(self.judge.judge, tools, self.listener)
        message = FilterProxy(self.listener, self.hop, judge, "mx.example.net").message(self.client)
        spool = Spool(self.place)
        spool.write(raw)
        try:
            assert await message.mail(sender) == OK
            for one in recipients:
                await message.recipient(Recipient(one))
            return await message.data(spool, frozenset())
        finally:
            await message.end()
            await message.end()
            spool.close()

    @property
    def header(self) -> list[bytes]:
        (content,) = self.hop.contents
        return content.partition(b"\r\n\r\n")[0].split(b"\r\n")


def scan(verdict: Verdict, *, settle: bool = False) -> Scan:
    return Scan(
        verdict, DIGEST, b"features", (Word(1, "offer", 3.25), Word(2, "a\nb", -1.0)), 0.95, settle
    )


def at(position: Position, **policy: object) -> Listener:
    hop = Hop(Endpoint(Protocol.SMTP, "127.0.0.1", 10026))
    return Listener(Endpoint(Protocol.SMTP, "127.0.0.1", 10025), position, hop, **policy)


def before_queue(**policy: object) -> Listener:
    return at(Position.BEFORE_QUEUE, **policy)
