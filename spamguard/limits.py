"""What clients may use of a door: who may connect, how many connections, how many bytes in flight.

Silent clients must not keep others out: when there is no room, the connection that has been idle
for longest is evicted. Only a transaction protects a connection, so nobody stays by sending
commands that lead nowhere.

It is written by hand because semaphores make a new client wait, and cannot evict an idle one.

Must never evict a connection in a transaction. Must never lose room: whoever takes bytes of
`ByteQuota` gives them back in a `finally`.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import lru_cache
from operator import itemgetter
from threading import Lock
from typing import Generic, Protocol, TypeVar

from spamguard.config.options import DoorLimits, ScannerLimits

# ---- connections


class LimitExceeded(Enum):
    """Why a connection is refused."""

    TOTAL = auto()  # there are too many
    PER_CLIENT = auto()  # this client has too many
    NOT_LISTED = auto()  # this address may not connect


class Evictable(Protocol):
    """A connection that can be evicted."""

    @property
    def idle_since(self) -> float | None:
        """When the last transaction ended, by the event loop's clock; None: one is under way."""


ConnectionT = TypeVar("ConnectionT", bound=Evictable)


class ConnectionLimits(Generic[ConnectionT]):
    """Decides which connections are served: so many in all, and so many of one client.

    When there is no room, a new connection takes the place of the longest idle one: among its own
    client's if that client has too many, else among all.

    Parameters
    ----------
    evict
        Closes a connection, which no longer counts although closing may take a moment.
    """

    def __init__(
        self, connections: int, per_client: int, evict: Callable[[ConnectionT], object]
    ) -> None:
        self._max_connections = connections
        self._max_per_client = per_client
        self._evict = evict
        self._clients: dict[ConnectionT, str] = {}
        self._client_counts: Counter[str] = Counter()

    def enter(self, connection: ConnectionT, address: str) -> LimitExceeded | None:
        """Count a connection in, or say why it is refused."""
        client = client_prefix(address)
        if self._client_counts[client] >= self._max_per_client:
            rivals = [other for other, owner in self._clients.items() if owner == client]
            if not self._evict_longest_idle(rivals):
                return LimitExceeded.PER_CLIENT
        elif len(self._clients) >= self._max_connections and not self._evict_longest_idle(
            self._clients
        ):
            return LimitExceeded.TOTAL
        self._clients[connection] = client
        self._client_counts[client] += 1
        return None

    def leave(self, connection: ConnectionT) -> None:
        """Count it out, if it was counted in and has not been evicted."""
        client = self._clients.pop(connection, None)
        if client is None:
            return
        self._client_counts[client] -= 1
        if not self._client_counts[client]:
            del self._client_counts[client]

    def _evict_longest_idle(self, rivals: Iterable[ConnectionT]) -> bool:
        """Evict the longest idle connection; False if all are in a transaction."""
        idle = [(since, other) for other in rivals if (since := other.idle_since) is not None]
        if not idle:
            return False
        longest = min(idle, key=itemgetter(0))[1]
        self.leave(longest)
        self._evict(longest)
        return True


# ---- addresses


class Networks:
    """Addresses, given as networks in CIDR notation.

    A client without an address, on a Unix socket, is always in: it has passed the permissions of
    the file.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def __contains__(self, address: str) -> bool:
        if not address:
            return True
        parsed = _parse_address(address)
        return any(parsed in network for network in self._networks)


@lru_cache(maxsize=1024)
def normalise_address(address: str) -> str:
    """An address without its zone, and IPv4 where it came through an IPv6 socket.

    >>> normalise_address("::ffff:192.0.2.1")
    '192.0.2.1'
    """
    parsed = _parse_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


@lru_cache(maxsize=1024)  # the same clients come again; this was a tenth of a connection's cost
def _parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(address)


@lru_cache(maxsize=1024)
def client_prefix(address: str) -> str:
    """The network from which one client can choose its address: a /64 of IPv6, else the address.

    >>> client_prefix("2001:db8::7"), client_prefix("192.0.2.1")
    ('2001:db8::/64', '192.0.2.1')
    """
    return str(ipaddress.IPv6Network((address, 64), strict=False)) if ":" in address else address


# ---- bytes in flight


def quota_key(address: str, *, trusted: bool) -> str:
    """The client of a `ByteQuota`; "" for one that speaks for many and may take all of it."""
    return "" if trusted else client_prefix(address)


class ByteQuota:
    """Bytes in flight of all connections of one door, in this process. Safe for threads."""

    def __init__(self, limits: DoorLimits | ScannerLimits) -> None:
        self._limits = limits
        self._client_bytes: Counter[str] = Counter()  # without the client ""
        self.bytes_in_flight = 0
        self._lock = Lock()

    def has_room(self, size: int, client: str = "") -> bool:
        """Whether there is room for so many bytes; a client may have half of all, or one message.

        client: as by `quota_key`.
        """
        share = max(self._limits.size_in_flight // 2, self._limits.message_size)
        has_share = not client or self._client_bytes[client] + size <= share
        return has_share and self.bytes_in_flight + size <= self._limits.size_in_flight

    def take(self, size: int, client: str = "") -> bool:
        """Take room for so many bytes, if there is any."""
        with self._lock:
            has_room = self.has_room(size, client)
            self._add(size * has_room, client)
        return has_room

    def release(self, size: int, client: str = "") -> None:
        """Give the room back."""
        with self._lock:
            self._add(-size, client)

    def _add(self, size: int, client: str) -> None:
        self.bytes_in_flight += size
        if client:
            self._client_bytes[client] += size
            if not self._client_bytes[client]:
                del self._client_bytes[client]
