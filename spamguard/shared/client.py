"""What other processes of a node ask the courier: to burn a link, and to forget a node.

The courier alone talks to the database. It listens at `courier.sock` in the state directory, where
a request and its answer are a line of JSON each; `SharedLog.await_positions` asks for a turn there.

Every exchange has a time limit. Must never load the driver of the database.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spamguard import process
from spamguard.errors import SharedError, UnavailableError
from spamguard.ledger.shared import COURIER_SOCKET

_TIMEOUT = 7.0  # seconds; the courier's own exchanges end after five


def burn(state: Path, identity: str) -> bool:
    """Use up a login link by its id; of all who ask, on all nodes, one gets True.

    UnavailableError: nobody can tell, as the courier or the database is away.
    """
    return bool(_ask(state, {"do": "burn", "id": identity}).get("ok"))


def forget(state: Path, node: str) -> None:
    """Drop what the database says of a node, by its id. UnavailableError: as of `burn`."""
    _ask(state, {"do": "forget", "node": node})


def _ask(state: Path, request: Mapping[str, object]) -> dict[str, Any]:
    """Send a request and return the answer."""
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
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise UnavailableError("the courier does not answer: see the daemon's log") from error
    if problem := answer.get("error"):
        kind = UnavailableError if answer.get("away") else SharedError
        raise kind(str(problem))
    return answer
