"""The HTTP API: an operation of FastAPI for each method and path, and its OpenAPI description.

FastAPI checks parameters and writes answers by the types that an operation declares, and describes
both from the same types, so the description cannot differ from what the API does. One thing is
checked here, because FastAPI does not: whether a query has parameters that the operation does not
know.

An operation does nothing but call the service. `app` turns errors into problems (RFC 9457).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from spamguard import __version__
from spamguard.records import Explanation
from spamguard.storage import Spool
from spamguard.web import models, requests
from spamguard.web.history import SEARCH_TERMS, parse_search
from spamguard.web.models import MAX_HOURS, MAX_ROWS
from spamguard.web.requests import PROBLEM_JSON
from spamguard.web.service import Service

ROOT = "/api/v1"
MESSAGE_TYPE = "message/rfc822"
_MAX_TEXT = 500  # letters


# ---- a call


class ApiCall:
    """One call of an operation, by a known person."""

    def __init__(self, request: Request) -> None:
        """HTTPException: the query has a parameter that is not there."""
        self.person, self.root_path = requests.current_person(request), requests.root_path(request)
        self._request, expected = request, _parameters(request)
        self.service: Service = request.app.state.service
        for name in request.query_params:
            if name not in expected:
                there_are = ", ".join(sorted(expected)) or "none"
                raise HTTPException(
                    400, f"unknown parameter {name[:60]!a}: there are {there_are} here"
                )

    @asynccontextmanager
    async def message(self) -> AsyncIterator[Spool]:
        """Read the message that was sent. No form of another site can have its media type."""
        fields, limit = self._request.headers, requests.MAX_MESSAGE_BYTES
        if fields.get("content-type", "").partition(";")[0].strip().lower() != MESSAGE_TYPE:
            raise HTTPException(415, f"send a message as {MESSAGE_TYPE}", {"Accept": MESSAGE_TYPE})
        with closing(Spool(self._request.scope["state"]["spool"])) as spool:
            async for piece in self._request.stream():
                spool.write(piece)
                if spool.size > limit:
                    raise HTTPException(413, f"a message has at most {limit:,} bytes")
            if not spool.size:
                raise HTTPException(422, "the message is empty")
            yield spool


Call = Annotated[ApiCall, Depends(ApiCall)]


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
    status = 400 if fault["type"] == "missing" else 422
    return HTTPException(status, f"{name}: {text[:1].lower()}{text[1:]} ({about})")


# ---- types of parameters


_CLASS, _ID = "[a-z][a-z0-9_-]{0,31}", "[0-9a-v]{16}"
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
Words = Annotated[
    str,
    Query(
        max_length=_MAX_TEXT,
        description="Words of sender, recipient or subject, and as the page's search box takes "
        f"them {', '.join(f'{name}:' for name in SEARCH_TERMS)}",
    ),
]
Before = Annotated[
    str,
    Query(pattern=f"^({_ID})?$", description="Only messages older than this verdict id"),
]
Limit = Annotated[
    int,
    Query(ge=1, le=MAX_ROWS, description=f"Number of rows, at most {MAX_ROWS}"),
]


# ---- operations


class AsciiJson(JSONResponse):
    """Writes ASCII only, so that texts of strangers cannot act on a terminal."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {"description": f"What went wrong (RFC 9457, {PROBLEM_JSON})"}
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
    call: Call, q: Words = "", before: Before = "", limit: Limit = 50
) -> models.JudgementPage:
    search = replace(parse_search(q, before), limit=limit)
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
        str,
        Query(
            max_length=_MAX_TEXT,
            description="`domain` of the message: everybody there; empty: its address only",
        ),
    ] = "",
) -> models.LessonReceipt:
    return await call.service.say_of_sender(call.person, verdict_id, label, domain)


@router.get("/quarantine", summary="List held messages")
async def quarantine(
    call: Call, q: Words = "", before: Before = "", limit: Limit = 50
) -> models.QuarantinePage:
    search = replace(parse_search(q, before), limit=limit)
    return await call.service.quarantine(call.person, search)


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
    hours: Annotated[int, Query(ge=1, le=MAX_HOURS, description="Number of hours")] = 24,
) -> models.Today:
    return await call.service.today(call.person, hours)


@router.get("/model", summary="What has been learnt")
async def model(call: Call) -> models.Model:
    return await call.service.model(call.person)


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
    for schema in schemas.values():  # pydantic cannot know that answers are always whole
        schema |= {"required": sorted(schema["properties"]), "additionalProperties": False}
        for field in schema["properties"].values():
            field.pop("default", None)
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {**document, "security": [{"token": []}]}
