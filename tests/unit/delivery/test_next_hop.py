"""Each kind of next hop, and the callback that counts its errors but not its refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Hop, Protocol, parse_endpoint
from spamguard.delivery.next_hop import MaildirNextHop
from spamguard.delivery.smtp import SmtpNextHop, create_next_hop
from spamguard.smtp.envelope import Client, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.e2e.ports import free_port


@pytest.mark.parametrize(
    ("text", "kind", "each"),
    [
        ("smtp://127.0.0.1:25", SmtpNextHop, False),
        ("lmtp://127.0.0.1:24", SmtpNextHop, True),
        ("lmtp:/run/lmtp", SmtpNextHop, True),
        ("maildir:/tmp/none", MaildirNextHop, True),
    ],
)
def test_the_next_hop_of_an_endpoint(text: str, kind: type, each: bool) -> None:
    async def made() -> None:
        hop = create_next_hop(Hop(parse_endpoint(text)), "mx.example.org")
        assert isinstance(hop, kind)
        assert hop.answers_each is each
        await hop.close()

    asyncio.run(made())


def sent(hop: Hop, directory: Path, *, probe: bool = False) -> tuple[list[str], list[int]]:
    """The errors that were reported, and the codes of all replies."""
    told: list[str] = []

    async def run() -> list[int]:
        way = create_next_hop(
            hop, "me.example", lambda trouble: told.append(type(trouble).__name__)
        )
        if probe:
            await way.probe()
        transaction = way.transaction(Client("192.0.2.1"))
        codes = [
            (await transaction.mail(Sender("a@example.org"))).code,
            (await transaction.recipient(Recipient("b@example.org"))).code,
        ]
        if codes == [250, 250]:
            spool = Spool(directory)
            spool.write(b"Subject: x\r\n\r\nx\r\n")
            codes += [reply.code for reply in await transaction.send(SpoolView(b"", spool, 0))]
            spool.close()
        await transaction.end()
        await way.close()
        return codes

    codes = asyncio.run(run())
    return told, codes


def nobody() -> Endpoint:
    return Endpoint(Protocol.SMTP, "127.0.0.1", free_port())


def test_one_that_is_not_there(tmp_path: Path) -> None:
    assert sent(Hop(nobody()), tmp_path) == (["UnreachableError"], [451, 451])
    assert sent(Hop(nobody()), tmp_path, probe=True)[0] == ["UnreachableError", "UnreachableError"]


def test_a_maildir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told, codes = sent(Hop(Endpoint(Protocol.MAILDIR, path=tmp_path / "file" / "box")), tmp_path)
    assert (told, codes) == (["NotADirectoryError"], [250, 250, 451])


def test_a_delivery_and_a_refusal_are_no_trouble(tmp_path: Path) -> None:
    assert sent(Hop(Endpoint(Protocol.MAILDIR, path=tmp_path / "box")), tmp_path) == (
        [],
        [250, 250, 250],
    )

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 x\r\n")
        while line := await reader.readline():
            writer.write(b"550 no\r\n" if line.startswith(b"MAIL") else b"250 x\r\n")
        writer.close()

    async def run() -> tuple[list[str], list[int]]:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(
                sent, Hop(Endpoint(Protocol.SMTP, "127.0.0.1", port)), tmp_path
            )

    told, codes = asyncio.run(run())
    assert (told, codes[0]) == ([], 550)
