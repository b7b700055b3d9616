"""Limits on connections and bytes, and who is evicted."""

from dataclasses import dataclass

from spamguard.servers.listener import ConnectionLimits, Refusal
from spamguard.smtp.envelope import normalise_address


@dataclass(eq=False)
class Connection:
    evictable_from: float | None = None


def test_a_client_with_too_many_connections_evicts_its_own():
    evicted = []
    limits = ConnectionLimits(10, 2, evicted.append)
    others, own, busy = Connection(1.0), Connection(2.0), Connection(None)
    for address, connection in zip("baa", (others, own, busy), strict=True):
        assert limits.enter(connection, address) is None
    assert [limits.enter(Connection(), "a") for _ in range(2)] == [None, Refusal.TOO_MANY]
    assert evicted == [own]


def test_addresses_are_plain():
    assert normalise_address("::ffff:192.0.2.7") == "192.0.2.7"
    assert normalise_address("fe80::1%eth0") == "fe80::1"
    assert normalise_address("2001:DB8::0:1") == "2001:db8::1"
