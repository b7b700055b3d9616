"""What the running daemon says about itself, and the lock that keeps a second one away.

At a Unix socket in the state directory the master sends a JSON object to everybody who connects,
and closes (`answer_clients`): it reads nothing. Only root and the daemon's user can reach the
socket. `ask_daemon` is the other side, for `spamguard status` and for commands that need to know
whether a daemon runs, and `ask_report` for the page and for monitors. `lock_state` allows one
daemon on a state directory: a second one would take the status socket away from the first, and
settle beside it. The kernel keeps the lock and drops it with the process; commands never ask for
it.

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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from spamguard import __version__, process
from spamguard.config.options import Settings
from spamguard.counters import DaemonReport
from spamguard.errors import StartError
from spamguard.storage import create_private

_log = logging.getLogger("spamguard.daemon")

STATUS_SOCKET = "daemon.sock"
LOCK_FILE = "daemon.lock"
ANSWER_TIMEOUT = 2.0  # seconds that a master may take to answer


def answer_clients(
    state: Path, selector: selectors.BaseSelector, describe: Callable[[], object], stack: ExitStack
) -> None:
    """Answer everybody who connects, until the stack ends. Mail flows without that, too."""
    path = state / STATUS_SOCKET
    try:
        listening = stack.enter_context(process.listen_at(path, 0o600))
    except OSError as error:
        text = "%s: cannot listen there (%s): `spamguard status` and monitors will find no daemon"
        _log.warning(text, path, error.strerror)
        return
    listening.setblocking(False)

    def answer() -> None:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors: the selector would call again at once
            _log.error("`spamguard status` is not answered any more (%s)", error.strerror)
            selector.unregister(listening)
            return
        with connection, suppress(OSError):  # the client may have gone
            connection.setblocking(False)
            connection.send(msgspec.json.encode(describe()))

    selector.register(listening, selectors.EVENT_READ, answer)


def ask_daemon(state: Path) -> dict[str, Any] | None:
    """Return what the daemon on this state directory says; None: none runs.

    `pid` is always there. If it is the only key, the daemon does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        try:
            process.connect(connection, state / STATUS_SOCKET)
            pid, _ = process.peer_credentials(connection)
        except OSError:  # nobody listens, or accepted for so long that the queue is full
            return None
        try:
            with connection.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.read())
        except (OSError, ValueError):
            return {"pid": pid}
    return answer


def ask_report(state: Path) -> DaemonReport:
    """Return what the daemon tells its page and monitors: if it does not answer, just that."""
    return msgspec.convert((ask_daemon(state) or {}).get("report", {}), DaemonReport)


def lock_state(state: Path) -> ExitStack:
    """Keep a state directory for this daemon until the stack is closed, or the process ends.

    StartError: another daemon has the lock.
    """
    lock, path = ExitStack(), state / LOCK_FILE
    try:
        with suppress(FileExistsError):
            create_private(path).close()
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        lock.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise StartError(
            f"{state}: another daemon runs on it: stop that one (`systemctl stop spamguard` where "
            "it is a service), or name a state directory of its own for this one with `state`"
        ) from None
    except OSError as error:
        text = "%s: cannot be locked (%s): see to it that no other daemon runs there"
        _log.warning(text, path, error.strerror)
    return lock


def describe_daemon(settings: Settings) -> dict[str, object]:
    """Describe the running daemon, with the settings in force, in values for JSON."""
    return {
        "pid": os.getpid(),
        "version": __version__,
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
        "web": settings.web and {"listen": str(settings.web), "page": settings.web.page_url},
        "authserv_ids": settings.believed_servers,
        "personal": settings.personal,
    }
