"""Values of options as people write them: endpoints, choices, durations and sizes.

Pure: text in, values out, and back. An endpoint says where to
listen or where mail goes on (`smtp://HOST:PORT`, `lmtp:/path/socket`); a duration is seconds
(`30s`, `1.5h`), a size is bytes (`20MB`, `512KiB`). Each parser raises ValueError with a whole
sentence: what was expected, and what was found.
"""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from spamguard import times

# ---- endpoints


class Protocol(StrEnum):
    """What is spoken at an endpoint; the last three only ask for a verdict."""

    SMTP = "smtp"
    LMTP = "lmtp"
    MAILDIR = "maildir"
    RSPAMD = "rspamd"
    SPAMD = "spamd"
    MILTER = "milter"


class Endpoint(NamedTuple):
    """Where to listen or where to hand mail on: a path for a socket or a Maildir, else host and
    port. As a text it is how people write it.
    """

    protocol: Protocol
    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.protocol}:{self.path or f'//{HostPort(self.host, self.port)}'}"


class HostPort(NamedTuple):
    """An address and a port of this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: object) -> Endpoint:
    """The endpoint of a listener or a next hop; port 0 is any free one, to listen on.

    >>> parse_endpoint("smtp://[::1]:25")
    Endpoint(protocol=<Protocol.SMTP: 'smtp'>, host='::1', port=25, path=None)
    """
    forms = "smtp://HOST:PORT, lmtp://HOST:PORT, lmtp:/path/to/socket or maildir:/path"
    return _parse(text, "smtp|lmtp", "lmtp|maildir", forms)


def parse_scanner(text: object) -> Endpoint:
    """The endpoint of a scanner."""
    forms = "rspamd://HOST:PORT, spamd://HOST:PORT, milter://HOST:PORT or milter:/path/to/socket"
    return _parse(text, "rspamd|spamd|milter", "milter", forms)


def _parse(value: object, host_protocols: str, path_protocols: str, forms: str) -> Endpoint:
    text = value if isinstance(value, str) else ""
    host = r"://(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})"
    if (match := re.fullmatch(rf"({host_protocols}){host}", text)) and int(match[4]) <= 65535:
        return Endpoint(Protocol(match[1]), match[2] or match[3], int(match[4]))
    if match := re.fullmatch(rf"({path_protocols}):(/[^/\x00][^\x00]*)", text, re.DOTALL):
        return Endpoint(Protocol(match[1]), path=Path(match[2]))
    raise ValueError(f"expected {forms}, found {describe_value(value)}")


def reaches(target: Endpoint, listening: Endpoint) -> bool:
    """Whether mail that is sent to the target arrives at a listener of ours, as the texts tell."""
    if target.path is not None or target.port != listening.port or not target.port:
        return False
    host = "127.0.0.1" if target.host.lower() == "localhost" else target.host
    is_everywhere = ip_address(listening.host).is_unspecified
    return host == listening.host or (is_everywhere and host in ("127.0.0.1", "::1"))


# ---- choices


class Position(StrEnum):
    """Where a listener sits in the way of the mail: that decides what it may refuse."""

    BEFORE_QUEUE = "before-queue"  # Postfix smtpd_proxy_filter: the sender waits for our answer
    AFTER_QUEUE = "after-queue"  # Postfix content_filter: a refusal would bounce to a forged sender
    STANDALONE = "standalone"  # we are the server that others deliver to


class Tls(StrEnum):
    """STARTTLS towards the next hop."""

    OFF = "off"
    # where it is offered; never on loopback and sockets; certificates are not checked (RFC 7435)
    OPPORTUNISTIC = "opportunistic"
    REQUIRED = "required"  # checked against the system's authorities, or nothing is handed on


class Action(StrEnum):
    """What is done with a judged message. Discarding does not exist."""

    TAG = "tag"
    QUARANTINE = "quarantine"
    REDIRECT = "redirect"
    DEFER = "defer"
    REJECT = "reject"


class OnError(StrEnum):
    """What happens to a message that cannot be judged."""

    PASS = "pass"  # noqa: S105  no password: the message is passed on unscored
    DEFER = "defer"  # 451: the client keeps it and tries again


class OddBytes(StrEnum):
    """What happens to a message with bare CR, bare LF or NUL."""

    AUTO = "auto"  # after the queue they are normalised, elsewhere refused
    REFUSE = "refuse"
    NORMALISE = "normalise"  # CR to a blank, LF to CRLF, NUL removed


class DigestPeriod(StrEnum):
    """How often users are told by mail what is held and unsure."""

    NONE = "none"
    DAILY = "daily"
    WEEKLY = "weekly"


class TeachingUser(StrEnum):
    """The user in whose name a lesson is that comes by mail."""

    ADDRESS = "address"  # the envelope sender's, in lower case
    LOCAL_PART = "local-part"


# ---- how many lessons are kept

_KEPT_PATTERN = r"([1-9][0-9]{0,4}) ?([dD]|days?|weeks?|months?|years?)"
MIN_KEPT_LESSONS = 1000  # until then verdicts are careful (corpora/RESULTS.md, "The first days")
_DAYS_OF_UNIT = {"d": 1.0, "w": 7.0, "m": 365 / 12, "y": 365.0}


class KeptLessons(NamedTuple):
    """Which lessons are kept: so many of the youngest, or those that are not older than so many
    days. One of the two is 0.
    """

    number: int = 0
    days: int = 0

    def __str__(self) -> str:
        """As `parse_kept_lessons` reads it.

        >>> str(KeptLessons(days=730))
        '730d'
        """
        return str(self.number) if self.number else f"{self.days}d"


def parse_kept_lessons(value: object) -> KeptLessons:
    """What the configuration says of it.

    >>> parse_kept_lessons(2_000_000), parse_kept_lessons("6 months")
    (KeptLessons(number=2000000, days=0), KeptLessons(number=0, days=182))
    """
    if isinstance(value, int) and value >= MIN_KEPT_LESSONS:
        return KeptLessons(number=value)
    if isinstance(value, str) and (match := re.fullmatch(_KEPT_PATTERN, value)):
        return KeptLessons(days=int(int(match[1]) * _DAYS_OF_UNIT[match[2][0].lower()]))
    expected = 'a number of lessons from 1000 on, or a time such as "2 years" or 90d'
    raise ValueError(f"expected {expected}, found {describe_value(value)}")


# ---- durations and sizes

_DURATION_PATTERN = r"[0-9]{1,16}(\.[0-9]{1,6})? ?[sSmMhHdD]"
_SIZE_PATTERN = r"[0-9]{1,16}(\.[0-9]{1,6})? ?([kKmMgG][iI]?)?[bB]"
MAX_SECONDS = 366 * 86400
MAX_BYTES = 1 << 50
_BYTES = {
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
_PASSWORD = re.compile(r"(?<=//)[^/\s]*@")


def parse_seconds(value: object) -> float:
    """Seconds of a duration, of a year at most."""
    if isinstance(value, str) and re.fullmatch(_DURATION_PATTERN, value):
        seconds = times.parse_duration(value)
        if 0 < seconds <= MAX_SECONDS:
            return seconds
    expected = "a duration such as 30s, 10m, 2h or 1d"
    raise ValueError(f"expected {expected}, found {describe_value(value)}")


def parse_days(value: object) -> int:
    """Days of a duration that is a whole number of them."""
    days, rest = divmod(parse_seconds(value), 86_400)
    if rest:
        raise ValueError(f"expected whole days such as 30d, found {value}")
    return int(days)


def parse_size(value: object) -> int:
    """Bytes of a size: MB are millions, MiB are 2**20 each.

    >>> parse_size("512 KiB")
    524288
    """
    if isinstance(value, str) and re.fullmatch(_SIZE_PATTERN, value):
        unit = next(unit for unit in _BYTES if value.lower().endswith(unit.lower()))
        size = float(value[: -len(unit)]) * _BYTES[unit]
        if 0 < size <= MAX_BYTES:
            return int(size)
    expected = "a size such as 512KiB, 20MB or 1GiB"
    raise ValueError(f"expected {expected}, found {describe_value(value)}")


def size_text(value: int) -> str:
    """A size in the shortest way that loses nothing.

    >>> size_text(512 << 20)
    '512MiB'
    """
    texts = [f"{value // length}{unit}" for unit, length in _BYTES.items() if value % length == 0]
    return min(texts, key=len)


def describe_value(value: object) -> str:
    """A value for an error message: one short line in YAML's terms, without a password that stands
    in an address.
    """
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    text = _PASSWORD.sub("…@", str(value))
    return repr(text if len(text) <= 60 else text[:57] + "…") if isinstance(value, str) else text
