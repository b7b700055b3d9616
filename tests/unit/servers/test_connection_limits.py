"""Limits on connections and bytes, and who is evicted."""

import time
from dataclasses import dataclass

import pytest

from spamguard.config.options import DoorLimits
from spamguard.servers.listener import (
    ByteQuota,
    ConnectionLimits,
    LimitExceeded,
)
from spamguard.smtp.envelope import (
    Networks,
    client_prefix,
    normalise_address,
)


def test_networks():
    networks = Networks(("127.0.0.0/8", "2001:db8::/32", "192.0.2.7"))
    inside = ("127.0.0.1", "127.255.0.1", "2001:db8:1::1", "192.0.2.7", "")
    outside = ("126.255.255.255", "::1", "192.0.2.8")
    assert all(address in networks for address in inside)
    assert not any(address in networks for address in outside)
    with pytest.raises(ValueError, match="nonsense"):
        Networks(("nonsense",))


def test_addresses_are_plain():
    assert normalise_address("::ffff:192.0.2.7") == "192.0.2.7"
    assert normalise_address("fe80::1%eth0") == "fe80::1"
    assert normalise_address("2001:DB8::0:1") == "2001:db8::1"


def test_everybody_has_a_64_of_addresses():
    assert client_prefix("2001:db8:1:2:3::4") == client_prefix("2001:db8:1:2::9")
    assert client_prefix("2001:db8:1:2::") != client_prefix("2001:db8:1:3::")
    assert client_prefix("fe80::1%eth0") == client_prefix("fe80::2")  # a page is told of the zone
    assert client_prefix("192.0.2.1") != client_prefix("192.0.2.2")
    assert client_prefix("") == ""


@dataclass(eq=False)
class Connection:
    evictable_from: float | None = None


def test_connections_are_counted_in_and_out():
    limits = ConnectionLimits(3, 2, pytest.fail)
    served = [Connection() for _ in range(3)]
    assert [limits.enter(one, address) for one, address in zip(served, "aab", strict=True)] == [
        None
    ] * 3
    assert [limits.enter(Connection(), address) for address in "abc"] == [
        LimitExceeded.TOO_MANY,
        LimitExceeded.TOO_MANY,
        LimitExceeded.TOO_MANY,
    ]
    limits.leave(Connection())  # was refused
    for one in served:
        limits.leave(one)
    assert limits._clients == {}
    assert limits.enter(Connection(), "a") is None


def test_an_ipv6_client_cannot_walk_through_its_network():
    limits = ConnectionLimits(500, 2, pytest.fail)
    served = [Connection() for _ in range(3)]
    assert [limits.enter(one, f"2001:db8:0:1::{number}") for number, one in enumerate(served)] == [
        None,
        None,
        LimitExceeded.TOO_MANY,
    ]
    assert limits.enter(Connection(), "2001:db8:0:2::1") is None
    limits.leave(served[0])
    assert limits.enter(Connection(), "2001:db8:0:1::4") is None


def test_the_longest_idle_connection_makes_room_and_none_in_a_transaction():
    evicted = []
    limits = ConnectionLimits(4, 4, evicted.append)
    first, second, third, busy = connections = [
        Connection(2.0),
        Connection(1.0),
        Connection(3.0),
        Connection(None),
    ]
    for address, connection in zip("abca", connections, strict=True):
        assert limits.enter(connection, address) is None
    assert [limits.enter(Connection(), address) for address in "defg"] == [
        None,
        None,
        None,
        LimitExceeded.TOO_MANY,
    ]
    assert evicted == [second, first, third]
    for connection in evicted:
        limits.leave(connection)  # as each does once it has closed: it must not count twice
    busy.evictable_from = 9.0
    assert limits.enter(Connection(), "g") is None
    assert evicted[3:] == [busy]


def test_nobody_is_evicted_before_its_time():
    limits = ConnectionLimits(1, 1, pytest.fail)
    assert limits.enter(Connection(time.monotonic() + 60), "a") is None
    assert [limits.enter(Connection(), address) for address in "ab"] == [
        LimitExceeded.TOO_MANY,
        LimitExceeded.TOO_MANY,
    ]


def test_a_client_with_too_many_connections_evicts_its_own():
    evicted = []
    limits = ConnectionLimits(10, 2, evicted.append)
    others, own, busy = Connection(1.0), Connection(2.0), Connection(None)
    for address, connection in zip("baa", (others, own, busy), strict=True):
        assert limits.enter(connection, address) is None
    assert [limits.enter(Connection(), "a") for _ in range(2)] == [None, LimitExceeded.TOO_MANY]
    assert evicted == [own]


def test_one_client_may_have_half_of_the_bytes_and_a_trusted_one_all():
    load = ByteQuota(DoorLimits(size_in_flight=100, message_size=10))
    assert [load.take(size, "a") for size in (30, 20, 1)] == [True, True, False]
    assert (load.has_room(1, "a"), load.has_room(50, "b"), load.has_room(50)) == (False, True, True)
    assert (load.take(50), load.take(1, "b")) == (True, False)
    load.release(30, "a")
    assert (load.take(30, "a"), load.take(1, "a")) == (True, False)
    for size, client in ((20, "a"), (30, "a"), (50, "")):
        load.release(size, client)
    assert (load.bytes_in_flight, load._client_bytes) == (0, {})


def test_one_message_always_has_its_place():
    load = ByteQuota(DoorLimits(size_in_flight=100, message_size=80))
    assert (load.take(80, "a"), load.take(1, "a"), load.take(20, "b")) == (True, False, True)
