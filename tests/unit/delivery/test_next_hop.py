"""Each kind of next hop, and the callback that counts its errors but not its refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

from spamguard.config.options import Endpoint, Hop, Protocol
from spamguard.delivery.smtp import create_next_hop
from spamguard.smtp.envelope import Client, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.e2e.ports import free_port


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
