"""From the table of operations to routes: a request is checked, its operation is run, the answer is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spamguard.errors import BusyError, NotAllowedError, NotThereError
from spamguard.ids import is_id
from spamguard.spool import Spool
from spamguard.web.access import contract
from spamguard.web.access.problems import refusal
from spamguard.web.api import ROOT, given, openapi
from spamguard.web.api.operations import OPERATIONS, Asked, Operation, Text
from spamguard.web.api.schema import told
from spamguard.web.service.contract import Monitor, Service

ANSWER_SECONDS = 60.0  # for anything


def routes(service: Service, monitor: Monitor, most: int) -> list[BaseRoute]:
    """most: bytes of a message."""
    by_path = groupby(sorted(OPERATIONS, key=lambda one: one.path), key=lambda one: one.path)
    return [_route(path, {one.method: one for one in found}, service, monitor, most) for path, found in by_path]


def _route(path: str, operations: dict[str, Operation], service: Service, monitor: Monitor, most: int) -> BaseRoute:
    """One for all methods of a path, so that a wrong one is told all that are right."""

    async def answer(request: Request) -> Response:
        operation = operations["GET" if request.method == "HEAD" else request.method]
        asked = _asked(request, operation, service, monitor)
        if not operation.takes_message:
            return _written(operation.answer, await _in_time(operation.run, asked))
        with closing(await _message(request, most)) as spool:
            return _written(operation.answer, await _in_time(operation.run, replace(asked, spool=spool)))

    return Route(ROOT + path, answer, methods=list(operations))


def _asked(request: Request, operation: Operation, service: Service, monitor: Monitor) -> Asked:
    person = contract.person(request)
    if operation.operators and not person.operator:
        raise NotAllowedError("this is for operators")
    name = request.path_params.get("id", "")
    if name and not is_id(name):
        raise NotThereError("there is no such id")
    values = given.read(request.scope["query_string"], operation.parameters)
    return Asked(service, monitor, person, values, name, root=contract.root(request))


async def _in_time(run: Callable[[Asked], Awaitable[Any]], asked: Asked) -> Any:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await run(asked)
    except TimeoutError:
        raise BusyError("that took too long") from None


async def _message(request: Request, most: int) -> Spool:
    """The body of a request. Only this type: no form of a stranger's page can have it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != openapi.MESSAGE:
        raise refusal(415, f"a message is sent as {openapi.MESSAGE}", Accept=openapi.MESSAGE)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise refusal(415, "a message is sent as it is, not compressed")
    spool = contract.new_spool(request)
    try:
        async for piece in request.stream():
            spool.write(piece)
            if spool.size > most:
                raise refusal(413, f"a message may have {most:,} bytes")
        if not spool.size:
            raise refusal(422, "the message is empty")
    except BaseException:
        spool.close()
        raise
    return spool


def _written(kind: Any, found: Any) -> Response:
    """ASCII only: whatever strangers have written into mail, it speaks to no terminal and no encoding is wrong for it."""
    if isinstance(found, Text):
        return Response(found.content, headers={"Content-Type": found.content_type})
    return Response(json.dumps(told(kind, found), allow_nan=False).encode("ascii"), media_type="application/json")
