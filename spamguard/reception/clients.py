"""What clients may use of a door: counts of connections and of bytes in flight, and who may come at all.

Must never forget to give back: whoever takes from `Load` returns it in a `finally`.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from functools import lru_cache
from threading import Lock

from spamguard.settings import DoorLimits, ScannerLimits


class Crowd(Enum):
    """Why a connection is one too many."""

    OF_ALL = auto()
    OF_ONE = auto()  # that client has too many itself


class Networks:
    """Addresses, told as networks in CIDR notation. A client without an address (a Unix socket) has passed the file's permissions."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def __contains__(self, address: str) -> bool:
        if not address:
            return True
        parsed = _parsed(address)
        return any(parsed in network for network in self._networks)


@lru_cache(maxsize=1024)
def plain_address(address: str) -> str:
    """An address as it is compared and counted: no zone, and IPv4 where it came in through an IPv6 socket."""
    parsed = _parsed(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


@lru_cache(maxsize=1024)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The same clients come again and again, and this took a tenth of what a connection costs."""
    return ipaddress.ip_address(address)


@lru_cache(maxsize=1024)
def neighbourhood(address: str) -> str:
    """What one client can choose its address from: of IPv6 a /64, which everybody has, else the address alone."""
    return str(ipaddress.IPv6Network((address, 64), strict=False)) if ":" in address else address


def sharer(address: str, *, trusted: bool) -> str:
    """Who has a share of the bytes in flight; "": one that speaks for many, and may have all of them."""
    return "" if trusted else neighbourhood(address)


class Load:
    """What all connections of one door use together, in this process. Bytes may be taken and given back by any thread."""

    def __init__(self, limits: DoorLimits | ScannerLimits) -> None:
        self._limits = limits
        self._clients: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()  # in flight, of each who has a share of them only
        self.connections = 0
        self.bytes_in_flight = 0
        self._counting = Lock()

    def enter(self, address: str) -> Crowd | None:
        """Count a connection in; why it has to go again, if it has (it is counted all the same until it `leave`s)."""
        client = neighbourhood(address)
        full = self.connections >= self._limits.connections
        full_for_one = self._clients[client] >= self._limits.connections_per_client
        self.connections += 1
        self._clients[client] += 1
        return Crowd.OF_ALL if full else Crowd.OF_ONE if full_for_one else None

    def leave(self, address: str) -> None:
        """Count it out."""
        client = neighbourhood(address)
        self.connections -= 1
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    def room_for(self, size: int, client: str = "") -> bool:
        """Whether so many bytes more may be in flight. client: as `sharer` tells; one may have half of them, or one message."""
        share = max(self._limits.bytes_in_flight // 2, self._limits.message_bytes)
        has_room = not client or self._bytes[client] + size <= share
        return has_room and self.bytes_in_flight + size <= self._limits.bytes_in_flight

    def take(self, size: int, client: str = "") -> bool:
        """Have so many bytes more in flight, if there is room for them."""
        with self._counting:
            found = self.room_for(size, client)
            self._count(size * found, client)
        return found

    def give_back(self, size: int, client: str = "") -> None:
        """They are not in flight any more."""
        with self._counting:
            self._count(-size, client)

    def _count(self, size: int, client: str) -> None:
        self.bytes_in_flight += size
        if client:
            self._bytes[client] += size
            if not self._bytes[client]:
                del self._bytes[client]
