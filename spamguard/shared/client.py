"""What other processes of a node ask the courier: to burn a link, and to forget a node.

The courier alone talks to the database. It listens at `courier.sock` in the state directory, where
a request and its answer are a line of JSON each; `SharedLog.await_positions` asks for a turn there.

Every exchange has a time limit. Must never load the driver of the database.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spamguard import process
from spamguard.errors import SharedError, UnavailableError, error_text
from spamguard.ledger.shared import COURIER_SOCKET

_TIMEOUT = 7.0  # seconds; the courier's own exchanges end after five


def burn(state: Path, identity: str) -> bool:
    """Use up a login link by its id; of all who ask, on all nodes, one gets True.

    UnavailableError: nobody can tell, as the courier or the database is away.
    """
    return _ask(state, {"do": "burn", "id": identity})


def forget(state: Path, node: str) -> None:
    """Drop what the database says of a node, by its id. UnavailableError: as of `burn`."""
    _ask(state, {"do": "forget", "node": node})


def _ask(state: Path, request: Mapping[str, object]) -> bool:
    """Send a request; whether the courier did it."""
    path = state / COURIER_SOCKET
    try:
        line = process.ask(path, json.dumps(request).encode(), _TIMEOUT)
        answer: dict[str, Any] = json.loads(line)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"{path}: the courier does not answer ({error_text(error)}): start the daemon, or see "
            "its log"
        ) from error
    if problem := answer.get("error"):
        kind = UnavailableError if answer.get("away") else SharedError
        raise kind(str(problem))
    return bool(answer.get("ok"))
