"""How the master starts processes: by exec of this interpreter, on the same modules, with its settings and without what is not theirs."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import cast

from spamguard import installed
from spamguard.settings import Settings

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # else numpy takes address space for each core, and nothing here is faster for it


def start(module: str, arguments: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """A process of this package, in a process group of its own: what is typed at a terminal goes to the master alone.

    -P and the path: it imports from where we do, never from the current directory. OSError, of which ReplacedError is one.
    """
    installed.check()
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment = os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=pass_fds, env=environment, process_group=0)  # noqa: S603


def start_with(
    module: str, settings: Settings, before: Sequence[str] = (), after: Sequence[str] = (), files: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """`python -m MODULE BEFORE… CHANNEL SETTINGS AFTER… FILES…`, and our end of its channel; that, settings and files by their numbers."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    written = _written(settings)
    try:
        inherited = [theirs.fileno(), written]
        return start(module, [*before, *map(str, inherited), *after, *map(str, files)], [*inherited, *files]), ours
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(written)


def _written(settings: Settings) -> int:
    """A file in memory with the settings, for one child to read; to be closed here."""
    descriptor = os.memfd_create("settings")
    with open(descriptor, "wb", closefd=False) as file:
        pickle.dump(settings, file)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def read(descriptor: int) -> Settings:
    """What `start_with` gives along, in the child, once. The master is the parent, and trusted."""
    with open(descriptor, "rb") as file:
        return cast(Settings, pickle.load(file))  # noqa: S301
