"""Listening sockets, one for each address, shared by all workers.

A socket is opened here or taken over from systemd (socket activation, sd_listen_fds(3)). Its
`Address` identifies it, so that a reload keeps the sockets that the new settings still name.

It is written by hand because systemd-python must be compiled, and the protocol is three variables.

Must never close a socket that is still wanted: connections that wait in its queue would be reset.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Collection, Iterable, MutableMapping
from ipaddress import ip_address

from spamguard import process
from spamguard.config.options import Endpoint
from spamguard.errors import ConfigError, StartError

_log = logging.getLogger("spamguard.daemon")

BACKLOG = 1024
_FIRST_INHERITED = 3  # sd_listen_fds(3)
_MAX_INHERITED = 256
# Like a port on loopback, a socket in the file system is for anybody on this machine; the mode of
# its directory may restrict that.
_SOCKET_MODE = 0o666
_BIND_TIMEOUT = 3.0  # seconds: workers of a daemon that was killed may still hold the address

Address = tuple[str, int]
"""An IP address and a port, or the path of a socket and 0."""


def endpoint_address(endpoint: Endpoint) -> Address:
    """Return the address that identifies the listening socket of an endpoint."""
    if endpoint.path is not None:
        return str(endpoint.path), 0
    return _canonical_host(endpoint.host), endpoint.port


def _bound_address(listening: socket.socket) -> Address:
    name = listening.getsockname()
    return (name, 0) if listening.family == socket.AF_UNIX else (_canonical_host(name[0]), name[1])


def _canonical_host(host: str) -> str:
    """Write an IP address as the kernel does: there are many ways to write one of IPv6."""
    return str(ip_address(host.partition("%")[0]))


def format_address(address: Address) -> str:
    """Write an address for people.

    >>> format_address(("::1", 25))
    '[::1]:25'
    """
    host, port = address
    return host if host.startswith("/") else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe_listener(endpoint: Endpoint, listening: socket.socket) -> str:
    """Say where the socket of an endpoint listens: for port 0 the kernel has chosen the port."""
    return str(endpoint.path or format_address(_bound_address(listening)))


# ---- opening


def open_all(
    endpoints: Iterable[Endpoint],
    open_sockets: dict[Address, socket.socket],
    *,
    timeout: float = _BIND_TIMEOUT,
) -> dict[Address, socket.socket]:
    """Return a listening socket for each endpoint: an open one, or else a new one.

    Raises
    ------
    StartError
        One cannot be opened; none of the new ones is left open.
    """
    listening: dict[Address, socket.socket] = {}
    deadline = time.monotonic() + timeout
    try:
        for endpoint in endpoints:
            address = endpoint_address(endpoint)
            listening[address] = open_sockets.get(address) or _open_endpoint(
                endpoint, deadline, {*open_sockets, *listening}
            )
    except StartError:
        close_all(new for address, new in listening.items() if address not in open_sockets)
        raise
    return listening


def _open_endpoint(endpoint: Endpoint, deadline: float, ours: Collection[Address]) -> socket.socket:
    """Open a socket; try again while the address is in use. ours: addresses of our own sockets."""
    while True:
        try:
            if endpoint.path is None:
                return listen(endpoint.host, endpoint.port)
            if process.is_listening(endpoint.path):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            listening = process.listen_at(endpoint.path, _SOCKET_MODE)
            listening.setblocking(False)
            return listening
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                remedy = _remedy(endpoint, error.errno, ours)
                raise StartError(
                    f"cannot listen on {endpoint} ({error.strerror}): {remedy}"
                ) from error
        time.sleep(0.1)


_PATH_REMEDIES = {
    errno.EEXIST: "remove it, or choose another path",
    errno.EADDRINUSE: "another program listens there: stop it, or choose another path",
}
_PORT_REMEDIES = {
    errno.EADDRINUSE: "another program listens there: stop it, or choose another port",
    errno.EACCES: "ports below 1024 need root, CAP_NET_BIND_SERVICE or a socket from systemd",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
}


def _remedy(endpoint: Endpoint, number: int | None, ours: Collection[Address]) -> str:
    if endpoint.path is not None:
        return _PATH_REMEDIES.get(number or 0, "make its directory, which must belong to us")
    if number == errno.EADDRINUSE:
        for address in ours:
            if _overlaps(address, endpoint_address(endpoint)):
                return (
                    f"this daemon has that port itself, at {format_address(address)}: "
                    "restart if that is to go, or choose another port"
                )
    return _PORT_REMEDIES.get(number or 0, "check the address")


def _overlaps(first: Address, second: Address) -> bool:
    """Whether two addresses exclude each other, as 0.0.0.0 and any address of IPv4 do."""
    hosts = {first[0], second[0]}
    same_family = (":" in first[0]) == (":" in second[0])
    return first[1] == second[1] != 0 and same_family and not hosts.isdisjoint(("0.0.0.0", "::"))  # noqa: S104  compared only


def listen(host: str, port: int) -> socket.socket:
    """Open a socket at an IP address; one of IPv6 takes no connections of IPv4. OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def close_all(listening: Iterable[socket.socket]) -> None:
    """Close all of these sockets."""
    for each in listening:
        each.close()


# ---- sockets of systemd


def take_inherited(environment: MutableMapping[str, str]) -> dict[Address, socket.socket]:
    """Return the sockets that systemd has opened for this process.

    LISTEN_… is taken out of the environment: it is not for children.
    """
    pid, number = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not number.isdecimal():
        return {}
    inherited: dict[Address, socket.socket] = {}
    for position in range(min(int(number), _MAX_INHERITED)):
        descriptor = _FIRST_INHERITED + position
        name = names[position] if position < len(names) else "unknown"
        try:
            listening = socket.socket(fileno=descriptor)
        except OSError as error:
            _log.warning("the inherited file %d (%s) is no socket: %s", descriptor, name, error)
            continue
        listening.set_inheritable(False)
        listening.setblocking(False)
        families = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
        if (
            listening.family in families
            and listening.type == socket.SOCK_STREAM
            and listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            inherited[_bound_address(listening)] = listening
        else:
            text = "the inherited socket %d (%s) does not listen for connections: not used"
            _log.warning(text, descriptor, name)
            listening.close()
    return inherited


def check_inherited(inherited: Collection[Address], endpoints: Iterable[Endpoint]) -> None:
    """Check that the sockets of systemd belong to listeners of the configuration.

    Raises
    ------
    ConfigError
        None does: they would hold connections that nobody ever answers. Some of several are only
        logged.
    """
    wanted = {endpoint_address(endpoint): endpoint for endpoint in endpoints}
    others = [format_address(address) for address in inherited if address not in wanted]
    if not others:
        return
    problem = f"systemd listens on {', '.join(others)}, where no listener of the configuration is"
    remedy = "write the same addresses into ListenStream= of spamguard.socket and `listen`"
    if len(others) == len(inherited):
        raise ConfigError(
            f"{problem} ({', '.join(map(str, wanted.values()))}): {remedy}, "
            "or mask spamguard.socket (systemctl mask --now)"
        )
    _log.warning("%s: connections there are never answered: %s", problem, remedy)
