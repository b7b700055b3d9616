"""What a process beside the workers owes its parent, the master: to be gone when that is."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with(master: int) -> None:
    """The kernel ends this process by SIGTERM when its parent ends. master: its number."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != master:  # it has ended before we could ask for that
        sys.exit(1)
