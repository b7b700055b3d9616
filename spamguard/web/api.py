"""The HTTP API: an operation of FastAPI for each method and path, and its OpenAPI description.

FastAPI checks parameters and writes answers by the types that an operation declares, and describes
both from the same types, so the description cannot differ from what the API does. Two things are
checked here, because FastAPI does not: whether a query has parameters that the operation does not
know, and how long an operation may take.

An operation does nothing but call the service. `app` turns errors into problems (RFC 9457).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException

from spamguard import __version__
from spamguard.errors import BusyError
from spamguard.proxy.history import readable
from spamguard.records import Explanation
from spamguard.storage import Spool
from spamguard.times import MAX_TIME, parse_time
from spamguard.web import models, requests
from spamguard.web.auth import require_operator
from spamguard.web.history import Search
from spamguard.web.models import MAX_HOURS, MAX_ROWS
from spamguard.web.monitor import HealthReporter
from spamguard.web.requests import PROBLEM_JSON
from spamguard.web.service import Service

ROOT = "/api/v1"
MESSAGE_TYPE = "message/rfc822"
ANSWER_SECONDS = 60.0  # for any operation, after its message has arrived
_MAX_TEXT = 500  # letters


# ---- a call


class ApiCall:
    """One call of an operation, by a known person."""

    def __init__(self, request: Request, deadline: asyncio.Timeout) -> None:
        self._request, self._deadline = request, deadline
        self.person, self.root_path = requests.current_person(request), requests.root_path(request)
        self.service: Service = request.app.state.service
        self.monitor: HealthReporter = request.app.state.monitor

    @asynccontextmanager
    async def message(self) -> AsyncIterator[Spool]:
        """Read the message that was sent. No form of another site can have its media type."""
        fields, limit = self._request.headers, requests.MAX_MESSAGE_BYTES
        if fields.get("content-type", "").partition(";")[0].strip().lower() != MESSAGE_TYPE:
            raise HTTPException(415, f"send a message as {MESSAGE_TYPE}", {"Accept": MESSAGE_TYPE})
        if fields.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "send a message without compression")
        with closing(Spool(self._request.scope["state"]["spool"])) as spool:
            self._deadline.reschedule(None)  # `app` limits the time of a body
            async for piece in self._request.stream():
                spool.write(piece)
                if spool.size > limit:
                    raise HTTPException(413, f"a message has at most {limit:,} bytes")
            if not spool.size:
                raise HTTPException(422, "the message is empty")
            self._deadline.reschedule(asyncio.get_running_loop().time() + ANSWER_SECONDS)
            yield spool


async def _open_call(request: Request) -> AsyncIterator[ApiCall]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS) as deadline:
            call, expected = ApiCall(request, deadline), _parameters(request)
            for name in request.query_params:
                if name not in expected:
                    there_are = ", ".join(sorted(expected)) or "none"
                    text = f"unknown parameter {name[:60]!a}: there are {there_are} here"
                    raise HTTPException(400, text)
            yield call
    except TimeoutError:
        raise BusyError("this took too long: try again later") from None


Call = Annotated[ApiCall, Depends(_open_call, scope="function")]


def _parameters(request: Request) -> dict[str, str]:
    """Return the names of all parameters that the query of this operation may have, described."""
    parameters = request.scope["route"].dependant.query_params
    return {parameter.alias: parameter.field_info.description for parameter in parameters}


def value_refusal(request: Request, error: RequestValidationError) -> HTTPException:
    """Say which value FastAPI has refused, and what it should be; first that of the path."""
    fault = min(error.errors(), key=lambda e: (e["loc"][0] != "path", e["type"] != "missing"))
    if fault["loc"][0] == "path":
        return HTTPException(404, "there is no message with that verdict id")
    name, text = fault["loc"][1], fault["msg"]
    about = _parameters(request)[name]
    if fault["type"] == "missing":
        return HTTPException(400, f"the parameter {name} is missing: {about}")
    return HTTPException(422, f"{name}: {text[:1].lower()}{text[1:]} ({about})")


# ---- types of parameters

_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
# As seconds, 20261117 would be in 1970, and undo would take back everything.
_COMPACT_DAY = re.compile(r"(?:19|20)[0-9]{6}")


def _check_text(text: str) -> str:
    if text != readable(text, _MAX_TEXT):
        raise PydanticCustomError("text", "expected printable text")
    return text


def _parse_time(text: str) -> float:
    if _NUMBER.fullmatch(text) and not _COMPACT_DAY.fullmatch(text):
        return min(float(text), float(MAX_TIME))
    try:
        return parse_time(text, datetime.now(UTC))
    except ValueError:
        raise PydanticCustomError(
            "time",
            "expected seconds since 1970, a date such as 2026-11-17, or 2026-11-17T08:00:00Z",
        ) from None


def _empty_as(default: object) -> BeforeValidator:
    return BeforeValidator(lambda text: text or default)


_CLASS, _ID = "[a-z][a-z0-9_-]{0,31}", "[0-9a-v]{16}"
# In annotations below, what stands first is checked last.
Text = Annotated[str, Field(max_length=_MAX_TEXT), AfterValidator(_check_text)]
Time = Annotated[float, BeforeValidator(_parse_time), WithJsonSchema({"type": "string"})]
OptionalTime = Annotated[Time, _empty_as("0")]


def _optional(about: str, pattern: str = "", **checks: Any) -> Any:
    checks |= {"pattern": f"^({pattern})?$"} if pattern else {}
    return Query(description=about, **checks)


VerdictId = Annotated[
    str,
    Path(alias="id", pattern=f"^{_ID}$", description="The verdict id (`id=` in X-Spamguard)"),
]
ClassName = Annotated[
    str,
    Query(
        alias="class",
        pattern=f"^{_CLASS}$",
        description="What the message is: spam, ham, or a class of your own",
    ),
]
Before = Annotated[str, _optional("Only messages older than this verdict id", _ID)]
Limit = Annotated[
    int,
    Query(ge=1, le=MAX_ROWS, description=f"Number of rows, at most {MAX_ROWS}"),
    _empty_as(50),
]


# ---- operations


class AsciiJson(JSONResponse):
    """Writes ASCII only, so that texts of strangers cannot act on a terminal."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


