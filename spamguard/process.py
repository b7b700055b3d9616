"""Processes and sockets of this machine: how a process is started, listens, and is notified.

A process is started by exec of the same interpreter on the same modules. Before that two things are
checked: the package on the disk is the one that runs, and the limit on address space is high
enough, below which every library fails in its own way. A listening Unix socket gets its path in one
step. `Notifier` speaks to systemd (sd_notify(3), one datagram). Master and mailbox broker load this
module, so it imports nothing that workers need.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Measured with tables of 64 MiB on two cores (Python 3.11, numpy 2): `judge` and `learn` need 290
# MiB, `rebuild` 330; of the daemon the web process used 411 at most and the learner 441. A process
# that takes new tables maps the old ones at the same time. The learner does so twice, for folders
# and for lessons, and the web process maps tables for page and metrics.
_NEEDED_BYTES, _NEEDED_BYTES_SERVING = 288 << 20, 480 << 20

# numpy would reserve address space for each core, and malloc 64 MiB for each thread; nothing here
# is faster for it, since only one thread at a time runs Python.
_LESS_MEMORY = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


# ---- checks before a process starts


class ReplacedError(OSError):
    """Another version of spamguard has been installed since this process started."""


def _installation_time() -> int:
    with suppress(OSError):
        return Path(__file__).with_name("__init__.py").stat().st_mtime_ns
    return 0


_STARTED_WITH = _installation_time()


def check_installation() -> None:
    """Raise ReplacedError if the package on the disk is no longer the one that runs: a child of
    another version could misread its parent, or rewrite the ledger in an unknown form.
    """
    if _installation_time() != _STARTED_WITH:
        raise ReplacedError(
            "another spamguard was installed than the one that runs: "
            "restart it, as by `systemctl restart spamguard`"
        )


def memory_shortage(*, serving: bool = False) -> str:
    """Say that RLIMIT_AS is too low for a filter, or for the daemon; "" if it is enough."""
    needed = _NEEDED_BYTES_SERVING if serving else _NEEDED_BYTES
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return ""
    return "the limit on memory (`ulimit -v`, LimitAS= of systemd) is too low: raise it"


# ---- the parent's side


@contextmanager
def signal_socket(signals: Collection[signal.Signals]) -> Iterator[socket.socket]:
    """Yield a socket from which the numbers of received signals can be read, one byte each, for a
    loop that waits for sockets anyway.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    # Python writes the number to the wake-up descriptor; the handler itself has nothing to do.
    handlers = {number: signal.signal(number, lambda *_: None) for number in signals}
    wakeup = signal.set_wakeup_fd(writer.fileno())
    with reader, writer:
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def start_process(
    arguments: Sequence[str],
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Run `python ARGUMENTS…`, such as `-m MODULE`, in a process group of its own.

    Signals typed at a terminal then reach the master alone. With -P and PYTHONPATH the child
    imports from where this process does. OSError: it cannot be started; ReplacedError is one.
    """
    check_installation()
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", *arguments],
        stdin=stdin,
        stdout=stdout,
        pass_fds=pass_fds,
        env=os.environ | _LESS_MEMORY | path,
        process_group=0,
    )


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send a signal when the parent, of this process id, ends."""
    ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)


# ---- rights to files

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on every architecture
_ALL_RIGHTS = (1 << 13) - 1  # those of the first version: landlock(7)
_READ_RIGHTS = 0b1101  # to execute, to read files, to read directories
_FILE_RIGHTS = 0b111  # of those, and to write: what a file has without a directory


