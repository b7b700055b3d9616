"""A probe of a next hop before the first message."""

from __future__ import annotations

import asyncio

import pytest

from spamguard.delivery import smtp
from spamguard.delivery.smtp import SmtpNextHop
from tests.support.hops import Act, FakeHop
from tests.support.waiting import PATIENCE, until
from tests.unit.delivery.talks import codes, hand_on, hop_to, talk

OFFERED = {"PIPELINING": "", "SIZE": "1000000", "8BITMIME": "", "DSN": "", "SMTPUTF8": ""}


def test_nothing_is_known_before() -> None:
    async def run(hop: SmtpNextHop) -> None:
        assert hop.extensions is None
        await hop.probe()
        assert hop.extensions == OFFERED

    talk(FakeHop({}), run)


def test_simultaneous_probes_share_one_session_which_serves_a_message() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> None:
        await asyncio.gather(*[hop.probe() for _ in range(50)])
        await hop.probe()
        assert codes(await hand_on(hop)) == [250, 250, 250]

    talk(fake, run)
    assert len(fake.sessions) == 1


def test_a_message_is_a_look_too() -> None:
    fake = FakeHop({"DOT": b"450 later\r\n"})

    async def run(hop: SmtpNextHop) -> None:
        await hand_on(hop)
        assert hop.extensions == OFFERED
        await hop.probe()

    talk(fake, run)
    assert len(fake.sessions) == 1


def test_after_a_time_it_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "_PROBE_SECONDS", 0.05)
    fake = FakeHop({"EHLO": [b"250-hop\r\n250 DSN\r\n", b"250 hop\r\n"]})

    async def run(hop: SmtpNextHop) -> None:
        await hop.probe()
        assert hop.extensions == {"DSN": ""}
        await asyncio.sleep(0.1)
        await hop.probe()
        assert hop.extensions == {}

    talk(fake, run)


@pytest.mark.parametrize("answer", [b"554 no\r\n", Act.DROP, Act.STALL, b"\0\0\r\n"])
def test_a_hop_that_is_down_stays_unknown_and_is_not_asked_by_everybody(
    answer: bytes | Act,
) -> None:
    fake = FakeHop({"GREETING": answer})

    async def run(hop: SmtpNextHop) -> None:
        await asyncio.gather(*[hop.probe() for _ in range(20)])
        await hop.probe()
        assert hop.extensions is None

    talk(fake, run, command=0.2)
    assert len(fake.sessions) == 1


def test_a_cancelled_probe_does_not_affect_the_others() -> None:
    fake = FakeHop({})

    async def run(hop: SmtpNextHop) -> None:
        impatient = asyncio.create_task(hop.probe())
        patient = asyncio.create_task(hop.probe())
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert hop.extensions == OFFERED

    talk(fake, run)


def test_closing_waits_for_a_look() -> None:
    async def run() -> None:
        async with FakeHop({}).running() as fake:
            hop = hop_to(fake)
            asking = asyncio.create_task(hop.probe())
            await asyncio.sleep(0)
            await hop.close()
            await asking
            assert fake.commands == ["EHLO me.example", "QUIT"]

    asyncio.run(run())


def test_closing_does_not_wait_for_a_hop_that_keeps_silent() -> None:
    """The daemon is stopping then: after some seconds its master kills the worker, and what it had
    still to write is lost.
    """

    async def run() -> None:
        async with FakeHop({"GREETING": Act.STALL}).running() as fake:
            hop = hop_to(fake, command=3600)
            asking = asyncio.create_task(hop.probe())
            await until(lambda: fake.sessions)
            await asyncio.wait_for(hop.close(), PATIENCE)
            await asyncio.wait([asking])

    asyncio.run(run())
