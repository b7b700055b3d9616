"""What other processes of a node ask the courier: the lease of settling, publishing, burning links.

The courier alone talks to the database. It listens at `courier.sock` in the state directory, where
a request and its answer are a line of JSON each, and hears at `courier.nudge` that lessons wait.
The lease lasts as long as its connection: a process that dies gives it back.

Every exchange has a time limit. Must never load the driver of the database.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from spamguard import process
from spamguard.errors import SharedError, UnavailableError

COURIER_SOCKET = "courier.sock"
_TIMEOUT = 7.0  # seconds; the courier's own exchanges end after five
_PUBLISH_TIMEOUT = 900.0  # a snapshot of some hundred megabytes, to a slow database


@contextmanager
def settle_lease(state: Path) -> Iterator[Callable[[], object] | None]:
    """Take the lease of settling for as long as the context; None: another node has it.

    Yields what publishes the snapshot that was settled (SharedError: it is not published).
    UnavailableError: nobody can tell, as the courier or the database is away.
    """
    with _connect(state) as connection:
        answer = _ask(connection, {"do": "lease"})
        publish = partial(_ask, connection, {"do": "publish"}, _PUBLISH_TIMEOUT)
        yield publish if answer.get("ok") else None


def burn(state: Path, identity: str) -> bool:
    """Use up a login link by its id; of all who ask, on all nodes, one gets True.

    UnavailableError: nobody can tell, as the courier or the database is away.
    """
    with _connect(state) as connection:
        return bool(_ask(connection, {"do": "burn", "id": identity}).get("ok"))


def forget(state: Path, node: str) -> None:
    """Drop what the database says of a node, by its id. UnavailableError: as of `burn`."""
    with _connect(state) as connection:
        _ask(connection, {"do": "forget", "node": node})


@contextmanager
def _connect(state: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT)
        try:
            with process.short_path(state) as directory:
                connection.connect(str(directory / COURIER_SOCKET))
        except OSError as error:
            raise UnavailableError(
                f"{state / COURIER_SOCKET}: the courier does not answer ({error.strerror}): "
                "start the daemon, or see its log"
            ) from error
        yield connection


def _ask(
    connection: socket.socket, request: Mapping[str, object], seconds: float = _TIMEOUT
) -> dict[str, Any]:
    """Send a request and return the answer."""
    try:
        connection.settimeout(seconds)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            answer: dict[str, Any] = json.loads(stream.readline())
    except (OSError, ValueError) as error:
        raise UnavailableError("the courier does not answer: see the daemon's log") from error
    if problem := answer.get("error"):
        kind = UnavailableError if answer.get("away") else SharedError
        raise kind(str(problem))
    return answer
