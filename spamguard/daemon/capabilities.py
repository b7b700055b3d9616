"""How a process that root has started keeps one right of root's, to read everything, and loses all others (capabilities(7)).

Of no use under systemd, which does the same before it starts a service. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import struct

from spamguard.errors import StartError

READ_ANYTHING = 2  # CAP_DAC_READ_SEARCH
_VERSION = 0x20080522  # of the structures of capset(2): two words for each set
_KEEP, _DROP, _NO_NEW = 8, 24, 38  # PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS of prctl(2)
_MOST = 64  # capabilities that a set has room for


def become_reader(name: str) -> None:
    """As root: become a user who may read everything, and nothing else that this user may not. Before any thread. StartError."""
    if os.geteuid() != 0:
        return
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise StartError(f"there is no user {name!r} to run as: create it, or name another with --user") from None
    try:
        for other in range(_MOST):
            if other != READ_ANYTHING and _control(_DROP, other) != 0:
                break  # the kernel knows no more
        _control(_KEEP, 1)
        os.setgroups([user.pw_gid])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        _set(1 << READ_ANYTHING)
        _control(_NO_NEW, 1)
    except OSError as error:
        raise StartError(f"cannot become {name} ({error.strerror})") from error


def _control(option: int, value: int) -> int:
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))


def _set(wanted: int) -> None:
    """What this thread may use and have; nothing goes to programs that it starts."""
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION, 0))
    data = ctypes.create_string_buffer(struct.pack("6I", wanted, wanted, 0, 0, 0, 0))
    library = ctypes.CDLL(None, use_errno=True)
    if library.capset(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
