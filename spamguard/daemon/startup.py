"""What the master does before mail comes: read the settings, listen, and give up root's rights.

A listening socket is opened here or taken over from systemd (socket activation, sd_listen_fds(3));
all workers share it. Its `Address` identifies it, so that a reload keeps the sockets that the new
settings still name. A daemon that starts as root then becomes the owner of the state directory, or
`user`, for good (`drop_privileges`); systemd does the same before it starts a service, so that this
is for daemons started in other ways. Linux only.

It is written by hand because systemd-python must be compiled, and the protocol is three variables.

Must never close a socket that is still wanted: connections that wait in its queue would be reset.
Root's rights must be gone before the first byte from the network. While still root, must never
follow what others could have put into the state directory.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from multiprocessing.connection import Connection
from pathlib import Path

from spamguard import process
from spamguard.config.options import Endpoint, Settings
from spamguard.errors import ConfigError, StartError, remedy
from spamguard.storage import KEY_FILE, LEDGER_FILE, SPOOL_DIRECTORY

_log = logging.getLogger("spamguard.daemon")

# ---- settings


def read_apart(read: Callable[[], Settings]) -> Settings:
    """Read the settings in a process of its own, so that what checks them stays out of the master.

    Raises
    ------
    ConfigError
        They cannot be used, or that process was ended.
    """
    fork = multiprocessing.get_context("fork")  # the master has no threads
    receiving, sending = fork.Pipe(duplex=False)
    child = fork.Process(target=_send_settings, args=(read, sending))
    child.start()
    sending.close()
    try:
        answer: Settings | Exception = receiving.recv()
    except EOFError:
        raise ConfigError(
            "the process that reads the configuration was ended: is memory short?"
        ) from None
    finally:
        child.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _send_settings(read: Callable[[], Settings], sending: Connection) -> None:
    try:
        answer: Settings | Exception = read()
    except Exception as error:  # noqa: BLE001  the master raises it
        answer = error
    sending.send(answer)


# ---- addresses

# Like a port on loopback, a socket in the file system is for anybody on this machine; the mode of
# its directory may restrict that.
_SOCKET_MODE = 0o666
BIND_TIMEOUT = 3.0  # seconds: workers of a daemon that was killed may still hold the address

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


# ---- opening


def open_all(
    endpoints: Iterable[Endpoint],
    open_sockets: dict[Address, socket.socket],
) -> dict[Address, socket.socket]:
    """Return a listening socket for each endpoint: an open one, or else a new one.

    StartError: one cannot be opened; none of the new ones is left open.
    """
    listening: dict[Address, socket.socket] = {}
    deadline = time.monotonic() + BIND_TIMEOUT
    try:
        for endpoint in endpoints:
            address = endpoint_address(endpoint)
            listening[address] = open_sockets.get(address) or _open_endpoint(endpoint, deadline)
    except StartError:
        close_all(new for address, new in listening.items() if address not in open_sockets)
        raise
    return listening


def _open_endpoint(endpoint: Endpoint, deadline: float) -> socket.socket:
    while True:
        try:
            if endpoint.path is None:
                return process.listen(endpoint.host, endpoint.port)
            if process.is_listening(endpoint.path):
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
            return process.listen_at(endpoint.path, _SOCKET_MODE)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise StartError(
                    f"cannot listen on {endpoint} ({error.strerror}): {_LISTEN_REMEDY}"
                ) from error
        time.sleep(0.1)


_LISTEN_REMEDY = (
    "stop what listens there, or choose another address of this machine; a port below 1024 needs "
    "root, and the directory of a path must belong to us"
)


def close_all(listening: Iterable[socket.socket]) -> None:
    for each in listening:
        each.close()


# ---- sockets of systemd


def take_inherited() -> dict[Address, socket.socket]:
    """Return the sockets that systemd has opened for this process.

    LISTEN_… is taken out of the environment: it is not for children.
    """
    pid, number = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):
        return {}
    inherited: dict[Address, socket.socket] = {}
    for descriptor in range(3, 3 + int(number)):  # sd_listen_fds(3)
        listening = socket.socket(fileno=descriptor)
        listening.set_inheritable(False)
        inherited[_bound_address(listening)] = listening
    return inherited


def check_inherited(inherited: Collection[Address], endpoints: Iterable[Endpoint]) -> None:
    """Check that the sockets of systemd belong to listeners of the configuration.

    ConfigError: none of them does, so they would hold connections that nobody ever answers. Some
    of several are only logged.
    """
    listeners = {endpoint_address(endpoint): endpoint for endpoint in endpoints}
    unused = [format_address(address) for address in inherited if address not in listeners]
    if not unused:
        return
    problem = f"systemd listens on {', '.join(unused)}, where no listener of the configuration is"
    advice = "write the same addresses into ListenStream= of spamguard.socket and `listen`"
    if len(unused) == len(inherited):
        raise ConfigError(
            f"{problem} ({', '.join(map(str, listeners.values()))}): {advice}, "
            "or mask spamguard.socket (systemctl mask --now)"
        )
    _log.warning("%s: connections there are never answered: %s", problem, advice)


# ---- rights


def drop_privileges(settings: Settings) -> None:
    """Make the state directory if it is missing, become its owner, and make the spool directory.

    StartError: the state directory cannot be used so.
    """
    os.umask(0o022)  # the user must get through the directories above the state directory
    try:
        if os.getuid() == 0:
            account = check_account(settings)
            uid, gid, name = account.pw_uid, account.pw_gid, account.pw_name
            if uid == 0:
                _log.warning(
                    "running as root, as %s belongs to root: "
                    "name a user with `user`, or give it to one with chown",
                    settings.state,
                )
            _make_state(settings.state, account)
            # Drop everything of root's, for good: setresuid changes the saved id too.
            if uid != 0:
                os.initgroups(name, gid)
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
                os.environ.update(HOME=account.pw_dir, USER=name, LOGNAME=name)
                _log.info("running as %s", name)
        else:
            _make_state(settings.state, None)
        _check_access(settings.state)
        os.umask(0o077)
        (settings.state / SPOOL_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        advice = remedy(error, "choose a state directory of that user")
        raise StartError(
            f"{settings.state}: cannot be used as {_user_name()} ({error.strerror}): {advice}"
        ) from error


def service_account(settings: Settings) -> pwd.struct_passwd:
    """Return the account that the daemon runs as when root starts it. StartError: there is none."""
    try:
        owner = settings.state.stat().st_uid if settings.state.exists() else 0
        return pwd.getpwnam(settings.user) if settings.user else pwd.getpwuid(owner)
    except KeyError:
        who = f"user {settings.user!r}" if settings.user else f"owner of {settings.state}"
        raise StartError(
            f"there is no {who} on this machine: create it, or name another with `user`"
        ) from None


def check_account(settings: Settings) -> pwd.struct_passwd:
    """Return that account; StartError: root could not start the daemon so. Changes nothing."""
    account = service_account(settings)
    if account.pw_uid == 0:
        doors = (door.listen for door in settings.doors if door.listen.path is None)
        page = settings.web.listen if settings.web else None
        for address in (*doors, settings.metrics, page):
            if address and not ip_address(address.host).is_loopback:
                raise StartError(
                    f"will not run as root with {address} open to others: "
                    f"name a user with `user`, or give {settings.state} to one with chown"
                )
    return account


def check_program() -> None:
    """Raise StartError unless this user can run the program again; one under /root cannot be."""
    for path, access in ((Path(sys.executable), os.X_OK), (Path(__file__), os.R_OK)):
        if not os.access(path, access):
            raise StartError(
                f"{path}: {_user_name()}, whom the daemon runs as, cannot use it: "
                "install spamguard where every user gets to, as in /opt, and with a Python like "
                "that"
            )


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _make_state(state: Path, account: pwd.struct_passwd | None) -> None:
    try:
        state.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
    except FileExistsError:
        return
    if account is not None:
        os.chown(state, account.pw_uid, account.pw_gid)


def _check_access(state: Path) -> None:
    """Raise PermissionError if a filter that is there may not be used.

    A read-only disk is no reason: mail passes all the same.
    """
    for path in (state, *(state / name for name in (SPOOL_DIRECTORY, KEY_FILE, LEDGER_FILE))):
        access = os.R_OK if path.name == KEY_FILE else os.R_OK | os.W_OK
        if (
            os.path.lexists(path)
            and not os.access(path, access)
            and not os.statvfs(state).f_flag & os.ST_RDONLY
        ):
            raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}: {path.name}")
