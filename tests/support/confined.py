"""Run a command under those restrictions of a systemd unit that need no systemd.

`python confined.py UNIT COMMAND …` applies SystemCallFilter=, RestrictAddressFamilies=,
MemoryDenyWriteExecute=, RestrictNamespaces= and NoNewPrivileges= by libseccomp, which systemd
itself uses. A forbidden call fails with EPERM.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED = 4, 7  # SCMP_CMP_EQ, SCMP_CMP_MASKED_EQ
WRITE, EXECUTE = 2, 4  # PROT_*
NAMESPACES = 0x7E020080  # CLONE_NEW* of clone(2)


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp of seccomp_rule_add(3)."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("one", ctypes.c_uint64),
        ("other", ctypes.c_uint64),
    )


def options(unit: Path) -> dict[str, list[str]]:
    """All values of each, in their order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, mark, value = line.partition("=")
        if mark and not name.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def calls(words: list[str]) -> set[str]:
    """The system calls that names of calls and of groups stand for."""
    names: set[str] = set()
    for word in words:
        if not word.startswith("@"):
            names.add(word)
            continue
        listing = subprocess.run(
            ["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True
        ).stdout
        inside = [line.strip() for line in listing.splitlines()[1:]]
        names |= calls([line for line in inside if line and not line.startswith("#")])
    return names


def allowed(filters: list[str]) -> set[str]:
    """The calls that the lines of a unit allow: the first line lists allowed ones, ~ takes away."""
    names: set[str] = set()
    for line in filters:
        group = calls(line.lstrip("~").split())
        names = names - group if line.startswith("~") else names | group
    return names | calls(["@default"])


def families(line: str) -> list[int]:
    return [getattr(socket, name) for name in line.split()]


def rules(unit: dict[str, list[str]]) -> dict[str, list[Comparison]]:
    """Calls that are allowed only with some arguments: any one of these."""
    found = {
        "socket": [
            Comparison(0, EQUAL, family) for family in families(unit["RestrictAddressFamilies"][-1])
        ]
    }
    if unit["MemoryDenyWriteExecute"][-1] == "yes":
        found["mmap"] = [
            Comparison(2, MASKED, WRITE | EXECUTE, either) for either in (0, WRITE, EXECUTE)
        ]
        found["mprotect"] = [Comparison(2, MASKED, EXECUTE, 0)]
        found["pkey_mprotect"] = [Comparison(2, MASKED, EXECUTE, 0)]
    if unit["RestrictNamespaces"][-1] == "yes":
        found["clone"] = [Comparison(0, MASKED, NAMESPACES, 0)]
    return found


def confine(unit: dict[str, list[str]]) -> None:
    """This process and all it starts, for good."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ERRNO | errno.EPERM)))
    special = rules(unit)
    for name in sorted(allowed(unit["SystemCallFilter"]) - {"clone3", "unshare", "setns"}):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            continue  # not of this machine
        for one in special.get(name, [None]):
            arguments = (0, None) if one is None else (1, ctypes.byref(one))
            done = library.seccomp_rule_add_array(
                context, ctypes.c_uint32(ALLOW), number, *arguments
            )
            assert done == 0, (name, os.strerror(-done))
    clone3 = library.seccomp_syscall_resolve_name(
        b"clone3"
    )  # whose arguments a filter cannot see: the old one is used then
    assert (
        library.seccomp_rule_add_array(
            context, ctypes.c_uint32(ERRNO | errno.ENOSYS), clone3, 0, None
        )
        == 0
    )
    done = library.seccomp_load(context)
    assert done == 0, os.strerror(-done)


if __name__ == "__main__":
    confine(options(Path(sys.argv[1])))
    os.execvp(sys.argv[2], sys.argv[2:])
