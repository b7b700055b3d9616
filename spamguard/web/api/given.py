"""The query of a request, checked against what an operation takes. Values in, values out; RefusalError (400), UsageError (422)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from spamguard.errors import UsageError
from spamguard.history.row import readable
from spamguard.ids import is_id
from spamguard.records import LATEST
from spamguard.web.access.problems import refusal
from spamguard.web.api.operations import Parameter, Type
from spamguard.web.service.values import MOST, MOST_HOURS

LONGEST = 4096  # bytes of a query
_LONGEST_TEXT = 500
_MOST_FIELDS = 20
_CLASS = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
_DAY = re.compile(r"(?:19|20)[0-9]{6}")  # 20261117: as seconds it would be in 1970, and undo take back everything
_WHOLE = re.compile(r"[0-9]{1,6}")


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
    value = _READ[parameter.type](text)
    if value is None:
        raise UsageError(f"{parameter.name}: expected {_EXPECTED[parameter.type]}")
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


def _within(most: int) -> Callable[[str], int | None]:
    return lambda text: int(text) if _WHOLE.fullmatch(text) and 1 <= int(text) <= most else None


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    return lambda text: text if pattern.fullmatch(text) else None


_READ: dict[Type, Callable[[str], Any]] = {
    Type.TEXT: _text,
    Type.CLASS: _matching(_CLASS),
    Type.ID: lambda text: text if is_id(text) else None,
    Type.DIGEST: _matching(_DIGEST),
    Type.TIME: _time,
    Type.COUNT: _within(MOST),
    Type.HOURS: _within(MOST_HOURS),
    Type.FLAG: {"true": True, "false": False}.get,
}
_EXPECTED = {
    Type.TEXT: f"printable text of at most {_LONGEST_TEXT} letters",
    Type.CLASS: "the name of a class, such as spam or ham",
    Type.ID: "an id of 16 letters and digits",
    Type.DIGEST: "32 hexadecimal digits",
    Type.TIME: "seconds since 1970, a date such as 2026-11-17, or 2026-11-17T08:00:00Z",
    Type.COUNT: f"a whole number from 1 to {MOST}",
    Type.HOURS: f"a whole number from 1 to {MOST_HOURS}",
    Type.FLAG: "true or false",
}
SCHEMAS: dict[Type, dict[str, Any]] = {
    Type.TEXT: {"type": "string", "maxLength": _LONGEST_TEXT},
    Type.CLASS: {"type": "string", "pattern": f"^{_CLASS.pattern}$"},
    Type.ID: {"type": "string", "pattern": "^[0-9a-v]{16}$"},
    Type.DIGEST: {"type": "string", "pattern": f"^{_DIGEST.pattern}$"},
    Type.TIME: {"type": "string"},
    Type.COUNT: {"type": "integer", "minimum": 1, "maximum": MOST},
    Type.HOURS: {"type": "integer", "minimum": 1, "maximum": MOST_HOURS},
    Type.FLAG: {"type": "boolean"},
}
"""What a description says of them."""
