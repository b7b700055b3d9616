"""Types of options: what the file may say, what the settings hold, and how it is written back.

Each type is `Annotated[T, Option(...)]`. Its check takes a plain value of YAML and returns the
value of the settings, or raises ValueError with a whole sentence: what was expected, and what was
found.

The workers import this with `options`, so it must not load pydantic, which asks these types how to
check.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

from spamguard import times
from spamguard.config import values
from spamguard.config.values import Endpoint, HostPort, Protocol, describe_value
from spamguard.users import RESERVED_CLASSES

NON_TEACHING_ROLES = ("neutral", "trash", "ignored")  # of folders that teach nothing


def _core_schema() -> Any:
    """Pydantic's words for a type. Only processes that read a file have loaded it."""
    from pydantic_core import core_schema  # noqa: PLC0415  workers must not load it

    return core_schema


@dataclass(frozen=True)
class Option:
    """How the values of an option are written.

    Parameters
    ----------
    check : from the value of the file to the value of the settings; ValueError.
    write : from the value of the settings to the file's, where they differ.
    """

    check: Callable[[object], Any]
    write: Callable[[Any], Any] = lambda value: value

    def __get_pydantic_core_schema__(self, _: object, __: object) -> Any:
        return _core_schema().no_info_plain_validator_function(self.check)


class Shorthand(NamedTuple):
    """A group of options that can be said in one word, which is the value of this key."""

    key: str

    def __get_pydantic_core_schema__(self, group: Any, handler: Any) -> Any:
        def expand(value: object) -> object:
            return value if isinstance(value, dict) else {self.key: value}

        return _core_schema().no_info_before_validator_function(expand, handler(group))


class Checked(NamedTuple):
    """A value that is looked at as a whole once each of its parts is right; ValueError."""

    check: Callable[[Any], None]

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        def validate(value: Any) -> Any:
            self.check(value)
            return value

        return _core_schema().no_info_after_validator_function(validate, handler(kind))


class _Mapping:
    def __get_pydantic_core_schema__(self, pairs: Any, handler: Any) -> Any:
        key, value = get_args(get_args(pairs)[0])
        inner = handler.generate_schema(dict.__class_getitem__((key, value)))
        return _core_schema().no_info_after_validator_function(
            lambda found: tuple(found.items()), inner
        )


MAPPING = _Mapping()
"""Metadata of a mapping in the file, which is a tuple of pairs in the settings."""


def _check_not_empty(value: Any) -> None:
    if not value:
        raise ValueError("expected at least one, found none")


AT_LEAST_ONE = Checked(_check_not_empty)
"""Metadata of a list or mapping that may not be empty."""


def _refuse_constant(_: object) -> None:
    raise ValueError("leave it out, it cannot be changed")


CONSTANT = Option(_refuse_constant)
"""Metadata of what no file changes."""
ConstantNumber = Annotated[int, CONSTANT]
ConstantSeconds = Annotated[float, CONSTANT]


def _mismatch(expected: str, value: object) -> ValueError:
    """The error about a value that is something else than what was expected."""
    return ValueError(f"expected {expected}, found {describe_value(value)}")


