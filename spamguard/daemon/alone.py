"""One daemon on one state directory: a second one would take the socket for lessons away from the first, and settle beside it.

The kernel keeps the lock and drops it with the process, however that ends; what lies in the file counts for nothing. Commands beside
a daemon never ask for it. Must never keep a daemon from starting where files cannot be locked.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from spamguard.daemon import desk
from spamguard.errors import StartError
from spamguard.hostname import hostname

NAME = "daemon.lock"

_log = logging.getLogger("spamguard.daemon")


class Claim:
    """A state directory as ours alone, until `release` or the end of this process. StartError: it is another daemon's."""

    def __init__(self, state: Path) -> None:
        self._descriptor = -1
        try:
            self._descriptor = os.open(state / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise _taken(state, desk.ask(state) or {}) from None
        except OSError as error:
            _log.warning("%s: cannot be locked (%s): see to it that no other daemon runs there", state / NAME, error.strerror)

    def release(self) -> None:
        """Let another daemon have it; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def explained(state: Path, error: StartError) -> StartError:
    """Why a daemon cannot start there: what it has met, unless that is due to another one. error: as it is without."""
    told = desk.ask(state)
    return error if told is None else _taken(state, told)


def _taken(state: Path, told: Mapping[str, object]) -> StartError:
    pid, host = told.get("pid"), told.get("host", hostname())
    who = f"another daemon, pid {pid}," if isinstance(pid, int) else "another daemon"
    how = "stop that one (`systemctl stop spamguard` where it is a service)"
    if host != hostname():  # pids of containers say nothing to one another
        who = f"another daemon, on {host},"
        how = "let that one end before this one begins (of containers that share a volume: replace, do not roll)"
    return StartError(f"{state}: {who} runs on it: {how}, or name a state directory of its own for this one with `state`")
