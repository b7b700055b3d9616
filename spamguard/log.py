"""The log of all processes, on standard error, and how texts and this machine are named.

On a terminal the log is lines for people; the journal of systemd gets JSON objects. One event is
one line, whatever strangers write into names, addresses and subjects: letters that a terminal acts
on are escaped. `WarnOnce` logs a trouble once, however often it is met. By hand, because structlog
and python-json-logger would leave all this to us but the JSON.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_TEXT_FORMAT = "%(asctime)s %(name)s[%(process)d]: %(levelname)s: %(message)s"
# The journal takes a number before a line as its priority and does not show it (sd-daemon(3)).
_PRIORITY_BY_LEVEL = {
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
encode_json = json.JSONEncoder(ensure_ascii=False).encode
"""JSON that people can read, without a new encoder each time."""
_BARE_VALUE = re.compile(r'[^ "=]+')


def configure(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JournalFormatter() if _is_journal() else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def line_prefix(level: int) -> str:
    """The priority before a line on standard error; "" where that is not the journal."""
    return _priority_prefix(level) if _is_journal() else ""


def printable(text: str, replace: Callable[[str], str] = lambda _: "\ufffd") -> str:
    """The text with each letter that a terminal acts on replaced.

    >>> printable("a\\x1bb"), printable("a\\x1bb", escape_letter)
    ('a\ufffdb', 'a\\\\x1bb')
    """
    if text.isprintable():  # as nearly all texts are
        return text
    return "".join(letter if letter.isprintable() else replace(letter) for letter in text)


def escape_letter(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def quote_value(text: str) -> str:
    """The value of key=value in a line: as JSON unless it is one printable word."""
    is_printable = text.isprintable()
    if is_printable and _BARE_VALUE.fullmatch(text):
        return text
    return encode_json(text) if is_printable else json.dumps(text)


def message_name(digest: bytes) -> str:
    """What the log, `explain`, `history` and the page call a message: the start of its digest."""
    return digest.hex()[:12]


def log_lesson(
    logger: logging.Logger,
    user: str,
    way: Mapping[str, str],
    label: str,
    digest: bytes,
    outcome: str,
) -> None:
    """Log a lesson and its way: `by` an origin, or `from` and `to` folders. Nothing of what the
    message says is in the line.
    """
    facts = {"user": user, **way, "class": label or "-"}
    text = " ".join(
        f"{key}={repr(value) if key in ('from', 'to') else quote_value(value)}"
        for key, value in facts.items()
    )
    name = message_name(digest)
    extra = {"event": "lesson", "facts": lambda: facts | {"message": name, "outcome": outcome}}
    logger.info("lesson %s message=%s: %s", text, name, outcome, extra=extra)


class StandingWarning(NamedTuple):
    """A warning that is not over."""

    text: str
    since: float  # seconds since 1970


@dataclass
class WarnOnce:
    """Logs each trouble once, however often it is met, until it is over."""

    _logger: logging.Logger
    _level: int = logging.WARNING
    _standing: dict[Hashable, StandingWarning] = field(default_factory=dict)
    changes: int = 0  # of the standing warnings, so far

    def warn(self, key: Hashable, text: str, *values: object) -> None:
        """Log a trouble, given as to a logger, unless one of this key stands."""
        if key not in self._standing:
            self.note(key, text, *values)
            self._logger.log(self._level, text, *values)

    def report(self, text: str, *values: object) -> None:
        """Log the one trouble that the caller ever has: once, and again when its text changes."""
        key = text % values
        if key not in self._standing:
            self.clear()
            self.warn(key, "%s", key)

    def note(self, key: Hashable, text: str, *values: object) -> None:
        """Let a warning stand without logging it, because another process logs it."""
        if key not in self._standing:
            self._standing[key] = StandingWarning(text % values, time.time())
            self.changes += 1

    def clear(self, *keys: Hashable) -> None:
        """These troubles, or all, are over. One that comes back is logged again."""
        for key in keys or tuple(self._standing):
            self.changes += self._standing.pop(key, None) is not None

    def standing(self) -> Mapping[Hashable, StandingWarning]:
        return self._standing


class TextFormatter(logging.Formatter):
    """A line for each event."""

    def __init__(self) -> None:
        super().__init__(_TEXT_FORMAT, "%Y-%m-%d %H:%M:%S%z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class names it
        return printable(super().formatMessage(record), escape_letter)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the base class names it
        text = super().formatException(ei)
        return "\n".join(f"  {printable(line, escape_letter)}" for line in text.splitlines())


class JournalFormatter(logging.Formatter):
    """A JSON object for each event: level, logger, process, event, exception if there was one.

    One with `extra={"event": …, "facts": …}`, a word and a function that returns a mapping of
    texts, is that word, and each of these facts is a field.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "event": getattr(record, "event", None) or record.getMessage(),
        }
        fields = {**fields, **getattr(record, "facts", dict)(), **fields}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _priority_prefix(record.levelno) + printable(encode_json(fields), _escape_in_json)


def _escape_in_json(letter: str) -> str:
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def _priority_prefix(level: int) -> str:
    return f"<{_PRIORITY_BY_LEVEL.get(level, 6)}>"


def _is_journal() -> bool:
    """Whether standard error is the journal's socket ($JOURNAL_STREAM in systemd.exec(5))."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


# ---- the name of this machine

_SMTP_HOSTNAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")


def hostname() -> str:
    """The name of this machine as SMTP can write it (RFC 5321, section 2.3.5, and underscores),
    else "localhost".
    """
    name = socket.gethostname()
    return name if _SMTP_HOSTNAME.fullmatch(name) else "localhost"
