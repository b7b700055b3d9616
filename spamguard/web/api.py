"""The HTTP API: a table of operations, from which routes, checks and the description are made.

A request is checked against the parameters of its operation, the operation runs, and its answer is
written by the type that the handler declares (`api_models`). So the OpenAPI description cannot
differ from what the API does. Handlers know nothing of HTTP beyond methods and paths.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spamguard import __version__
from spamguard.errors import BusyError, NotAllowedError, NotThereError, UsageError
from spamguard.keys import is_id
from spamguard.log import MAX_TIME
from spamguard.proxy.history_schema import readable
from spamguard.spool import Spool
from spamguard.web import api_models, auth
from spamguard.web.api_models import SCHEMA_PREFIX, json_schema, to_json
from spamguard.web.health import HealthReporter
from spamguard.web.models import (
    MAX_HOURS,
    MAX_ROWS,
    JudgementPage,
    MessageExplanation,
    Person,
    Preview,
    Search,
)
from spamguard.web.problems import refusal
from spamguard.web.service import Service

MAX_QUERY_BYTES = 4096
_MAX_TEXT = 500  # letters
_MAX_PARAMETERS = 20
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
# As seconds, 20261117 would be in 1970, and undo would take back everything.
_COMPACT_DAY = re.compile(r"(?:19|20)[0-9]{6}")
_INTEGER = re.compile(r"[0-9]{1,6}")


class ParameterType(NamedTuple):
    """The type of a parameter. read: returns None for a wrong value. expected: for messages."""

    read: Callable[[str], Any]
    expected: str
    schema: dict[str, Any]


class QueryParameter(NamedTuple):
    """A parameter of the query; required if the default is None."""

    name: str
    type: ParameterType
    about: str
    default: Any = None


def read_query(query: bytes, parameters: Sequence[QueryParameter]) -> dict[str, Any]:
    """Check a query, and return the value of each parameter. RefusalError, UsageError."""
    values = _parse_pairs(query)
    known = {one.name for one in parameters}
    for name in values:
        if name not in known:
            raise refusal(
                400,
                f"unknown parameter {name[:60]!a}: "
                f"there are {', '.join(sorted(known)) or 'none'} here",
            )
    return {one.name: _parameter_value(one, values) for one in parameters}


def _parse_pairs(query: bytes) -> dict[str, str]:
    if len(query) > MAX_QUERY_BYTES:
        raise refusal(400, f"a query has at most {MAX_QUERY_BYTES:,} bytes")
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise refusal(
            400, "the query is not UTF-8, percent-encoded, of at most 20 parameters"
        ) from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise refusal(400, "a parameter is there twice")
    return dict(pairs)


def _parameter_value(parameter: QueryParameter, values: Mapping[str, str]) -> Any:
    text = values.get(parameter.name)
    if text is None or (not text and parameter.default is not None):
        if parameter.default is None:
            raise refusal(400, f"the parameter {parameter.name} is missing: {parameter.about}")
        return parameter.default
    value = parameter.type.read(text)
    if value is None:
        raise UsageError(f"{parameter.name}: expected {parameter.type.expected}")
    return value


def _parse_text(text: str) -> str | None:
    return text if text == readable(text, _MAX_TEXT) else None


def _parse_time(text: str) -> float | None:
    if _NUMBER.fullmatch(text) and not _COMPACT_DAY.fullmatch(text):
        return min(float(text), float(MAX_TIME))
    try:
        found = datetime.fromisoformat(text.upper())
        return max(0.0, (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def _parse_id(text: str) -> str | None:
    return text if is_id(text) else None


def _pattern_type(pattern: re.Pattern[str], expected: str) -> ParameterType:
    return ParameterType(
        lambda text: text if pattern.fullmatch(text) else None,
        expected,
        {"type": "string", "pattern": f"^{pattern.pattern}$"},
    )


def _integer_type(maximum: int) -> ParameterType:
    def read(text: str) -> int | None:
        return int(text) if _INTEGER.fullmatch(text) and 1 <= int(text) <= maximum else None

    return ParameterType(
        read,
        f"a whole number from 1 to {maximum}",
        {"type": "integer", "minimum": 1, "maximum": maximum},
    )


TEXT_TYPE = ParameterType(
    _parse_text,
    f"printable text of at most {_MAX_TEXT} letters",
    {"type": "string", "maxLength": _MAX_TEXT},
)
CLASS_TYPE = _pattern_type(
    re.compile(r"[a-z][a-z0-9_-]{0,31}"), "the name of a class, such as spam or ham"
)
ID_TYPE = ParameterType(
    _parse_id, "an id of 16 letters and digits", {"type": "string", "pattern": "^[0-9a-v]{16}$"}
)
DIGEST_TYPE = _pattern_type(re.compile(r"[0-9a-f]{32}"), "32 hexadecimal digits")
TIME_TYPE = ParameterType(
    _parse_time,
    "seconds since 1970, a date such as 2026-11-17, or 2026-11-17T08:00:00Z",
    {"type": "string"},
)
COUNT_TYPE, HOURS_TYPE = _integer_type(MAX_ROWS), _integer_type(MAX_HOURS)
FLAG_TYPE = ParameterType({"true": True, "false": False}.get, "true or false", {"type": "boolean"})


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked request. item_id: the id in the path. root_path: as `auth.root_path`."""

    service: Service
    monitor: HealthReporter
    person: Person
    parameters: Mapping[str, Any] = field(default_factory=dict)
    item_id: str = ""
    spool: Spool | None = None
    root_path: str = ""

    @property
    def message(self) -> Spool:
        """The uploaded message. UsageError: there is none."""
        if self.spool is None:
            raise UsageError("a message is needed")
        return self.spool


