"""The verdict on a message, from our own scanner door: a client of spamd's protocol.

So an account's mail is judged, kept in the history and counted as at every other door.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import NamedTuple

from spamguard.errors import SpamguardError, error_text
from spamguard.imap.bodies import Body
from spamguard.process import connect

_SECONDS = 60.0
_MAX_ANSWER_BYTES = 4 << 20  # the message's header section is part of it
_OURS = re.compile(rb"^X-Spamguard:[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*", re.MULTILINE)
_LABEL = re.compile(rb"X-Spamguard:\s*([a-z0-9_-]+);")


class NoVerdictError(SpamguardError):
    """The door is closed or busy: try again later."""


class Answer(NamedTuple):
    """A verdict. field: ours, signed, without line end; b"" if the message could not be judged."""

    field: bytes = b""
    is_spam: bool = False
    label: str = ""


NO_VERDICT = Answer()


def ask(door: Path, body: Body, user: str) -> Answer:
    """Have a user's message judged. NoVerdictError."""
    head = f"HEADERS SPAMC/1.5\r\nUser: {user}\r\nContent-length: {body.size}\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connect(connection, door)
            connection.sendall(head.encode())
            for piece in body.pieces():
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("rb") as stream:
                first, _, content = stream.read(_MAX_ANSWER_BYTES).partition(b"\r\n\r\n")
    except OSError as error:
        raise NoVerdictError(f"{door}: nobody judges there ({error_text(error)})") from error
    if b" 0 EX_OK" not in first:
        raise NoVerdictError(f"{door}: no verdict ({first[:80].decode('latin-1')})")
    field = _OURS.search(content)
    # Our fields come before all others: one further down is the message's own.
    if field is None or content[: field.start()].count(b"\n") > 2:
        return NO_VERDICT
    label = _LABEL.match(field[0])
    return Answer(field[0], b"Spam: True" in first, label[1].decode() if label else "")
