"""The log of the daemon's processes, on standard error: lines for people, or JSON objects for the
journal of systemd.

Whatever strangers put into names, addresses and subjects: one event is one line, and nothing in it
speaks to a terminal. (A traceback has lines of its own for people, indented.)

Points in time, seconds since 1970, as people and programs are told them. What has no date is told
as the nearest that has one.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TextIO

_TEXT_FORMAT = "%(asctime)s %(name)s[%(process)d]: %(levelname)s: %(message)s"
_COLOUR_BY_LEVEL = {
    logging.WARNING: "33",
    logging.ERROR: "31",
    logging.CRITICAL: "31",
}  # SGR codes: yellow, red
# The journal takes a number in front of a line as its priority, and does not show it
# (sd-daemon(3)).
_PRIORITY_BY_LEVEL = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
_BARE_VALUE = re.compile(r'[^ "=]+')
_FOLDER_KEYS = ("from", "to")
# characters of a text in JSON: the journal cuts lines of 48 kB in two (journald.conf, LineMax)
_MAX_TEXT_LENGTH = 16_384
_MAX_WARNINGS = 10_000  # that one `WarnOnce` remembers
_encode_json = json.JSONEncoder(ensure_ascii=False).encode  # `dumps` would make one each time


def configure(environment: Mapping[str, str], level: int = logging.INFO) -> None:
    """Send everything from `level` on to standard error: JSON to the journal, colours to a
    terminal.
    """
    handler = logging.StreamHandler(sys.stderr)
    if _is_journal(environment):
        handler.setFormatter(JournalFormatter())
    else:
        handler.setFormatter(TextFormatter(colours=supports_colours(sys.stderr, environment)))
    logging.basicConfig(level=level, handlers=[handler])
    # Nothing of this is told, and each message costs looking for it (Logging HOWTO,
    # "Optimization").
    logging._srcfile = None
    logging.logThreads = logging.logMultiprocessing = False


def is_terminal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether it is one on which more can be done than to write lines."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def supports_colours(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether it is a terminal that knows colours, of somebody who wants them
    (https://no-color.org).
    """
    return is_terminal(stream, environment) and not environment.get("NO_COLOR")


def printable(text: str, replacement: str = "\ufffd") -> str:
    """The text with letters that a terminal acts on replaced.

    >>> printable("a\\x1bb", "?")
    'a?b'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else replacement for letter in text)


def line_prefix(environment: Mapping[str, str], level: int) -> str:
    """What a line on standard error begins with, so that the journal knows its level; nothing where
    it is not the journal's.
    """
    return _priority_prefix(level) if _is_journal(environment) else ""


def quote_value(text: str) -> str:
    """A text of a line, as in key=value: as JSON has it where it would be several or none, or have
    letters that act.
    """
    harmless = text.isprintable()
    return (
        text
        if harmless and _BARE_VALUE.fullmatch(text)
        else _encode_json(text)
        if harmless
        else json.dumps(text)
    )


def log_lesson(
    to: logging.Logger, user: str, way: Mapping[str, str], label: str, digest: bytes, what: str
) -> None:
    """A line for a lesson; nothing of what the message says is in it. way: `by` which it came, or
    `from` and `to` which folder.

    label: "" takes back what was said. what: became of it.
    """
    facts = {"user": user, **way, "class": label or "-"}
    told = " ".join(
        f"{key}={repr(value) if key in _FOLDER_KEYS else quote_value(value)}"
        for key, value in facts.items()
    )
    named = digest.hex()[:12]
    extra = {"event": "lesson", "facts": lambda: facts | {"digest": named, "outcome": what}}
    to.info("lesson %s message=%s: %s", told, named, what, extra=extra)


class StandingWarning(NamedTuple):
    """A warning that is not over. since: seconds since 1970."""

    text: str
    since: float


class WarnOnce:
    """Logs each trouble once, however often it is met, until it is over.

    Parameters
    ----------
    logger, level
        Where and how loud a trouble is logged.
    """

    def __init__(self, logger: logging.Logger, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._level = level
        self._standing: dict[Hashable, StandingWarning] = {}
        self.changes = 0  # of the standing warnings, so far

    def warn(self, key: Hashable, text: str, *values: object) -> None:
        """Log a trouble, unless one of this key stands. text, values: as loggers have them."""
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
        if key in self._standing:
            return
        if len(self._standing) >= _MAX_WARNINGS:  # the oldest may be logged again
            self._standing.pop(next(iter(self._standing)))
        self._standing[key] = StandingWarning(text % values, time.time())
        self.changes += 1

    def clear(self, *keys: Hashable) -> None:
        """These troubles, or all, are over. One that comes back is logged again."""
        for key in keys or tuple(self._standing):
            self.changes += self._standing.pop(key, None) is not None

    def standing(self) -> Mapping[Hashable, StandingWarning]:
        """The troubles that are not over, by key."""
        return self._standing


class TextFormatter(logging.Formatter):
    """A line for each event."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__(_TEXT_FORMAT)
        self._colours = colours

    # The names of these methods and of their arguments are the base class's.

    def formatTime(  # noqa: N802
        self,
        record: logging.LogRecord,
        datefmt: str | None = None,  # noqa: ARG002
    ) -> str:
        return f"{_format_second(int(record.created))},{int(record.msecs):03}"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = _escape_unprintable(super().formatMessage(record))
        code = _COLOUR_BY_LEVEL.get(record.levelno) if self._colours else None
        return f"\x1b[{code}m{line}\x1b[m" if code else line

    def formatException(self, ei: Any) -> str:  # noqa: N802
        text = super().formatException(ei)
        return "\n".join(f"  {_escape_unprintable(line)}" for line in text.splitlines())