@dataclass(frozen=True, slots=True)
class PlainText:
    """An answer that is not JSON."""

    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API: a row of the table."""

    method: str
    path: str
    name: str
    about: str
    run: Callable[[ApiRequest], Awaitable[Any]]
    parameters: tuple[QueryParameter, ...] = ()
    takes_message: bool = False
    operators_only: bool = False

    @property
    def answer_type(self) -> Any:
        """The return type that the handler declares."""
        return get_type_hints(self.run.method if isinstance(self.run, ServiceCall) else self.run)[
            "return"
        ]


# ---- handlers


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """Calls a method of the service with the person, then id, message and query, in this order."""

    method: Callable[..., Awaitable[Any]]

    async def __call__(self, asked: ApiRequest) -> Any:
        """Call it."""
        ids = [asked.item_id] if asked.item_id else []
        messages = [] if asked.spool is None else [asked.spool]
        return await getattr(asked.service, self.method.__name__)(
            asked.person, *ids, *messages, *asked.parameters.values()
        )


async def _explain(asked: ApiRequest) -> api_models.WhyTold:
    return _why_answer(await asked.service.explain(asked.person, asked.message))


async def _preview(asked: ApiRequest) -> Preview:
    return (
        await asked.service.preview(asked.person, asked.message, asked.parameters["class"])
    ).preview


async def _history(asked: ApiRequest) -> JudgementPage:
    fields = {_SEARCH_FIELDS.get(name, name): value for name, value in asked.parameters.items()}
    return await asked.service.history(asked.person, Search(**fields))


async def _why(asked: ApiRequest) -> api_models.WhyTold:
    return _why_answer(await asked.service.why(asked.person, asked.item_id))


def _why_answer(found: MessageExplanation) -> api_models.WhyTold:
    return api_models.WhyTold(found.then, api_models.to_explained(found.now))


async def _undo(asked: ApiRequest) -> api_models.Undone:
    user, since, dry = (
        asked.parameters["user"],
        asked.parameters["since"],
        asked.parameters["dry_run"],
    )
    done = await asked.service.undo(asked.person, user, since, dry=dry)
    return api_models.Undone(user, since, dry, len(done), done)


async def _delete(asked: ApiRequest) -> api_models.Deleted:
    await asked.service.delete(asked.person, asked.item_id)
    return api_models.Deleted(asked.item_id, deleted=True)


async def _words(asked: ApiRequest) -> api_models.Words:
    return api_models.Words(await asked.service.words(asked.person, asked.parameters["word"]))


async def _classes(asked: ApiRequest) -> api_models.Classes:
    return api_models.Classes(await asked.service.classes(asked.person))


async def _metrics(asked: ApiRequest) -> PlainText:
    answer = await asked.monitor.metrics()
    return PlainText(answer.body, answer.content_type)


async def _health(asked: ApiRequest) -> api_models.Health:
    problems = asked.monitor.find_unwell()
    return api_models.Health(not problems, problems if asked.person.operator else [])


async def _describe(asked: ApiRequest) -> dict[str, Any]:
    return {**describe_api(), "servers": [{"url": asked.root_path or "/"}]}


# ---- the table


_CLASS = QueryParameter(
    "class", CLASS_TYPE, "What the message is: spam, ham, or a class of your own"
)
_PAGE = (
    QueryParameter("before", ID_TYPE, "Only messages older than this verdict id", ""),
    QueryParameter("limit", COUNT_TYPE, f"Number of rows, at most {MAX_ROWS}", 50),
)
_SEARCH = (
    QueryParameter(
        "from",
        TEXT_TYPE,
        "Part of the envelope sender, or of the header's From",
        "",
    ),
    QueryParameter("to", TEXT_TYPE, "Part of a recipient's address", ""),
    QueryParameter("subject", TEXT_TYPE, "Part of the subject", ""),
    QueryParameter("label", CLASS_TYPE, "The verdict: a class, unsure or not-scanned", ""),
    QueryParameter("taught", CLASS_TYPE, "The class that people have taught, or any", ""),
    QueryParameter("since", TIME_TYPE, "Not older than this time", 0.0),
    QueryParameter("until", TIME_TYPE, "Older than this time", 0.0),
    *_PAGE,
)
_SEARCH_FIELDS = {"from": "sender", "to": "recipient"}  # of `Search`
_WORD = QueryParameter("word", TEXT_TYPE, "A word, or a token as explanations name it")
_DIGEST = QueryParameter("digest", DIGEST_TYPE, "The message digest, as judge and learn return it")
_UNDO = (
    QueryParameter(
        "user", TEXT_TYPE, "Whose votes; empty: the site's. Only operators may name other people"
    ),
    QueryParameter("since", TIME_TYPE, "Since when"),
    QueryParameter("dry_run", FLAG_TYPE, "true: only tell what undo would do", False),
)
_HOURS = QueryParameter("hours", HOURS_TYPE, "Number of hours", 24)

OPERATIONS = (
    Operation(
        "POST",
        "/judge",
        "judge",
        "Judge a message",
        ServiceCall(Service.judge),
        takes_message=True,
    ),
    Operation(
        "POST",
        "/explain",
        "explain",
        "Explain the verdict on a message",
        _explain,
        takes_message=True,
    ),
    Operation(
        "POST",
        "/learn",
        "learn",
        "Teach a message",
        ServiceCall(Service.learn),
        (_CLASS,),
        takes_message=True,
    ),
    Operation(
        "POST",
        "/preview",
        "preview",
        "Predict what a lesson would change",
        _preview,
        (_CLASS,),
        takes_message=True,
    ),
    Operation(
        "POST",
        "/forget",
        "forget",
        "Take back your vote on a message",
        ServiceCall(Service.forget),
        (_DIGEST,),
    ),
    Operation("GET", "/history", "history", "List messages that passed", _history, _SEARCH),
    Operation(
        "GET",
        "/history/{id}",
        "judgement",
        "One of them, with its words",
        ServiceCall(Service.judgement),
    ),
    Operation("GET", "/history/{id}/why", "why", "Why it got its verdict, then and now", _why),
    Operation(
        "POST",
        "/history/{id}/learn",
        "learnPassed",
        "Teach one of them",
        ServiceCall(Service.learn_passed),
        (_CLASS,),
    ),
    Operation(
        "POST",
        "/history/{id}/forget",
        "forgetPassed",
        "Take back your vote on one of them",
        ServiceCall(Service.forget_passed),
    ),
    Operation("POST", "/undo", "undo", "Take back all votes of a user since a time", _undo, _UNDO),
    Operation(
        "GET",
        "/quarantine",
        "quarantine",
        "List held messages",
        ServiceCall(Service.quarantine),
        _PAGE,
    ),
    Operation(
        "GET",
        "/quarantine/{id}",
        "held",
        "One of them, with its header section",
        ServiceCall(Service.held),
    ),
    Operation(
        "DELETE",
        "/quarantine/{id}",
        "delete",
        "Delete it for good",
        _delete,
        operators_only=True,
    ),
    Operation(
        "POST",
        "/quarantine/{id}/release",
        "release",
        "Deliver it, and learn it as ham",
        ServiceCall(Service.release),
    ),
    Operation(
        "GET", "/today", "today", "Numbers of the last hours", ServiceCall(Service.today), (_HOURS,)
    ),
    Operation("GET", "/model", "model", "What has been learnt", ServiceCall(Service.model)),
    Operation("GET", "/words", "words", "Counts of a word", _words, (_WORD,)),
    Operation("GET", "/classes", "classes", "The classes that can be taught", _classes),
    Operation(
        "GET",
        "/status",
        "status",
        "Status of daemon and filter, as `spamguard status`",
        ServiceCall(Service.status),
        operators_only=True,
    ),
    Operation(
        "GET", "/metrics", "metrics", "Metrics for Prometheus", _metrics, operators_only=True
    ),
    Operation("GET", "/health", "health", "Whether all processes work", _health),
    Operation("GET", "/openapi.json", "openapi", "This description", _describe),
)


ROOT = "/api/v1"

MESSAGE_TYPE = "message/rfc822"
_PROBLEM_SCHEMA = {
    "type": "object",
    "description": "What went wrong (RFC 9457)",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["detail", "status", "title", "type"],
    "additionalProperties": False,
}
_COMMON_PROBLEMS = {
    "400": "Malformed",
    "401": "No valid token",
    "421": "Wrong host name",
    "429": "Too many requests",
} | {
    "403": "Not yours, or too many lessons for a day",
    "414": "Address too long",
    "431": "Header too large",
    "503": "Busy, or a problem of the filter's own",
}
_MESSAGE_PROBLEMS = {"408": "Too slow", "413": "Too large", "415": f"Not {MESSAGE_TYPE}"}


@cache
def describe_api() -> dict[str, Any]:
    """Return the OpenAPI description (3.1), without the address of the server."""
    known: dict[str, dict[str, Any]] = {"Problem": _PROBLEM_SCHEMA}
    paths: dict[str, dict[str, Any]] = {}
    for one in OPERATIONS:
        paths.setdefault(ROOT + one.path, {})[one.method.lower()] = _describe_operation(one, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "spamguard",
            "version": __version__,
            "summary": "Ask the filter, teach it, see what passed",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(known.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe_operation(one: Operation, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    parameters = [_describe_parameter(parameter) for parameter in one.parameters]
    if "{id}" in one.path:
        parameters.insert(
            0,
            {
                "name": "id",
                "in": "path",
                "required": True,
                "description": "The verdict id (`id=` in X-Spamguard)",
                "schema": ID_TYPE.schema,
            },
        )
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about + (" (operators)" if one.operators_only else ""),
        "parameters": parameters,
        "responses": {"200": _success_response(one, known), **_problem_responses(one)},
    }
    if one.takes_message:
        content = {MESSAGE_TYPE: {"schema": {"description": "One message (RFC 5322), unchanged"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _describe_parameter(one: QueryParameter) -> dict[str, Any]:
    value = dict(one.type.schema)
    if one.default == "" and "pattern" in value:  # empty means absent
        value["pattern"] = f"^({value['pattern'][1:-1]})?$"
    if isinstance(one.default, int):  # or bool; other defaults mean absent
        value["default"] = one.default
    return {
        "name": one.name,
        "in": "query",
        "required": one.default is None,
        "description": one.about,
        "schema": value,
    }


def _success_response(one: Operation, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if one.answer_type is PlainText:
        return {"description": one.about, "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "description": one.about,
        "content": {"application/json": {"schema": json_schema(one.answer_type, known)}},
    }


def _problem_responses(one: Operation) -> dict[str, Any]:
    problems = dict(_COMMON_PROBLEMS)
    if "{id}" in one.path:
        problems["404"] = "Does not exist, or is not yours"
    if one.parameters or one.takes_message or "{id}" in one.path:
        problems["422"] = "Cannot be done with these values"
    if one.takes_message:
        problems |= _MESSAGE_PROBLEMS
    content = {"application/problem+json": {"schema": {"$ref": f"{SCHEMA_PREFIX}Problem"}}}
    return {
        status: {"description": about, "content": content}
        for status, about in sorted(problems.items())
    }


ANSWER_TIMEOUT = 60.0  # seconds, for any operation


def api_routes(service: Service, monitor: HealthReporter, max_bytes: int) -> list[BaseRoute]:
    """Make the routes. max_bytes: of a message."""
    by_path = groupby(sorted(OPERATIONS, key=lambda one: one.path), key=lambda one: one.path)
    return [
        _route(path, {one.method: one for one in found}, service, monitor, max_bytes)
        for path, found in by_path
    ]


def _route(
    path: str,
    operations: dict[str, Operation],
    service: Service,
    monitor: HealthReporter,
    max_bytes: int,
) -> BaseRoute:
    """One route for all methods of a path, so that 405 names all of them."""

    async def answer(request: Request) -> Response:
        operation = operations["GET" if request.method == "HEAD" else request.method]
        asked = _check_request(request, operation, service, monitor)
        if not operation.takes_message:
            return _write_answer(operation.answer_type, await _run_in_time(operation.run, asked))
        with closing(await _read_message(request, max_bytes)) as spool:
            return _write_answer(
                operation.answer_type,
                await _run_in_time(operation.run, replace(asked, spool=spool)),
            )

    return Route(ROOT + path, answer, methods=list(operations))


def _check_request(
    request: Request, operation: Operation, service: Service, monitor: HealthReporter
) -> ApiRequest:
    person = auth.current_person(request)
    if operation.operators_only and not person.operator:
        raise NotAllowedError("only operators may do this")
    name = request.path_params.get("id", "")
    if name and not is_id(name):
        raise NotThereError("there is no message with that verdict id")
    values = read_query(request.scope["query_string"], operation.parameters)
    return ApiRequest(service, monitor, person, values, name, root_path=auth.root_path(request))


async def _run_in_time(run: Callable[[ApiRequest], Awaitable[Any]], asked: ApiRequest) -> Any:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await run(asked)
    except TimeoutError:
        raise BusyError("this took too long: try again later") from None


async def _read_message(request: Request, max_bytes: int) -> Spool:
    """Read the body. No form of another site can have this media type."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != MESSAGE_TYPE:
        raise refusal(415, f"send a message as {MESSAGE_TYPE}", Accept=MESSAGE_TYPE)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise refusal(415, "send a message without compression")
    spool = auth.new_spool(request)
    try:
        async for piece in request.stream():
            spool.write(piece)
            if spool.size > max_bytes:
                raise refusal(413, f"a message has at most {max_bytes:,} bytes")
        if not spool.size:
            raise refusal(422, "the message is empty")
    except BaseException:
        spool.close()
        raise
    return spool


def _write_answer(kind: Any, found: Any) -> Response:
    """Write ASCII only, so that texts of strangers cannot act on a terminal."""
    if isinstance(found, PlainText):
        return Response(found.content, headers={"Content-Type": found.content_type})
    return Response(
        json.dumps(to_json(kind, found), allow_nan=False).encode("ascii"),
        media_type="application/json",
    )
