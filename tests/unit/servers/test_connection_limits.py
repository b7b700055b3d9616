"""Limits on connections, and who is evicted."""

import asyncio

from spamguard.config.options import DoorLimits
from spamguard.smtp.envelope import normalise_address
from tests.unit.servers.support import ScriptedProxy, serving


def test_a_client_with_too_many_connections_evicts_its_own(tmp_path):
    async def main():
        limits = DoorLimits(connections=10, connections_per_client=2)
        async with serving(tmp_path, ScriptedProxy(), limits=limits) as served:
            sources = [(f"127.0.0.{number}", 0) for number in (2, 3, 3, 3)]
            other, *own = [await served.call(local_addr=source) for source in sources]
            greetings = [await caller.code() for caller in (other, *own)]
            return greetings, await own[0].code(), await other.codes(b"NOOP")

    assert asyncio.run(main()) == ([220] * 4, 421, [250])


def test_addresses_are_plain():
    assert normalise_address("::ffff:192.0.2.7") == "192.0.2.7"
    assert normalise_address("fe80::1%eth0") == "fe80::1"
    assert normalise_address("2001:DB8::0:1") == "2001:db8::1"
