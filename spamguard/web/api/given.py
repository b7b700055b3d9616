"""The query of a request: what it may hold, and what it holds. Values in, values out; RefusalError (400), UsageError (422)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from spamguard.errors import UsageError
from spamguard.history.row import readable
from spamguard.ids import is_id
from spamguard.times import LATEST
from spamguard.web.access.problems import refusal
from spamguard.web.service.values import MOST, MOST_HOURS

LONGEST = 4096  # bytes of a query
_LONGEST_TEXT = 500
_MOST_FIELDS = 20
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
_DAY = re.compile(r"(?:19|20)[0-9]{6}")  # 20261117: as seconds it would be in 1970, and undo take back everything
_WHOLE = re.compile(r"[0-9]{1,6}")


class Type(NamedTuple):
    """What a parameter holds. read: its value, None: it is none. expected: in words. schema: what a description says of it."""

    read: Callable[[str], Any]
    expected: str
    schema: dict[str, Any]


class Parameter(NamedTuple):
    """One of the query. default: None: it must be given."""

    name: str
    type: Type
    about: str
    default: Any = None


def read(query: bytes, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The value of each parameter."""
    given = _pairs(query)
    known = {one.name for one in parameters}
    for name in given:
        if name not in known:
            raise refusal(400, f"the parameter {name[:60]!a} is not known here: {', '.join(sorted(known)) or 'there are none'}")
    return {one.name: _value(one, given) for one in parameters}


def _pairs(query: bytes) -> dict[str, str]:
    if len(query) > LONGEST:
        raise refusal(400, f"a query has at most {LONGEST:,} bytes")
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise refusal(400, "the query is not UTF-8, percent-encoded, of at most 20 parameters") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise refusal(400, "a parameter is there twice")
    return dict(pairs)


def _value(parameter: Parameter, given: Mapping[str, str]) -> Any:
    text = given.get(parameter.name)
    if text is None or (not text and parameter.default is not None):
        if parameter.default is None:
            raise refusal(400, f"the parameter {parameter.name} is missing: {parameter.about}")
        return parameter.default
    value = parameter.type.read(text)
    if value is None:
        raise UsageError(f"{parameter.name}: expected {parameter.type.expected}")
    return value


def _text(text: str) -> str | None:
    return text if text == readable(text, _LONGEST_TEXT) else None


def _time(text: str) -> float | None:
    if _NUMBER.fullmatch(text) and not _DAY.fullmatch(text):
        return min(float(text), float(LATEST))
    try:
        found = datetime.fromisoformat(text.upper())
        return max(0.0, (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def _is_id(text: str) -> str | None:
    return text if is_id(text) else None


def _matched(pattern: re.Pattern[str], expected: str) -> Type:
    return Type(lambda text: text if pattern.fullmatch(text) else None, expected, {"type": "string", "pattern": f"^{pattern.pattern}$"})


def _whole(most: int) -> Type:
    def read(text: str) -> int | None:
        return int(text) if _WHOLE.fullmatch(text) and 1 <= int(text) <= most else None

    return Type(read, f"a whole number from 1 to {most}", {"type": "integer", "minimum": 1, "maximum": most})


TEXT = Type(_text, f"printable text of at most {_LONGEST_TEXT} letters", {"type": "string", "maxLength": _LONGEST_TEXT})
CLASS = _matched(re.compile(r"[a-z][a-z0-9_-]{0,31}"), "the name of a class, such as spam or ham")
ID = Type(_is_id, "an id of 16 letters and digits", {"type": "string", "pattern": "^[0-9a-v]{16}$"})
DIGEST = _matched(re.compile(r"[0-9a-f]{32}"), "32 hexadecimal digits")
TIME = Type(_time, "seconds since 1970, a date such as 2026-11-17, or 2026-11-17T08:00:00Z", {"type": "string"})
COUNT, HOURS = _whole(MOST), _whole(MOST_HOURS)
FLAG = Type({"true": True, "false": False}.get, "true or false", {"type": "boolean"})
