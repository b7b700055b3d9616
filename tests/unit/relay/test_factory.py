"""Every form of next hop gets its own way out."""

from __future__ import annotations

import asyncio

import pytest

from spamguard.relay.client import StreamHop
from spamguard.relay.factory import next_hop
from spamguard.relay.maildir import MaildirHop
from spamguard.settings import Hop, parse_endpoint


@pytest.mark.parametrize(
    ("text", "kind", "each"),
    [
        ("smtp://127.0.0.1:25", StreamHop, False),
        ("lmtp://127.0.0.1:24", StreamHop, True),
        ("lmtp:/run/lmtp", StreamHop, True),
        ("maildir:/tmp/none", MaildirHop, True),
    ],
)
def test_the_way_out_of_an_endpoint(text: str, kind: type, each: bool) -> None:
    async def made() -> None:
        hop = next_hop(Hop(parse_endpoint(text)), "mx.example.org")
        assert isinstance(hop, kind)
        assert hop.answers_each is each
        await hop.close()

    asyncio.run(made())
