"""Accounts: mail of people that is reached by IMAP only, and what is known of its providers.

`Account` is an entry of `accounts` in the configuration. It names where its secret is; the secret
itself is read by `Account.read_secret`, at each login, so that a new password needs no restart.
`providers` are those that are known: their servers, what they refuse and what helps.

Every process imports this, so it must load neither pydantic nor a library of IMAP.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

from spamguard.config import types
from spamguard.config.types import MAPPING, Option, pattern_option
from spamguard.config.values import describe_value
from spamguard.errors import SecretError, error_text

_SECONDS = 60.0  # that a command may take
_MAX_SECRET_BYTES = 10_000


class AccountTls(StrEnum):
    """How the connection is protected. Certificates are always verified."""

    TLS = "tls"
    STARTTLS = "starttls"
    NONE = "none"  # to this machine only


class Mode(StrEnum):
    """What is done to the account's mail; each does what those before it do."""

    LOOK = "look"  # nothing is written
    FLAG = "flag"
    MOVE = "move"


class UnreadMoves(StrEnum):
    """What it means that mail came into Junk unread: the provider may have moved it."""

    WAIT = "wait"
    LEARN = "learn"


# ---- providers


class Provider(NamedTuple):
    """What people would have to look up (`providers.toml`)."""

    server: str = ""
    domains: Sequence[str] = ()  # of addresses
    refusal: str = ""  # what helps when it refuses the password
    filters: str = ""  # its own filter, which moves mail after it was delivered
    takes_passwords: bool = True  # else tokens only
    daily_bytes: int = 0  # that one may fetch; 0: not known
    token_url: str = ""
    device_url: str = ""
    scope: str = ""


@cache
def providers() -> dict[str, Provider]:
    """All providers by name; `other` is none of them."""
    text = files("spamguard.config").joinpath("providers.toml").read_text("utf-8")
    return {name: Provider(**values) for name, values in tomllib.loads(text).items()}


def find_preset(address: str, server: str = "") -> str:
    """The name of the provider of an address, as far as its domain or its server tells."""
    domain, server = address.rpartition("@")[2].lower(), server.lower()
    for name, each in providers().items():
        if domain in each.domains or (server and server == each.server):
            return name
    return "other"


def _check_preset(value: object) -> str:
    if isinstance(value, str) and value in providers():
        return value
    raise ValueError(f"expected one of {', '.join(providers())}, found {describe_value(value)}")


# ---- types of the options


ACCOUNT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
AccountName = Annotated[
    str,
    pattern_option(ACCOUNT_NAME.pattern, "a name such as anna@example.org, without blanks"),
]
Command = Annotated[str, pattern_option(r"\S.{0,999}", "a command such as pass show mail")]
Port = Annotated[int, types.integer_option(0, 65535)]
PresetName = Annotated[str, Option(_check_preset)]


# ---- the options


@dataclass(frozen=True)
class OAuth:
    """A token instead of a password, made with one's own registration at the provider."""

    client_id: types.PersonName  # of one's own application at the provider
    token_file: types.AbsolutePath  # has the refresh token; `spamguard account login` writes it
    client_secret_file: types.SecretFile | None = None  # of the application; None: it has none


@dataclass(frozen=True)
class Account:
    """Mail of one person that is reached by IMAP."""

    name: AccountName  # what it is called here, most often the address
    server: types.Host
    user: types.PersonName  # name to log in with, most often the address
    password_file: types.AbsolutePath | None = None  # its first line is the password
    password_command: Command | None = None  # its first line of output is the password
    credential: types.FileName = ""  # of systemd
    oauth: OAuth | None = None
    port: Port = 0  # 0: what is usual
    tls: AccountTls = AccountTls.TLS
    mode: Mode = Mode.LOOK
    # role of a folder, by a pattern of its name: a class, neutral, trash or ignored
    folders: Annotated[tuple[tuple[str, types.FolderRole], ...], MAPPING] = ()
    preset: PresetName = "other"
    unread_moves: UnreadMoves = UnreadMoves.WAIT

    @property
    def usual_port(self) -> int:
        """The port, or what is usual."""
        return self.port or (993 if self.tls is AccountTls.TLS else 143)

    @property
    def provider(self) -> Provider:
        """What is known of the provider."""
        return providers()[self.preset]

    def read_secret(self) -> str:
        """Return the password, or with `oauth` an access token; SecretError: there is none."""
        if self.oauth is not None:
            from spamguard.config import oauth  # noqa: PLC0415  few have one

            return oauth.access_token(self, self.oauth)
        if self.password_command is not None:
            return self.read_line(self.password_command)
        directory = os.environ.get("CREDENTIALS_DIRECTORY", "/run/credentials/spamguard.service")
        return self.read_line(self.password_file or Path(directory, self.credential))

    def read_line(self, source: Path | str) -> str:
        """Return the first line of a file, or of what a command prints; SecretError."""
        try:
            if isinstance(source, Path):
                with source.open("rb") as file:
                    line = file.readline(_MAX_SECRET_BYTES)
            else:
                line = _first_line(shlex.split(source))
            secret = line.decode().rstrip("\r\n")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SecretError(
                f"{self.name}: {source}: no password there ({error_text(error)}): the daemon's "
                "user must be able to read it"
            ) from error
        if not secret:
            raise SecretError(f"{self.name}: {source}: the first line is empty")
        return secret


def _first_line(command: list[str]) -> bytes:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_SECONDS, check=True
    )
    return done.stdout.partition(b"\n")[0]


def check_account(account: Account) -> None:
    """ValueError for options of an account that contradict each other."""
    ways = ("password_file", "password_command", "credential", "oauth")
    given = [name for name in ways if getattr(account, name)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ValueError(f"expected one of {', '.join(ways)}, found {found}")
    if account.password_file is not None:  # here, as without it another thing would be wrong, too
        types.check_secret_file(str(account.password_file))
    is_here = account.server == "localhost" or re.fullmatch(r"127\.[0-9.]+|::1", account.server)
    if account.tls is AccountTls.NONE and not is_here:
        raise ValueError(
            "expected tls or starttls: none, in clear text, is for a server on this machine"
        )
    if account.oauth is not None and not account.provider.token_url:
        raise ValueError("oauth needs a preset that gives tokens: gmail or microsoft")
    if not account.provider.takes_passwords and account.oauth is None:
        raise ValueError(account.provider.refusal)
    if find_spec("imapclient") is None:
        raise ValueError("needs IMAPClient: pip install 'spamguard[imap]'")
