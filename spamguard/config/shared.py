"""The options of a node: several machines that share one log of lessons in PostgreSQL.

`SharedSettings` is the group `shared` of the configuration. Its values are checked here as far as
that needs no database: what the connection string may hold, and that the driver is installed.

Must never import the driver, because every process imports this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

from spamguard.config import types
from spamguard.config.types import Option
from spamguard.config.values import describe_value


class DatabaseTls(NamedTuple):
    """How the connection to the database is protected.

    verify: TLS, with a certificate for the host's name. ca: PEM file of the authority that has
    signed it; None: those of the system.
    """

    verify: bool = True
    ca: Path | None = None


VERIFIED_TLS = DatabaseTls()

# ---- checks

_URI = re.compile(r"postgres(?:ql)?://(?:[^:@/]*(:[^@/]*)?@)?[^/]*(/[^?]+)?\S*")  # password, dbname
_KEY = re.compile(r"(?:^|[\s?&])([a-z_]+)\s*=")
_URL = re.compile(
    r"(?:https://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])|http://(?:127\.[0-9.]+|\[::1\]))"
    r"(?::[1-9][0-9]{0,4})?(?:/[!-~]*)?"
)
# Other options say these, or the daemon sets them itself.
_OWN_KEYS = {
    "password", "passfile", "sslmode", "sslrootcert", "options", "application_name",
    "target_session_attrs",
}  # fmt: skip


def check_database(value: object) -> str:
    """A connection string of PostgreSQL without password. ValueError."""
    text = value if isinstance(value, str) and value.isprintable() else ""
    keys = set(_KEY.findall(text))
    if uri := _URI.fullmatch(text):
        keys |= {
            name for name, part in zip(("password", "dbname"), uri.groups(), strict=True) if part
        }
    for key in sorted(keys & _OWN_KEYS):  # the value may hold the password: it is not shown
        raise ValueError(f"expected no {key} here: use password_file and tls, or leave it out")
    if not keys & {"dbname", "service"}:
        example = "host=db.example dbname=spamguard user=spamguard_node"
        raise ValueError(
            f"expected a connection string such as {example!r}, found {describe_value(value)}"
        )
    return text


def _check_tls(value: object) -> DatabaseTls:
    if value in ("verify", "no"):
        return DatabaseTls(value == "verify")
    if isinstance(value, dict) and value.keys() == {"ca"}:
        return DatabaseTls(ca=types.check_file(value["ca"]))
    raise ValueError(f"expected verify, no or {{ca: FILE}}, found {describe_value(value)}")


def _check_url(value: object) -> str:
    if isinstance(value, str) and (not value or _URL.fullmatch(value)):
        return value.rstrip("/")
    raise ValueError(
        "expected the page's address on this node, such as https://mx1.example:8443, found "
        f"{describe_value(value)}"
    )


Database = Annotated[str, Option(check_database)]
Tls = Annotated[
    DatabaseTls,
    Option(
        _check_tls,
        lambda tls: {"ca": str(tls.ca)} if tls.ca else "verify" if tls.verify else "no",
    ),
]
NodeName = Annotated[
    str,
    types.pattern_option(
        r"[ -~\u00a1-\U0010ffff]{1,60}", "at most 60 printable characters such as mx1", empty=True
    ),
]
NodeUrl = Annotated[str, Option(_check_url)]

# ---- the options


@dataclass(frozen=True)
class SharedSettings:
    """Several machines learn as one: they share the log of lessons in PostgreSQL."""

    database: Database  # connection string without password; of several hosts the primary is found
    password_file: types.SecretFile | None = None  # the node's password in its first line
    tls: Tls = VERIFIED_TLS
    url: NodeUrl = ""  # of this node's page, at which other nodes ask it; empty: they do not
    name: NodeName = ""  # of this node; empty: that of the machine


def check_driver(_: SharedSettings) -> None:
    """ValueError where it is not installed."""
    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: pip install 'spamguard[shared]'")
