"""The name of this machine, for servers and header fields. It may be called anything; what is told is a name that SMTP can say."""

from __future__ import annotations

import re
import socket

_PLAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")


def hostname() -> str:
    """In ASCII letters, digits, dots, - and _ (RFC 5321, section 2.3.5, and what machines have besides), where need be as RFC 3490
    writes it; "localhost" for a name that cannot be written so."""
    name = socket.gethostname()
    try:
        found = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        found = ""
    return found if _PLAIN.fullmatch(found) else "localhost"
