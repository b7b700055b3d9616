"""What the running daemon says about itself, and the lock that keeps a second one away.

`StatusSocket` is a Unix socket in the state directory. The master sends a JSON object to everybody
who connects, and closes: it reads nothing. Only root and the daemon's user can reach the socket.
`ask_daemon` is the other side, for `spamguard status` and for commands that need to know whether a
daemon runs, and `ask_report` for the page and for monitors. `StateLock` allows one daemon on a
state directory: a second one would take the status socket away from the first, and settle beside
it. The kernel keeps the lock and drops it with the process; commands never ask for it.

Must never make the master wait, never make a command wait for a master that hangs, and never keep a
daemon from starting where files cannot be locked.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import selectors
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from spamguard import __version__, process
from spamguard.config.options import Settings
from spamguard.counters import DaemonReport, pairs
from spamguard.errors import StartError
from spamguard.log import hostname

_log = logging.getLogger("spamguard.daemon")

STATUS_SOCKET = "daemon.sock"
LOCK_FILE = "daemon.lock"
ANSWER_TIMEOUT = 2.0  # seconds that a master may take to answer


@dataclass
class StatusSocket:
    """The master's end. describe: returns the answer, a value for JSON."""

    _selector: selectors.BaseSelector
    _describe: Callable[[], object]
    _listening: socket.socket | None = None

    def open(self, state: Path) -> None:
        """Listen in this directory. If that fails, mail flows all the same."""
        try:
            with process.short_path(state) as directory:
                self._listening = process.listen_at(directory / STATUS_SOCKET, 0o600)
        except OSError as error:
            text = (
                "%s: cannot listen there (%s): `spamguard status` and monitors will find no daemon"
            )
            _log.warning(text, state / STATUS_SOCKET, error.strerror)
            return
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._serve)

    def close(self) -> None:
        """Answer nobody any more; idempotent."""
        if self._listening is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None

    def _serve(self) -> None:
        if self._listening is None:
            return
        try:
            connection, _ = self._listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors are left: the selector would call again at once
            _log.error("`spamguard status` is not answered any more (%s)", error.strerror)
            self.close()
            return
        with connection, suppress(OSError):  # the client may have gone
            connection.setblocking(False)
            connection.send(msgspec.json.encode(self._describe()))


def ask_daemon(state: Path) -> dict[str, Any] | None:
    """Return what the daemon on this state directory says; None: none runs.

    `pid` is always there. If it is the only key, the daemon does not answer.
    """
    answer = _ask(state)
    if answer is not None:
        answer.pop("report", None)
    return answer


def ask_report(state: Path) -> DaemonReport:
    """Return what the daemon tells its page and monitors: if it does not answer, just that."""
    return msgspec.convert((_ask(state) or {}).get("report", {}), DaemonReport)


def _ask(state: Path) -> dict[str, Any] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        try:
            with process.short_path(state) as directory:
                connection.connect(str(directory / STATUS_SOCKET))
            pid, _ = process.peer_credentials(connection)
        except OSError:  # nobody listens, or accepted for so long that the queue is full
            return None
        try:
            with connection.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.read())
        except (OSError, ValueError):
            return {"pid": pid}
    return answer


class StateLock:
    """Keeps a state directory for this daemon until `release` or the end of the process.

    StartError: another daemon has the lock.
    """

    def __init__(self, state: Path) -> None:
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(state / LOCK_FILE, flags, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise _state_in_use(state, ask_daemon(state) or {}) from None
        except OSError as error:
            text = "%s: cannot be locked (%s): see to it that no other daemon runs there"
            _log.warning(text, state / LOCK_FILE, error.strerror)

    def release(self) -> None:
        """Let another daemon have it; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def explain_start_error(state: Path, error: StartError) -> StartError:
    """Return the error that names the other daemon if one runs there, else the given error."""
    answer = ask_daemon(state)
    return error if answer is None else _state_in_use(state, answer)


def _state_in_use(state: Path, answer: Mapping[str, object]) -> StartError:
    pid, host = answer.get("pid", "unknown"), answer.get("host", hostname())
    return StartError(
        f"{state}: another daemon, pid {pid} on {host}, runs on it: stop that one (`systemctl stop "
        "spamguard` where it is a service), or name a state directory of its own for this one with "
        "`state`"
    )


def describe_daemon(settings: Settings, report: DaemonReport) -> dict[str, object]:
    """Describe the running daemon, with the settings in force, in values for JSON."""
    counters = report.counters
    return {
        "pid": os.getpid(),
        "host": hostname(),
        "version": __version__,
        "began": report.began,
        "listeners": [
            {
                "listen": str(listener.listen),
                "position": str(listener.position),
                "next_hop": str(listener.next_hop.to),
                "tls": str(listener.next_hop.tls),
            }
            for listener in settings.listeners
        ],
        "keep": settings.keep and str(settings.keep),
        "accounts": [account.name for account in settings.accounts],
        "scanners": [str(scanner.listen) for scanner in settings.scanners],
        "metrics": settings.metrics and str(settings.metrics),
        "web": settings.web and {"listen": str(settings.web), "page": settings.web.page_url},
        "authserv_ids": settings.believed_servers,
        "personal": settings.personal,
        "not_served": report.absent,
        "scoring": report.scoring,
        "messages": _counter_rows(counters.messages, "verdict", "action"),
        "bytes": counters.bytes,
        "next_hop_errors": _counter_rows(counters.next_hop_errors, "next_hop", "kind"),
        "last_errors": [
            {"time": moment, "text": text}
            for moment, text in sorted(counters.last_errors.values(), reverse=True)[:8]
        ],
    }


def _counter_rows(counts: Mapping[str, int], first: str, second: str) -> list[dict[str, object]]:
    return [{first: one, second: other, "number": each} for (one, other), each in pairs(counts)]
