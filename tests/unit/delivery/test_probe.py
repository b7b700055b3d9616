"""A probe of a next hop before the first message."""

from __future__ import annotations

from spamguard.delivery.smtp import SmtpNextHop
from tests.support.hops import FakeHop
from tests.unit.delivery.talks import talk

OFFERED = {"PIPELINING": "", "SIZE": "1000000", "8BITMIME": "", "DSN": "", "SMTPUTF8": ""}


def test_nothing_is_known_before() -> None:
    async def run(hop: SmtpNextHop) -> None:
        assert hop.extensions is None
        await hop.probe()
        assert hop.extensions == OFFERED

    talk(FakeHop({}), run)
