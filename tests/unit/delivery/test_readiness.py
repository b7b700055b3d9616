"""Next hops that answer, and those that fail, each in its own way."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from spamguard.config.options import Endpoint, Hop, Protocol, parse_endpoint
from spamguard.delivery import smtp
from spamguard.delivery.smtp import create_next_hop
from spamguard.smtp.envelope import Client, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.e2e.ports import free_port


def wrong(*endpoints: str | Endpoint) -> list[str]:
    hops = [
        Hop(parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint)
        for endpoint in endpoints
    ]
    return asyncio.run(smtp.find_unreachable(hops, "mx.example"))


async def _spoken(said: list[bytes]) -> tuple[asyncio.Server, list[bytes]]:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in said:
            writer.write(line)
            heard.append(await reader.readline())
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0), heard


def asked(*said: bytes) -> tuple[list[str], list[bytes]]:
    """The fault that is found with a server that sends these lines, and the lines it received."""

    async def run() -> tuple[list[str], list[bytes]]:
        server, heard = await _spoken(list(said))
        async with server:
            hop = Hop(
                Endpoint(
                    parse_endpoint("smtp://x:1").protocol,
                    "127.0.0.1",
                    server.sockets[0].getsockname()[1],
                )
            )
            return await smtp.find_unreachable([hop, hop], "mx.example"), heard

    return asyncio.run(run())


def test_one_that_welcomes_us_is_asked_once_and_left_politely() -> None:
    found, heard = asked(b"220 x\r\n", b"250 x\r\n", b"221 bye\r\n")
    assert found == []
    assert heard[:2] == [b"EHLO mx.example\r\n", b"QUIT\r\n"]


def test_one_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "HOP_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (line,) = wrong(f"smtp://127.0.0.1:{silent.getsockname()[1]}")
    assert line.startswith("next hop smtp://127.0.0.1:")


def test_maildirs(tmp_path: Path) -> None:
    (tmp_path / "box" / "tmp").mkdir(parents=True)
    assert wrong(f"maildir:{tmp_path}/box", f"maildir:{tmp_path}/not/yet") == []
    (tmp_path / "file").write_text("")
    assert wrong(f"maildir:{tmp_path}/file/box") == [
        f"next hop maildir:{tmp_path}/file/box: {tmp_path}/file may not be written"
    ]


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_maildir_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert wrong(f"maildir:{tmp_path}/box") == [
        f"next hop maildir:{tmp_path}/box: {tmp_path} may not be written"
    ]
    tmp_path.chmod(0o700)


# ---- errors are reported


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
