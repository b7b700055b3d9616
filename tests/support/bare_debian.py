"""A bare Debian in a directory, made by debootstrap from the mirror of this machine's apt, and
commands in it.

Each command has processes and mounts of its own, which end with it, so a killed test leaves no
mount behind. A server also has a network of its own, with nothing but loopback: its ports are not
those of this machine, and `network_of` enters it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import COMMAND_SECONDS, eventually

SUITE = "bookworm"
_CLONE_NEWNET = 0x40000000
_PROGRAMS = ("debootstrap", "unshare", "ip", "apt-get")
_UNREACHABLE = r"Temporary failure|Could not resolve|Could not connect|Failed getting release file"
_KERNEL = 'mount -t proc proc "$0/proc"; mount -t tmpfs tmpfs "$0/dev/shm"'
MACHINE = 'mount -t tmpfs tmpfs "$0/run"'


def why_not() -> str:
    """Why this machine cannot make one; empty: it can."""
    if os.getuid() != 0:
        return "needs root"
    if lacking := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"needs {', '.join(lacking)}: apt-get install debootstrap iproute2"
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != SUITE:
        return f"needs Debian's {SUITE}, whose Python the package is built with"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        return "needs the right to make namespaces"
    return ""


def mirror() -> str:
    """The address from which this machine's apt has its packages."""
    line = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Component: main"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    for release, address in (target.split() for target in done.stdout.splitlines()):
        if release == SUITE:
            return address
    pytest.skip(f"needs a mirror of {SUITE} in the sources of apt")


class BareDebian:
    """One such directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def command(
        self, *line: str, network: bool = True, mounts: str = MACHINE, user: str = "0:0"
    ) -> list[str]:
        """The command in this Debian, as words to start.

        Parameters
        ----------
        network: whether it has that of this machine.
        mounts: commands of a shell that mount more; `$0` is the root.
        user: numbers of user and group.
        """
        steps = ["set -e", _KERNEL, mounts, *([] if network else ["ip link set lo up"])]
        # The shell stays, and dies with `unshare`: a process that changes its user would not.
        chroot = f'chroot --userspec={user} --groups= "$0" "$@"'
        enter = "; ".join([*steps, chroot, "exit $?"])
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return [*unshare, *([] if network else ["--net"]), "sh", "-c", enter, str(self.root), *line]

    def run(self, *line: str, network: bool = True, status: int = 0) -> str:
        """Its output. AssertionError: it ended otherwise. Skips the test if no mirror answers."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        environment["DEBIAN_FRONTEND"] = "noninteractive"
        done = subprocess.run(
            self.command(*line, network=network),
            capture_output=True,
            text=True,
            env=environment,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        output = done.stdout + done.stderr
        if done.returncode != status and re.search(_UNREACHABLE, output):
            pytest.skip("needs a mirror of Debian that can be reached")
        assert done.returncode == status, output
        return output

    def install(self, *names: str) -> None:
        """By apt, with the packages that they depend on."""
        self.run("apt-get", "install", "-y", "-q", "--no-install-recommends", *names)

    def start(
        self,
        line: Sequence[str],
        log: Path,
        mounts: str = MACHINE,
        user: str = "0:0",
        beside: subprocess.Popen[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """A server in the network of another one, or in one of its own. mounts, user: see
        `command`.
        """
        words = self.command(*line, network=beside is not None, mounts=mounts, user=user)
        if beside is not None:
            words = ["nsenter", f"--net=/proc/{beside.pid}/ns/net", *words]
        with log.open("ab") as stream:
            server = subprocess.Popen(
                words, stdout=stream, stderr=stream, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            )
        ours = Path("/proc/self/ns/net").readlink()
        eventually(lambda: Path(f"/proc/{server.pid}/ns/net").readlink() != ours, "its network")
        return server


@contextmanager
def network_of(server: subprocess.Popen[bytes]) -> Iterator[None]:
    """Sockets that this thread opens, and threads that it starts, are in the server's network."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{server.pid}/ns/net", os.O_RDONLY)
    try:
        enter(theirs)
        yield
    finally:
        enter(ours)
        os.close(ours)
        os.close(theirs)


@contextmanager
def bare_debian(temporary: pytest.TempPathFactory) -> Iterator[BareDebian]:
    """A copy to do with as one likes, removed at the end. debootstrap runs once in a session, also
    where several processes run its tests.
    """
    if reason := why_not():
        pytest.skip(reason)
    session = temporary.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        session = session.parent
    made = session / "bare-debian"
    with (session / "bare-debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _bootstrap(made)
    root = temporary.mktemp("debian") / "root"
    subprocess.run(["cp", "-a", "--reflink=auto", made, root], check=True)
    try:
        yield BareDebian(root)
    finally:
        shutil.rmtree(root)


def _bootstrap(made: Path) -> None:
    begun = made.with_suffix(".begun")
    shutil.rmtree(begun, ignore_errors=True)
    line = ["debootstrap", "--variant=minbase", SUITE, str(begun), mirror()]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if re.search(_UNREACHABLE, done.stdout + done.stderr):
        pytest.skip("needs a mirror of Debian that can be reached")
    assert done.returncode == 0, done.stdout + done.stderr
    # Nothing here outlives the test, so nothing waits for the disk.
    (begun / "etc/dpkg/dpkg.cfg.d/no-sync").write_text("force-unsafe-io\n")
    begun.rename(made)