def pattern_option(pattern: str, expected: str, *, empty: bool = False) -> Option:
    """A text. empty: it may be empty, too."""
    if empty:
        pattern = f"({pattern})?"

    def check(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise _mismatch(expected, value)

    return Option(check)


def _number_option(
    kind: type[int | float], name: str, minimum: float, maximum: float, example: str = ""
) -> Option:
    def check(value: object) -> float:
        if (
            isinstance(value, int | kind)
            and not isinstance(value, bool)
            and minimum <= value <= maximum
        ):
            return kind(value)
        raise _mismatch(f"{name} from {minimum} to {maximum:,}{example}", value)

    return Option(check)


# ---- numbers and truth values


def _check_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _mismatch("true or false", value)


integer_option = partial(_number_option, int, "a whole number")
_probability_option = partial(_number_option, float, "a probability", example=" such as 0.95")

Seconds = Annotated[float, Option(values.parse_seconds, times.format_duration)]
Days = Annotated[int, Option(values.parse_days, lambda value: f"{value}d")]
Size = Annotated[int, Option(values.parse_size, values.size_text)]
KeptLessons = Annotated[
    values.KeptLessons,
    Option(values.parse_kept_lessons, lambda value: value.number or str(value)),
]
Count = Annotated[int, integer_option(1, 1_000_000)]
HourOfDay = Annotated[int, integer_option(0, 23)]
DailyLimit = Annotated[int, integer_option(0, 1_000_000)]
Processes = Annotated[int, integer_option(0, 1024)]
Flag = Annotated[bool, Option(_check_flag)]
Probability = Annotated[float, _probability_option(0, 1)]
SpamThreshold = Annotated[float, _probability_option(0.5, 0.999999)]  # some mail must be spam


# ---- paths

_VARIABLE_PATTERN = re.compile(r"%(?:[A-Za-z]|\{[^}]*\})")  # as Dovecot writes the name of a user
_MAX_SECRET_BYTES = 1000


def _check_path(value: object) -> Path:
    if isinstance(value, str) and value.startswith("/") and "\0" not in value:
        return Path(value)
    raise _mismatch("an absolute path", value)


def check_file(value: object) -> Path:
    path = _check_path(value)
    try:
        path.open("rb").close()
    except OSError as error:
        text = f"expected a file that can be read, found {describe_value(value)} ({error.strerror})"
        if isinstance(error, PermissionError):
            text += ": ask as root, or as the daemon's user, who must be able to read it"
        raise ValueError(text) from error
    return path


def check_secret_file(value: object) -> Path:
    """A file that only its owner and group can read, with a line in it."""
    path = check_file(value)
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise ValueError(f"expected a file that no others can read: chmod 0640 {path}")
        if not file.readline(_MAX_SECRET_BYTES).strip():
            raise _mismatch("a file with a password in its first line", value)
    return path


def check_key_pair(certificate: Path, key: Path) -> None:
    """ValueError for PEM files with which TLS cannot be offered: workers would end at once. Nothing
    is read where one of them is no regular file.
    """
    if not (certificate.is_file() and key.is_file()):
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")  # nobody is asked for one
    except ssl.SSLError as error:
        text = "expected a certificate and its key, without a password, in PEM files"
        raise ValueError(text) from error


def _check_maildir(value: object) -> str:
    if (
        isinstance(value, str)
        and re.fullmatch(r"/[^\0\n]*[^\0\n/][^\0\n]*", value)
        and ".." not in value.split("/")
        and not _VARIABLE_PATTERN.search(value)
    ):
        return value.rstrip("/")
    expected = "the absolute path of a Maildir, * standing for any name"
    raise _mismatch(f"{expected}, such as /home/*/Maildir", value)


AbsolutePath = Annotated[Path, Option(_check_path, str)]
ReadableFile = Annotated[Path, Option(check_file, str)]
SecretFile = Annotated[Path, Option(check_secret_file, str)]
MaildirPattern = Annotated[str, Option(_check_maildir)]


# ---- addresses: where to listen, where mail goes on, who may connect

_HOST_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?"


def _check_place(endpoint: Endpoint) -> Endpoint:
    try:
        if endpoint.protocol is not Protocol.MILTER or endpoint.path is None:
            ip_address(endpoint.host)
    except ValueError as error:
        raise _mismatch("PROTOCOL://ADDRESS:PORT with an IP address", str(endpoint)) from error
    return endpoint


def _check_network(value: object) -> str:
    with suppress(ValueError):
        if isinstance(value, str):
            return str(ip_network(value))
    raise _mismatch("a network such as 192.0.2.0/24 or 2001:db8::/32", value)


def check_host_port(value: object) -> HostPort:
    with suppress(ValueError):
        place = values.parse_endpoint(f"smtp://{value}")
        if place.port:
            return HostPort(str(ip_address(place.host)), place.port)
    raise _mismatch("ADDRESS:PORT with an IP address, such as 127.0.0.1:9110 or [::1]:9110", value)


def _check_host(value: object) -> str:
    text = value.lower() if isinstance(value, str) else ""
    with suppress(ValueError):
        return str(ip_address(text))
    if re.fullmatch(_HOST_NAME, text):
        return text
    raise _mismatch("a host name or an IP address, without a port", value)


ListenerEndpoint = Annotated[
    Endpoint, Option(lambda value: _check_place(values.parse_endpoint(value)), str)
]
ScannerEndpoint = Annotated[
    Endpoint, Option(lambda value: _check_place(values.parse_scanner(value)), str)
]
NextHopEndpoint = Annotated[Endpoint, Option(values.parse_endpoint, str)]
ListenAddress = Annotated[HostPort, Option(check_host_port, str)]
Networks = tuple[Annotated[str, Option(_check_network)], ...]
Host = Annotated[str, Option(_check_host)]
FileName = Annotated[
    str, pattern_option(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "a name without /", empty=True)
]
ServerName = Annotated[str, pattern_option(_HOST_NAME, "a host name")]
HostName = Annotated[str, pattern_option(_HOST_NAME, "a host name", empty=True)]


# ---- names and texts

_LOCAL_PART = r"[!#-'*+\-./0-9=?A-Z^-~]{1,64}"
MAILBOX = re.compile(f"{_LOCAL_PART}@{_HOST_NAME}")
_SENDER = rf"(?:\*|{_LOCAL_PART})@{_HOST_NAME}"
_LABEL = r"[a-z][a-z0-9_-]{0,31}"
_VERDICT = rf"unsure|(?!(?:{'|'.join(RESERVED_CLASSES)})\Z){_LABEL}"
_CLASS = rf"(?!(?:{'|'.join((*RESERVED_CLASSES, 'class'))})\Z){_LABEL}"
_ACCOUNT = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?"
_MAIL_USER = r"(?! )[ -~\u00a1-\U0010ffff]{1,255}(?<! )"  # blanks within it only

Label = Annotated[str, pattern_option(_VERDICT, "the name of a class, spam or unsure")]
ClassName = Annotated[str, pattern_option(_CLASS, "a class such as spam or ham")]
FolderRole = Annotated[
    str,
    pattern_option(
        "|".join((*NON_TEACHING_ROLES, _CLASS)),
        f"a class such as spam or ham, or one of {', '.join(NON_TEACHING_ROLES)}",
    ),
]
RunAsUser = Annotated[str, pattern_option(_ACCOUNT, "the name of a user", empty=True)]
Account = Annotated[str, pattern_option(_ACCOUNT, "the name of a user")]
MailUser = Annotated[str, pattern_option(_MAIL_USER, "the name of a user of mail", empty=True)]
PersonName = Annotated[str, pattern_option(_MAIL_USER, "the name of somebody")]
MailAddress = Annotated[
    str, pattern_option(MAILBOX.pattern, "an address such as held@example.org", empty=True)
]
TeachingAddress = Annotated[
    str, pattern_option(MAILBOX.pattern, "an address such as spam@example.org")
]
SenderPattern = Annotated[
    str,
    pattern_option(
        _SENDER, "an address such as anna@example.org, or *@example.org for all of a domain"
    ),
]
Alias = Annotated[
    str,
    pattern_option(
        f"{_SENDER}|{_LOCAL_PART}",
        "an address, *@example.org for all of a domain, or what stands before the @",
    ),
]
HttpField = Annotated[
    str,
    pattern_option(
        r"[A-Za-z][A-Za-z0-9-]{0,69}", "the name of a field such as X-Remote-User", empty=True
    ),
]
UrlPath = Annotated[
    str,
    pattern_option(
        r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,60}){1,9}",  # stands as it is in URLs
        "a path such as /spam, without / at its end",
        empty=True,
    ),
]
RefusalText = Annotated[
    str, pattern_option(r"[ -~]{1,200}", "at most 200 characters of ASCII", empty=True)
]
SubjectPrefix = Annotated[
    str, pattern_option(r"[ -~]{1,60}", "at most 60 characters of ASCII", empty=True)
]
