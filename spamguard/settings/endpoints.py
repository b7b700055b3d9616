"""Where mail and questions come in, and where mail goes on: values, and how people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Protocol(StrEnum):
    """How mail is spoken at an endpoint; the last three only ask for a verdict."""

    SMTP = "smtp"
    LMTP = "lmtp"
    MAILDIR = "maildir"
    RSPAMD = "rspamd"
    SPAMD = "spamd"
    MILTER = "milter"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen or where to hand on: smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/socket, maildir:/path …

    path is set for a socket or a Maildir, host and port otherwise.
    """

    protocol: Protocol
    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"{self.protocol}:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.protocol}://{host}:{self.port}"


_AT_HOST = r"://(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})"
_AT_PATH = r":(/[^/\x00][^\x00]*)"


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that `str` tells so; ValueError, with the forms there are. Port 0: any free one, to listen on."""
    forms = "smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path"
    return _parsed(text, "smtp|lmtp", "lmtp|maildir", forms)


def parse_scanner(text: str) -> Endpoint:
    """The same for where a `Scanner` listens."""
    forms = "rspamd://HOST:PORT, spamd://HOST:PORT, milter://HOST:PORT or milter:/path/to/socket"
    return _parsed(text, "rspamd|spamd|milter", "milter", forms)


def _parsed(text: str, at_hosts: str, at_paths: str, forms: str) -> Endpoint:
    if (at := re.fullmatch(rf"({at_hosts}){_AT_HOST}", text)) and int(at[4]) <= 65535:
        return Endpoint(Protocol(at[1]), at[2] or at[3], int(at[4]))
    if at := re.fullmatch(rf"({at_paths}){_AT_PATH}", text, re.DOTALL):
        return Endpoint(Protocol(at[1]), path=Path(at[2]))
    raise ValueError(f"{text!r} is no endpoint: write {forms}")


@dataclass(frozen=True, slots=True)
class Place:
    """An address and a port of this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
