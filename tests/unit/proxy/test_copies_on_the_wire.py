"""Copies over real LMTP sessions that refuse and drop at any step: one attempt each."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spamguard.config.options import Endpoint, Hop, Position, Protocol
from spamguard.delivery.quarantine import Quarantine
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.proxy.transaction import FilterProxy, PolicyJudge, ProxyContext
from spamguard.smtp.envelope import Client, Recipient, Reply, Sender
from spamguard.storage import Spool
from spamguard.users import UserResolver
from tests.support.hops import Act, Answer, Delivered, FakeHop
from tests.support.waiting import PATIENCE
from tests.unit.bayes.support import repeatable
from tests.unit.proxy.transactions import HAM, KEY, RAW, SPAM, FakeJudge, at, scan

PEOPLE = ("anna", "ben", "carl", "dora")
UNSURE = replace(SPAM, label="unsure", probability=0.5, log_odds=0.0)
FOUND = replace(scan(HAM), personal={"anna": SPAM, "carl": UNSURE, "dora": SPAM})
LABELS = {"anna": b"spam", "ben": b"ham", "carl": b"unsure", "dora": b"spam"}
STEPS = ("MAIL", "RCPT", "DATA", "DOT")


class Came(NamedTuple):
    """accepted: recipients, in order; replies: to them; messages: what the next hop has got."""

    accepted: list[str]
    replies: Sequence[Reply]
    messages: list[Delivered]


async def sent(script: dict[str, list[Answer]]) -> Came:
    with tempfile.TemporaryDirectory() as place:
        async with (
            asyncio.timeout(PATIENCE),
            FakeHop(script, lmtp=True).running(Path(place) / "socket") as fake,
        ):
            hop = SmtpNextHop(
                Hop(Endpoint(Protocol.LMTP, path=Path(place) / "socket")), "me.example"
            )
            tools = ProxyContext(
                Quarantine(Path(place) / "held"),
                lambda: KEY,
                lambda entry: None,
                lambda: None,
                UserResolver(()),
            )
            listener = at(Position.STANDALONE)
            judge = PolicyJudge(FakeJudge(FOUND).judge, tools, listener)
            message = FilterProxy(listener, hop, judge, "mx.example.net").message(Client())
            spool = Spool(Path(place))
            spool.write(RAW)
            try:
                accepted, replies = await handed_in(message, spool)
            finally:
                await message.end()
                spool.close()
                await hop.close()
            return Came(accepted, replies, list(fake.messages))


async def handed_in(message, spool: Spool) -> tuple[list[str], Sequence[Reply]]:
    if not (await message.mail(Sender("a@example.org"))).is_positive:
        return [], []
    accepted = [
        user
        for user in PEOPLE
        if (await message.recipient(Recipient(f"{user}@example.net"))).is_positive
    ]
    return accepted, await message.data(spool, frozenset()) if accepted else []


ANSWERS = st.sampled_from(
    (b"451 4.3.0 later\r\n", b"550 5.1.1 no\r\n", b"421 4.3.2 bye\r\n", Act.DROP)
)


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, list[Answer]]:
    """All goes well but for some turns; after these all goes well again."""
    script: dict[str, list[Answer]] = {}
    for step in STEPS:
        fine = b"354 go on\r\n" if step == "DATA" else b"250 2.0.0 fine\r\n"
        wrong = draw(st.dictionaries(st.integers(0, 11), ANSWERS, max_size=2))
        script[step] = [*(wrong.get(turn, fine) for turn in range(12)), fine]
    return script


@pytest.mark.slow
@settings(repeatable, max_examples=100)
@given(scripts())
def test_one_attempt_for_each_copy_and_a_yes_only_for_delivered_recipients(
    script: dict[str, list[Answer]],
) -> None:
    accepted, replies, messages = asyncio.run(sent(script))
    assert len(replies) == len(accepted)
    got = Counter(to.partition("@")[0] for message in messages for to in message.recipients)
    assert max(got.values(), default=0) <= 1, "handed on twice"
    for user, reply in zip(accepted, replies, strict=True):
        assert not reply.is_positive or got[user] == 1, "acknowledged and lost"
    for message in messages:
        assert {LABELS[to.partition("@")[0]] for to in message.recipients} == {
            message.data.partition(b"X-Spamguard: ")[2].partition(b";")[0]
        }
        assert message.data.endswith(RAW.partition(b"\r\n\r\n")[2])