def confine_files(readable: Collection[Path], writable: Collection[Path]) -> bool:
    """Leave this process, which has no threads yet, rights to nothing but what lies below some
    paths, for good (landlock(7)); whether the kernel can. OSError: it refuses.

    Sockets that others listen at are no files.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: object) -> int:
        result: int = libc.syscall(number, *arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    try:
        rules = call(_LANDLOCK_CREATE, struct.pack("Q", _ALL_RIGHTS), ctypes.c_size_t(8), 0)
    except OSError:  # an older kernel, or one without
        return False
    try:
        allowed = dict.fromkeys(readable, _READ_RIGHTS) | dict.fromkeys(writable, _ALL_RIGHTS)
        for path, rights in allowed.items():
            with suppress(FileNotFoundError):
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    usable = rights if path.is_dir() else rights & _FILE_RIGHTS
                    call(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", usable, opened), 0)
                finally:
                    os.close(opened)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        call(_LANDLOCK_RESTRICT, rules, 0)
    finally:
        os.close(rules)
    return True


# ---- sockets

_UNIX_BACKLOG, _TCP_BACKLOG = 512, 1024
_UCRED = struct.Struct("3i")  # pid, uid, gid: unix(7)


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_TCP_BACKLOG)
    except OSError as error:  # Python's text names the address, as ours do
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
    listening.setblocking(False)
    return listening


def listen_at(path: Path, mode: int) -> socket.socket:
    """A socket that listens at a path, in the place of an older socket."""
    if path.exists() and not path.is_socket():
        raise _not_a_socket_error(path)
    with suppress(OSError):
        path.parent.mkdir(mode=0o755)
    with short_path(path.parent) as directory:
        return _listen_in(directory, path, mode)


def _listen_in(directory: Path, path: Path, mode: int) -> socket.socket:
    draft = directory / f".{path.name}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(draft))
        # The owner of the directory may have put something else there, and we may be root.
        descriptor = os.open(draft, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                raise _not_a_socket_error(draft)
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)
        finally:
            os.close(descriptor)
        listening.listen(_UNIX_BACKLOG)
        draft.rename(directory / path.name)
    except BaseException:
        listening.close()
        draft.unlink(missing_ok=True)
        raise
    return listening


@contextmanager
def short_path(directory: Path) -> Iterator[Path]:
    """Yield a short name of a directory: that of a socket has room for 107 bytes (unix(7))."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def connect(client: socket.socket, path: Path) -> None:
    with short_path(path.parent) as directory:
        client.connect(str(directory / path.name))


def ask(path: Path, request: bytes, seconds: float) -> bytes:
    """Send a line to the process of ours that listens there; the line that it answers. OSError."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(seconds)
        connect(client, path)
        client.sendall(request + b"\n")
        with client.makefile("rb") as stream:
            return stream.readline()


def is_listening(path: Path) -> bool:
    """Whether a process listens there; a killed process leaves a socket on which nobody does."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            connect(client, path)
        except BlockingIOError:  # its queue is full just now
            return True
        except OSError:
            return False
    return True


def _not_a_socket_error(path: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "something else is there, and is no socket", str(path))


def peer_credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user id of the other end, as the kernel says, when it connected or listened."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(data)
    return pid, uid


# ---- systemd


@dataclass
class Notifier:
    """Sends states to the service manager, if there is one; nothing happens when nobody listens."""

    _address: str | None  # of a Unix socket; with a leading @ in the abstract namespace (unix(7))
    watchdog_seconds: float | None = None  # within which a ping is expected; None: none is

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Take NOTIFY_SOCKET and WATCHDOG_… out of the environment: they are not for children."""
        address = environment.pop("NOTIFY_SOCKET", None)
        interval = environment.pop("WATCHDOG_USEC", "")
        expected = interval and environment.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        return cls(address, int(interval) / 1e6 if expected else None)

    def ready(self, status: str) -> None:
        self.send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.send("RELOADING=1", f"MONOTONIC_USEC={moment}", "STATUS=reloading")

    def stopping(self) -> None:
        self.send("STOPPING=1", "STATUS=finishing what is under way")

    def ping_watchdog(self) -> None:
        if self.watchdog_seconds:
            self.send("WATCHDOG=1")

    def send(self, *lines: str) -> None:
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as channel:
            channel.sendto("\n".join(lines).encode(), address)


# ---- other programs


def run_command(*command: str) -> str:
    try:
        output: bytes = subprocess.check_output(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10.0
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return output.decode(errors="replace")
