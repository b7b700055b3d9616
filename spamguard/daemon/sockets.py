"""Listening sockets: opened, or taken over from systemd, once for each address, and shared by all workers.

Must never close a socket that is still wanted: what waits in its queue would be reset.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, MutableMapping
from ipaddress import ip_address

from spamguard import unixsocket
from spamguard.errors import ConfigError, StartError
from spamguard.settings import Endpoint

BACKLOG = 1024
_FIRST_INHERITED = 3  # sd_listen_fds(3)
_MODE = 0o666  # of a socket in the file system: as on loopback, anybody on this machine; its directory may say otherwise
_PATIENCE = 3.0  # seconds: workers of a daemon that was killed may still hold the address
_REMEDIES = {
    errno.EADDRINUSE: "another program listens there: stop it, or choose another port",
    errno.EACCES: "ports below 1024 need root, CAP_NET_BIND_SERVICE or a socket from systemd",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
}
_TAKEN_PATH = "remove it, or choose another path"
_SERVED_PATH = "another program listens there: stop it, or choose another path"
_NO_PATH = "make its directory, which must belong to us"

Address = tuple[str, int]
"""An IP address and a port, or the path of a socket and 0."""

_log = logging.getLogger("spamguard.daemon")


def address(endpoint: Endpoint) -> Address:
    """What tells one listening socket from another."""
    return (_written(endpoint.host), endpoint.port) if endpoint.path is None else (str(endpoint.path), 0)


def _bound(one: socket.socket) -> Address:
    name = one.getsockname()
    return (name, 0) if one.family == socket.AF_UNIX else (_written(name[0]), name[1])


def place(endpoint: Endpoint, one: socket.socket) -> str:
    """Where an endpoint's socket listens, for people: port 0 is any free one."""
    return str(endpoint.path or text(_bound(one)))


def opened(
    endpoints: Iterable[Endpoint], known: dict[Address, socket.socket], *, patience: float = _PATIENCE
) -> dict[Address, socket.socket]:
    """A listening socket for each endpoint: the one that is known, or a new one. StartError: none of the new ones is left open."""
    found: dict[Address, socket.socket] = {}
    until = time.monotonic() + patience
    try:
        for endpoint in endpoints:
            found[address(endpoint)] = known.get(address(endpoint)) or _open(endpoint, until, {*known, *found})
    except StartError:
        close(one for name, one in found.items() if name not in known)
        raise
    return found


def _open(endpoint: Endpoint, until: float, ours: Collection[Address]) -> socket.socket:
    """ours: where we listen already."""
    while True:
        try:
            return _listening(endpoint)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise StartError(f"cannot listen on {endpoint} ({error.strerror}): {_remedy(endpoint, error.errno, ours)}") from error
        time.sleep(0.1)


def _remedy(endpoint: Endpoint, number: int | None, ours: Collection[Address]) -> str:
    if endpoint.path is not None:
        return {errno.EEXIST: _TAKEN_PATH, errno.EADDRINUSE: _SERVED_PATH}.get(number or 0, _NO_PATH)
    ourselves = [text(one) for one in ours if _overlap(one, address(endpoint))] if number == errno.EADDRINUSE else []
    if ourselves:
        return f"this daemon has that port itself, at {ourselves[0]}: restart if that is to go, or choose another port"
    return _REMEDIES.get(number or 0, "check the address")


def _overlap(one: Address, other: Address) -> bool:
    """Whether two addresses of the network exclude each other: one of all, such as 0.0.0.0, is in use where any of them is."""
    hosts = {one[0], other[0]}
    same_family = (":" in one[0]) == (":" in other[0])
    return one[1] == other[1] != 0 and same_family and not hosts.isdisjoint(("0.0.0.0", "::"))  # noqa: S104


def _listening(endpoint: Endpoint) -> socket.socket:
    if endpoint.path is not None:
        if unixsocket.is_served(endpoint.path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        found = unixsocket.listening(endpoint.path, _MODE)
        found.setblocking(False)
        return found
    return listening(endpoint.host, endpoint.port)


def listening(host: str, port: int) -> socket.socket:
    """A new socket at an IP address, which of IPv6 takes nothing of IPv4. OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found


def inherited(environment: MutableMapping[str, str]) -> dict[Address, socket.socket]:
    """The sockets that systemd has opened for this process; taken out of the environment, as they are not meant for children."""
    process, number = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if process != str(os.getpid()) or not number.isdecimal():
        return {}
    found: dict[Address, socket.socket] = {}
    for position in range(min(int(number), 256)):
        name = names[position] if position < len(names) else "unknown"
        _take_over(_FIRST_INHERITED + position, name, found)
    return found


def _take_over(descriptor: int, name: str, found: dict[Address, socket.socket]) -> None:
    try:
        one = socket.socket(fileno=descriptor)
    except OSError as error:
        _log.warning("the inherited file %d (%s) is no socket: %s", descriptor, name, error)
        return
    one.set_inheritable(False)
    one.setblocking(False)
    streams = one.family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX) and one.type == socket.SOCK_STREAM
    if not streams or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        _log.warning("the inherited socket %d (%s) does not listen for connections: not used", descriptor, name)
        one.close()
        return
    found[_bound(one)] = one


def _written(host: str) -> str:
    """An IP address as the kernel writes it: of IPv6 there are many ways."""
    return str(ip_address(host.partition("%")[0]))


def check_inherited(found: dict[Address, socket.socket], endpoints: Iterable[Endpoint]) -> None:
    """ConfigError when none of what systemd has opened is a listener's: it would hold connections that nobody ever answers."""
    wanted = {address(endpoint): endpoint for endpoint in endpoints}
    others = [text(one) for one in found if one not in wanted]
    if not others:
        return
    told = f"systemd listens on {', '.join(others)}, where no listener of the configuration is"
    remedy = "write the same addresses into ListenStream= of spamguard.socket and `listen`"
    if len(others) == len(found):
        raise ConfigError(f"{told} ({', '.join(map(str, wanted.values()))}): {remedy}, or mask spamguard.socket (systemctl mask --now)")
    _log.warning("%s: whoever connects there is never answered: %s", told, remedy)


def text(address: Address) -> str:
    """An address for people."""
    host, port = address
    return host if host.startswith("/") else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def close(found: Iterable[socket.socket]) -> None:
    """Close them."""
    for one in found:
        one.close()
