"""What clients may use of a door: counts of connections, of bytes in flight, of idle and wrong commands, and who may come at all.

Must never forget to give back: whoever takes from `Load` returns it in a `finally`.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from spamguard.settings import DoorLimits
from spamguard.wire.values import Reply

TOO_MANY = Reply.of(421, "4.7.0 Too many connections, try again later")
TOO_MANY_YOURS = Reply.of(421, "4.7.0 Too many connections from your address, try again later")


class Networks:
    """Addresses, told as networks in CIDR notation. A client without an address (a Unix socket) has passed the file's permissions."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def __contains__(self, address: str) -> bool:
        if not address:
            return True
        parsed = _parsed(address)
        return any(parsed in network for network in self._networks)


def plain_address(address: str) -> str:
    """An address as it is compared and counted: no zone, and IPv4 where it came in through an IPv6 socket."""
    parsed = _parsed(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


@lru_cache(maxsize=1024)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The same clients come again and again, and this took a tenth of what a connection costs."""
    return ipaddress.ip_address(address)


class Load:
    """What all connections of one door use together, in this process."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self._clients: Counter[str] = Counter()
        self.connections = 0
        self.bytes_in_flight = 0

    def enter(self, address: str) -> Reply | None:
        """Count a connection in; a reply when it has to go again (it is counted all the same until it `leave`s)."""
        full = self.connections >= self._limits.connections
        full_for_one = self._clients[address] >= self._limits.connections_per_client
        self.connections += 1
        self._clients[address] += 1
        return TOO_MANY if full else TOO_MANY_YOURS if full_for_one else None

    def leave(self, address: str) -> None:
        """Count it out."""
        self.connections -= 1
        self._clients[address] -= 1
        if not self._clients[address]:
            del self._clients[address]

    def room_for(self, size: int) -> bool:
        """Whether so many bytes more may be in flight."""
        return self.bytes_in_flight + size <= self._limits.bytes_in_flight


class Patience:
    """How many idle and wrong commands one connection may still send before its next message."""

    def __init__(self, limits: DoorLimits) -> None:
        self._limits = limits
        self.renew()

    def renew(self) -> None:
        """After a message."""
        self._idle = self._limits.idle_commands
        self._wrong = self._limits.wrong_commands

    def idle(self) -> None:
        """One that does nothing for a message."""
        self._idle -= 1

    def wrong(self) -> None:
        """One that was refused or not understood."""
        self._wrong -= 1

    @property
    def lost(self) -> bool:
        """Whether it has sent too many."""
        return self._idle < 0 or self._wrong < 0