class JournalFormatter(logging.Formatter):
    """A JSON object for each event: level, logger, process, message; exception where there was one.

    An event that says what it consists of (`extra={"event": …, "facts": …}`: a word, and what gives
    a mapping of texts) has each of these facts as a field, and the word as its message.
    """

    def format(self, record: logging.LogRecord) -> str:
        facts = record.facts() if hasattr(record, "facts") else {}
        found = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
        }
        found["message"] = record.event if hasattr(record, "event") else record.getMessage()
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        told = {
            key: _truncate(value) if isinstance(value, str) else value
            for key, value in (facts | found).items()
        }
        return f"{_priority_prefix(record.levelno)}{_escape_unprintable(_encode_json(_order_fields(told)), _escape_json)}"


@lru_cache(maxsize=1)
def _format_second(second: int) -> str:
    """As it is for all events of a second."""
    return time.strftime(logging.Formatter.default_time_format, time.localtime(second))


def _order_fields(told: dict[str, object]) -> dict[str, object]:
    """What every line has comes first."""
    first = {key: told[key] for key in ("level", "logger", "process", "message")}
    return first | told


def _truncate(text: str) -> str:
    """At most so long, and without what is no text in any encoding."""
    return text[:_MAX_TEXT_LENGTH].encode("utf-8", "backslashreplace").decode("utf-8")


def _escape_python(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _escape_json(letter: str) -> str:
    """Of a letter within a JSON text: all that is outside of texts is printable."""
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def _escape_unprintable(text: str, written: Callable[[str], str] = _escape_python) -> str:
    if text.isprintable():  # as nearly all are
        return text
    return "".join(letter if letter.isprintable() else written(letter) for letter in text)


def _priority_prefix(level: int) -> str:
    return f"<{_PRIORITY_BY_LEVEL.get(level, 6)}>"


def _is_journal(environment: Mapping[str, str]) -> bool:
    """Whether standard error is the journal's socket (systemd.exec, $JOURNAL_STREAM: its device and
    inode).
    """
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


MAX_TIME = 253_402_214_400
"""The last day of the year 9999: no later time has a date that could be shown."""


def utc_datetime(seconds: float) -> datetime:
    """In UTC."""
    return datetime.fromtimestamp(min(max(seconds, 0), MAX_TIME), UTC)


def rfc3339(seconds: float) -> str:
    """For programs, `2026-11-17T07:00:00+00:00`."""
    return utc_datetime(seconds).isoformat(timespec="seconds")


def local_time(seconds: float, *, exact: bool = False) -> str:
    """As people say it here, `2026-11-17 08:00`. exact: and the seconds."""
    return (
        utc_datetime(seconds)
        .astimezone()
        .strftime("%Y-%m-%d %H:%M:%S" if exact else "%Y-%m-%d %H:%M")
    )
