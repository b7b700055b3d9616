"""What every way out has to do, whatever it speaks. Another way joins in by one more line in
`WAYS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.config.options import Endpoint, Hop, Protocol
from spamguard.delivery.maildir import MaildirNextHop
from spamguard.delivery.next_hop import NextHop
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Client, EsmtpParameter, Recipient, Reply, Sender
from spamguard.storage import Spool, SpoolView
from tests.support.hops import FakeHop
from tests.support.waiting import PATIENCE

Result = TypeVar("Result")


class Copy(NamedTuple):
    """What one recipient has got; data with CRLF line ends, without anything that the way puts on
    top of it.
    """

    sender: str
    recipient: str
    data: bytes


@dataclass(frozen=True)
class Open:
    """A way that works. copies: what has been delivered so far, in order."""

    hop: NextHop
    copies: Callable[[], list[Copy]]


@dataclass(frozen=True)
class Way:
    """open: a working way, in an empty directory. blocked: a way that can deliver nothing."""

    open: Callable[[Path], contextlib.AbstractAsyncContextManager[Open]]
    blocked: Callable[[Path], NextHop]


def stream_hop(endpoint: Endpoint) -> NextHop:
    return SmtpNextHop(Hop(endpoint, connect=3600, command=3600, data=3600), "me.example")


def stream(lmtp: bool, at_socket: bool) -> Way:
    """A server that takes everything."""

    @contextlib.asynccontextmanager
    async def running(directory: Path) -> AsyncIterator[Open]:
        async with FakeHop({}, lmtp=lmtp).running(
            directory / "socket" if at_socket else None
        ) as fake:
            hop = stream_hop(fake.endpoint)
            yield Open(
                hop,
                lambda: [
                    Copy(one.sender, to, one.data) for one in fake.messages for to in one.recipients
                ],
            )
            await hop.close()

    def blocked(directory: Path) -> NextHop:
        protocol = Protocol.LMTP if lmtp else Protocol.SMTP
        return stream_hop(
            Endpoint(protocol, path=directory / "nobody")
            if at_socket
            else Endpoint(protocol, "127.0.0.1", 1)
        )

    return Way(running, blocked)


@contextlib.asynccontextmanager
async def into_maildir(directory: Path) -> AsyncIterator[Open]:
    """The newest file names have the highest numbers."""

    def copies() -> list[Copy]:
        files = (directory / "Maildir" / "new").glob("*")
        ordered = sorted(
            files,
            key=lambda path: [
                int(number) for number in re.findall(r"[.MPQ](\d+)", f".{path.name}")
            ],
        )
        parted = [path.read_bytes().replace(b"\n", b"\r\n").split(b"\r\n", 2) for path in ordered]
        return [
            Copy(_argument(sender), _argument(b"<" + to.partition(b" ")[2] + b">"), data)
            for sender, to, data in parted
        ]

    hop = MaildirNextHop(directory / "Maildir", "me.example")
    yield Open(hop, copies)
    await hop.close()


def _argument(field: bytes) -> str:
    return field.partition(b"<")[2].removesuffix(b">").decode()


def blocked_maildir(directory: Path) -> NextHop:
    (directory / "file").touch()
    return MaildirNextHop(directory / "file" / "Maildir", "me.example")


WAYS = {
    "smtp": stream(lmtp=False, at_socket=False),
    "lmtp": stream(lmtp=True, at_socket=False),
    "lmtp-socket": stream(lmtp=True, at_socket=True),
    "maildir": Way(into_maildir, blocked_maildir),
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


def run(way: Way, what: Callable[[Open], Awaitable[Result]]) -> Result:
    """Do this with a working way."""

    async def everything() -> Result:
        with tempfile.TemporaryDirectory() as directory:
            async with asyncio.timeout(PATIENCE), way.open(Path(directory)) as opened:
                return await what(opened)

    return asyncio.run(everything())


@contextlib.contextmanager
def content(
    body: bytes, head: bytes = b"X-Spam-Flag: NO\r\n", kind: type[Spool] = Spool
) -> Iterator[SpoolView]:
    spool = kind(Path(tempfile.gettempdir()))
    try:
        spool.write(body)
        yield SpoolView(head, spool, 0)
    finally:
        spool.close()


async def hand_on(
    hop: NextHop, message: SpoolView, recipients: Sequence[str], sender: Sender | None = None
) -> Sequence[Reply]:
    """One message to recipients that are all accepted; the replies to its data."""
    transaction = hop.transaction(Client("192.0.2.1", peer="127.0.0.1"))
    try:
        assert (await transaction.mail(sender or Sender("from@s.example"))).code == 250
        for recipient in recipients:
            assert (await transaction.recipient(Recipient(recipient))).is_positive
        return await transaction.send(message)
    finally:
        await transaction.end()
        await transaction.end()


BODY = b"Subject: x\r\n\r\n.\r\n..\r\n\xff\x80 8 bits\r\n"


def test_every_recipient_gets_it_and_there_are_as_many_replies_as_promised(way: Way) -> None:
    three = ["a@r.example", "b@r.example", "a@r.example"]

    async def one(opened: Open) -> None:
        with content(BODY, b"X-Spam-Flag: NO\r\n") as message:
            replies = await hand_on(opened.hop, message, three)
        assert [reply.code for reply in replies] == [250] * (3 if opened.hop.answers_each else 1)
        assert opened.copies() == [
            Copy("from@s.example", to, b"X-Spam-Flag: NO\r\n" + BODY) for to in three
        ]

    run(way, one)


texts = st.lists(
    st.binary(max_size=99).map(lambda line: line.translate(None, b"\r\n\0")), max_size=40
)


@pytest.mark.parametrize("name", WAYS)
@given(st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_every_byte_arrives(name: str, drawn: list[list[bytes]]) -> None:
    bodies = [
        b"".join([b"Subject: x\r\n\r\n", *[line + b"\r\n" for line in lines]]) for lines in drawn
    ]

    async def all_of_them(opened: Open) -> None:
        for body in bodies:
            with content(body, b"") as message:
                assert (await hand_on(opened.hop, message, ["to@r.example"]))[0].code == 250
        assert [copy.data for copy in opened.copies()] == bodies

    run(WAYS[name], all_of_them)


def test_a_message_that_does_not_fit_into_memory(way: Way) -> None:
    body = b"Subject: x\r\n\r\n" + b".234567890123456789012345678901234567890\r\n" * 100_000

    async def one(opened: Open) -> None:
        with content(body, b"") as message:
            await hand_on(opened.hop, message, ["to@r.example"])
        assert [copy.data for copy in opened.copies()] == [body]

    run(way, one)


def test_many_at_once(way: Way) -> None:
    async def all_of_them(opened: Open) -> None:
        async def one(number: int) -> None:
            with content(b"Subject: x\r\n\r\n%d\r\n" % number, b"") as message:
                assert (await hand_on(opened.hop, message, [f"{number}@r.example"]))[0].code == 250

        await asyncio.gather(*[one(number) for number in range(30)])
        assert sorted(opened.copies()) == sorted(
            Copy("from@s.example", f"{number}@r.example", b"Subject: x\r\n\r\n%d\r\n" % number)
            for number in range(30)
        )

    run(way, all_of_them)


def test_the_null_sender_and_an_internationalised_one(way: Way) -> None:
    async def both(opened: Open) -> None:
        with content(BODY) as message:
            await hand_on(opened.hop, message, ["to@r.example"], Sender(""))
            await hand_on(
                opened.hop,
                message,
                ["tö@r.example"],
                Sender("frøm@s.example", (EsmtpParameter("SMTPUTF8", None),)),
            )
        assert [(copy.sender, copy.recipient) for copy in opened.copies()] == [
            ("", "to@r.example"),
            ("frøm@s.example", "tö@r.example"),
        ]

    run(way, both)


def test_nothing_is_delivered_before_send_and_nothing_without(way: Way) -> None:
    async def none(opened: Open) -> None:
        transaction = opened.hop.transaction(Client())
        await transaction.end()
        transaction = opened.hop.transaction(Client())
        await transaction.mail(Sender("from@s.example"))
        await transaction.recipient(Recipient("to@r.example"))
        assert opened.copies() == []
        await transaction.end()
        assert opened.copies() == []

    run(way, none)


class Failing(Spool):
    """A disk that breaks in the middle of the message."""

    def chunks(self, start: int = 0) -> Iterator[bytes]:
        """The beginning."""
        yield b"Subject: x\r\n\r\n" + b"0123456789\r\n" * 100_000
        raise OSError(5, "Input/output error")


def test_unreadable_content_is_not_delivered_and_the_hop_stays_usable(way: Way) -> None:
    async def one_and_another(opened: Open) -> None:
        with content(b"", kind=Failing) as message:
            replies = await hand_on(opened.hop, message, ["a@r.example", "b@r.example"])
        assert [400 <= reply.code < 500 for reply in replies] == [True] * (
            2 if opened.hop.answers_each else 1
        )
        assert opened.copies() == []
        with content(BODY) as message:
            await hand_on(opened.hop, message, ["to@r.example"])
        assert len(opened.copies()) == 1

    run(way, one_and_another)


def test_a_look_at_what_it_offers(way: Way) -> None:
    async def look(opened: Open) -> None:
        await asyncio.gather(*[opened.hop.probe() for _ in range(10)])
        assert opened.hop.extensions is not None
        assert {"8BITMIME", "SMTPUTF8"} <= set(opened.hop.extensions)
        assert opened.copies() == []

    run(way, look)


def test_what_runs_when_it_is_closed_is_finished(way: Way) -> None:
    async def one(opened: Open) -> None:
        transaction = opened.hop.transaction(Client())
        await transaction.mail(Sender("from@s.example"))
        await transaction.recipient(Recipient("to@r.example"))
        await opened.hop.close()
        with content(BODY) as message:
            assert [reply.code for reply in await transaction.send(message)] == [250]
        await transaction.end()
        assert len(opened.copies()) == 1

    run(way, one)


def test_a_way_that_is_blocked_is_a_temporary_failure(way: Way, tmp_path: Path) -> None:
    async def one() -> Reply:
        hop = way.blocked(tmp_path)
        await hop.probe()
        transaction = hop.transaction(Client())
        try:
            reply = await transaction.mail(Sender("from@s.example"))
            if reply.is_positive:
                reply = await transaction.recipient(Recipient("to@r.example"))
            if reply.is_positive:
                with content(BODY) as message:
                    (reply,) = await transaction.send(message)
            return reply
        finally:
            await transaction.end()
            await hop.close()

    assert 400 <= asyncio.run(one()).code < 500
