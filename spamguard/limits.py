"""What clients may use of a door: counts of connections and of bytes in flight, and who may come at
all.

Silent clients must not keep others out: when there is no room, the connection that has been idle
for longest makes room. Only a transaction protects a connection, so nobody stays by sending
commands that lead nowhere.

Must never evict a connection in a transaction. Must never forget to give back: whoever takes from
`Load` returns it in a `finally`.
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


class LimitExceeded(Enum):
    """Why a connection is refused."""

    TOTAL = auto()  # there are too many
    PER_CLIENT = auto()  # that client has too many itself
    NOT_LISTED = auto()  # this address may not connect


class Evictable(Protocol):
    """A connection that can be evicted."""

    @property
    def idle_since(self) -> float | None:
        """Since when no transaction is under way, a time of the event loop's clock; None while one
        is.
        """


ConnectionT = TypeVar("ConnectionT", bound=Evictable)


class ConnectionLimits(Generic[ConnectionT]):
    """Decides who is served: at most so many connections in all, and of one client.

    A connection that comes when there is no room takes the place of the longest idle one: among its
    own client's if that client has too many, else among all. evict: called to close that one; it no
    longer counts, though closing may take a moment.
    """

    def __init__(
        self, connections: int, per_client: int, evict: Callable[[ConnectionT], object]
    ) -> None:
        self._max_connections = connections
        self._max_per_client = per_client
        self._evict = evict
        self._clients: dict[ConnectionT, str] = {}  # with the client
        self._client_counts: Counter[str] = Counter()

    def enter(self, connection: ConnectionT, address: str) -> LimitExceeded | None:
        """Count a connection in; why it is refused, if there is no room and nobody can be evicted."""
        client = client_prefix(address)
        if self._client_counts[client] >= self._max_per_client:
            rivals = [other for other, whose in self._clients.items() if whose == client]
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
        """Evict the longest idle of these; False if all are in a transaction."""
        idle = [(since, other) for other in rivals if (since := other.idle_since) is not None]
        if not idle:
            return False
        longest = min(idle, key=itemgetter(0))[1]
        self.leave(longest)
        self._evict(longest)
        return True


class Networks:
    """Addresses, told as networks in CIDR notation. A client without an address (a Unix socket) has
    passed the file's permissions.
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
    """An address as it is compared and counted: no zone, and IPv4 where it came in through an IPv6
    socket.
    """
    parsed = _parse_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


@lru_cache(maxsize=1024)
def _parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The same clients come again and again, and this took a tenth of what a connection costs."""
    return ipaddress.ip_address(address)


@lru_cache(maxsize=1024)
def client_prefix(address: str) -> str:
    """What one client can choose its address from: of IPv6 a /64, which everybody has, else the
    address alone.
    """
    return str(ipaddress.IPv6Network((address, 64), strict=False)) if ":" in address else address


def quota_key(address: str, *, trusted: bool) -> str:
    """Who has a share of the bytes in flight; "": one that speaks for many, and may have all of
    them.
    """
    return "" if trusted else client_prefix(address)


class ByteQuota:
    """Bytes in flight of all connections of one door, in this process. Any thread may take them and
    give them back.
    """

    def __init__(self, limits: DoorLimits | ScannerLimits) -> None:
        self._limits = limits
        self._client_bytes: Counter[str] = (
            Counter()
        )  # in flight, of each who has a share of them only
        self.bytes_in_flight = 0
        self._lock = Lock()

    def has_room(self, size: int, client: str = "") -> bool:
        """Whether so many bytes more may be in flight. client: as `sharer` tells; one may have half
        of them, or one message.
        """
        share = max(self._limits.size_in_flight // 2, self._limits.message_size)
        has_room = not client or self._client_bytes[client] + size <= share
        return has_room and self.bytes_in_flight + size <= self._limits.size_in_flight

    def take(self, size: int, client: str = "") -> bool:
        """Have so many bytes more in flight, if there is room for them."""
        with self._lock:
            found = self.has_room(size, client)
            self._add(size * found, client)
        return found

    def release(self, size: int, client: str = "") -> None:
        """They are not in flight any more."""
        with self._lock:
            self._add(-size, client)

    def _add(self, size: int, client: str) -> None:
        self.bytes_in_flight += size
        if client:
            self._client_bytes[client] += size
            if not self._client_bytes[client]:
                del self._client_bytes[client]