@dataclass(frozen=True)
class ProblemDetails:
    """What went wrong (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "What went wrong (RFC 9457)",
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
_WITH_MESSAGE: dict[str, Any] = {
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                MESSAGE_TYPE: {"schema": {"description": "One message (RFC 5322), unchanged"}}
            },
        }
    },
}

router = APIRouter(
    prefix=ROOT,
    default_response_class=AsciiJson,
    generate_unique_id_function=lambda route: route.name,
    responses=_PROBLEM,
)


@router.post("/judge", summary="Judge a message", **_WITH_MESSAGE)
async def judge(call: Call) -> models.Opinion:
    async with call.message() as message:
        return await call.service.judge(call.person, message)


@router.post("/explain", summary="Explain the verdict on a message", **_WITH_MESSAGE)
async def explain(call: Call) -> models.VerdictReasons:
    async with call.message() as message:
        return _reasons(None, await call.service.explain(call.person, message))


@router.post("/learn", summary="Teach a message", **_WITH_MESSAGE)
async def learn(call: Call, label: ClassName) -> models.LessonReceipt:
    async with call.message() as message:
        return await call.service.learn(call.person, message, label)


@router.post("/forget", summary="Take back your vote on a message")
async def forget(
    call: Call,
    digest: Annotated[
        str,
        Query(
            pattern="^[0-9a-f]{32}$",
            description="The message digest, as judge and learn return it",
        ),
    ],
) -> models.LessonReceipt:
    return await call.service.forget(call.person, digest)


@router.get("/history", summary="List messages that passed")
async def history(
    call: Call,
    sender: Annotated[
        Text,
        _optional("Part of the envelope sender, or of the header's From", alias="from"),
    ] = "",
    recipient: Annotated[Text, _optional("Part of a recipient's address", alias="to")] = "",
    subject: Annotated[Text, _optional("Part of the subject")] = "",
    label: Annotated[str, _optional("The verdict: a class, unsure or not-scanned", _CLASS)] = "",
    taught: Annotated[str, _optional("The class that people have taught, or any", _CLASS)] = "",
    since: Annotated[OptionalTime, _optional("Not older than this time")] = 0.0,
    until: Annotated[OptionalTime, _optional("Older than this time")] = 0.0,
    before: Before = "",
    limit: Limit = 50,
) -> models.JudgementPage:
    search = Search(sender, recipient, subject, label, taught, since, until, before, limit)
    return await call.service.history(call.person, search)


@router.get("/history/{id}", summary="One of them, with its words")
async def judgement(call: Call, verdict_id: VerdictId) -> models.JudgementDetails:
    return await call.service.judgement(call.person, verdict_id)


@router.get("/history/{id}/why", summary="Why it got its verdict, then and now")
async def why(call: Call, verdict_id: VerdictId) -> models.VerdictReasons:
    return _reasons(*await call.service.why(call.person, verdict_id))


def _reasons(then: models.JudgementDetails | None, now: Explanation) -> models.VerdictReasons:
    return models.VerdictReasons(then, models.summarize_explanation(now))


@router.post("/history/{id}/learn", name="learnPassed", summary="Teach one of them")
async def learn_passed(call: Call, verdict_id: VerdictId, label: ClassName) -> models.LessonReceipt:
    return await call.service.learn_passed(call.person, verdict_id, label)


@router.post(
    "/history/{id}/forget",
    name="forgetPassed",
    summary="Take back your vote on one of them",
)
async def forget_passed(call: Call, verdict_id: VerdictId) -> models.LessonReceipt:
    return await call.service.forget_passed(call.person, verdict_id)


@router.post(
    "/history/{id}/sender",
    name="saySender",
    summary="Say what mail of its sender or domain is, or take that back",
)
async def say_sender(
    call: Call,
    verdict_id: VerdictId,
    label: Annotated[
        str,
        Query(alias="class", pattern="^(ham|spam)?$", description="ham or spam; empty: take back"),
    ],
    domain: Annotated[
        Text, _optional("`domain` of the message: everybody there; empty: its address only")
    ] = "",
) -> models.LessonReceipt:
    return await call.service.say_of_sender(call.person, verdict_id, label, domain)


@router.post("/undo", summary="Take back all votes of a user since a time")
async def undo(
    call: Call,
    user: Annotated[
        Text,
        Query(description="Whose votes; empty: the site's. Only operators may name other people"),
    ],
    since: Annotated[Time, Query(description="Since when")],
    dry_run: Annotated[
        bool, Query(description="true: only tell what undo would do"), _empty_as(False)
    ] = False,
) -> models.UndoResult:
    receipts = await call.service.undo(call.person, user, since, dry=dry_run)
    return models.UndoResult(user, since, dry_run, len(receipts), receipts)


@router.get("/quarantine", summary="List held messages")
async def quarantine(call: Call, before: Before = "", limit: Limit = 50) -> models.QuarantinePage:
    return await call.service.quarantine(call.person, Search(before=before, limit=limit))


@router.get("/quarantine/{id}", summary="One of them, with its header section")
async def held(call: Call, verdict_id: VerdictId) -> models.HeldMessageDetails:
    return await call.service.held(call.person, verdict_id)


@router.delete("/quarantine/{id}", summary="Delete it for good (operators)")
async def delete(call: Call, verdict_id: VerdictId) -> models.DeleteResult:
    await call.service.delete(call.person, verdict_id)
    return models.DeleteResult(verdict_id, deleted=True)


@router.post("/quarantine/{id}/release", summary="Deliver it, and learn it as ham")
async def release(call: Call, verdict_id: VerdictId) -> models.ReleaseResult:
    return await call.service.release(call.person, verdict_id)


@router.get("/today", summary="Numbers of the last hours")
async def today(
    call: Call,
    hours: Annotated[
        int, Query(ge=1, le=MAX_HOURS, description="Number of hours"), _empty_as(24)
    ] = 24,
) -> models.Today:
    return await call.service.today(call.person, hours)


@router.get("/model", summary="What has been learnt")
async def model(call: Call) -> models.Model:
    return await call.service.model(call.person)


@router.get("/classes", summary="The classes that can be taught")
async def classes(call: Call) -> models.ClassList:
    return models.ClassList(await call.service.classes(call.person))


@router.get(
    "/status",
    summary="Status of daemon and filter, as `spamguard status` (operators)",
)
async def status(call: Call) -> Mapping[str, Any]:
    return await call.service.status(call.person)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus (operators)",
    response_class=PlainTextResponse,
)
async def metrics(call: Call) -> Response:
    require_operator(call.person)
    return await call.monitor.metrics()


@router.get("/health", summary="Whether all processes work")
async def health(call: Call) -> models.Health:
    faults = await call.monitor.find_unwell()
    return models.Health(not faults, faults if call.person.operator else [])


# ---- the description


@router.get("/openapi.json", summary="This description")
async def openapi(call: Call) -> Mapping[str, Any]:
    return {**describe_api(), "servers": [{"url": call.root_path or "/"}]}


@cache
def describe_api() -> dict[str, Any]:
    """Return the OpenAPI description (3.1), without the address of the server."""
    document = get_openapi(
        title="spamguard",
        version=__version__,
        summary="Ask the filter, teach it, see what passed",
        routes=router.routes,
    )
    schemas = document["components"]["schemas"]
    schemas["Problem"] = TypeAdapter(ProblemDetails).json_schema()
    for schema in schemas.values():  # pydantic cannot know that answers are always whole
        schema |= {"required": sorted(schema["properties"]), "additionalProperties": False}
        for field in schema["properties"].values():
            field.pop("default", None)
    for operation in (o for path in document["paths"].values() for o in path.values()):
        for parameter in operation.get("parameters", ()):
            if parameter["schema"]["type"] == "string":  # an empty text is an absent one
                parameter["schema"].pop("default", None)
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {**document, "security": [{"token": []}]}
