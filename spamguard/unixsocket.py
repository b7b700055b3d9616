"""Unix sockets of ours: made at a path without a moment in which there is none, and who is at the other end of one."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

_BACKLOG = 512
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7)


def listening(path: Path, mode: int) -> socket.socket:
    """A socket that listens at a path, there from one moment to the next in the place of an older one. OSError."""
    if path.exists() and not path.is_socket():
        raise _no_socket(path)
    with suppress(OSError):
        path.parent.mkdir(mode=0o755)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX)
    try:
        found.bind(str(new))
        _open_to_others(new, mode)
        found.listen(_BACKLOG)
        new.rename(path)
    except BaseException:
        found.close()
        new.unlink(missing_ok=True)
        raise
    return found


def is_served(path: Path) -> bool:
    """Whether somebody listens there; what a process that was killed has left behind only looks so."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except BlockingIOError:  # with no room in the queue just now
            return True
        except OSError:
            return False
    return True


def _open_to_others(path: Path, mode: int) -> None:
    """Whoever owns the directory may have put something else there meanwhile, and root may be who listens."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise _no_socket(path)
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _no_socket(path: Path) -> FileExistsError:
    return FileExistsError(errno.EEXIST, "something else is there, and is no socket", str(path))


def process(connected: socket.socket) -> int:
    """The number of the process at the other end, as it was when it connected or began to listen."""
    return _credentials(connected)[0]


def account(connected: socket.socket) -> int:
    """Whose process is at the other end, as the kernel says: the number of the user it was when it connected."""
    return _credentials(connected)[1]


def _credentials(connected: socket.socket) -> tuple[int, int, int]:
    pid, user, group = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user, group
