"""Mail that passed, newest first: look, search, and say in one click that a verdict was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import NotThereError, UsageError
from spamguard.web.access import contract as access
from spamguard.web.pages import notices
from spamguard.web.pages.drawing import page, see
from spamguard.web.pages.house import House, name_of
from spamguard.web.pages.query import Query
from spamguard.web.service.values import Found, Judgement, Person

_ON_THE_MESSAGE = "?back=message"
"""End of the address of forms that stand on the page of one message, and lead back there."""


async def listed(house: House, request: Request) -> Response:
    """The page, with a form for searching; 204 for the script, when all is as it has seen it."""
    person = access.person(request)
    query, wrong, found = Query.of(request.query_params), "", Found(())
    if await _is_there(house, person, query.name):
        return see(f"/history/{query.name}")
    try:
        found = await house.service.history(person, query.search())
    except UsageError as error:
        wrong = str(error)
    now = seen(found.judgements)
    if request.query_params.get("seen") == now:
        return Response(status_code=204)
    return page(
        request,
        "history.html",
        422 if wrong else 200,
        query=query,
        wrong=wrong,
        found=found,
        seen=now,
        classes=await house.service.classes(person),
    )


async def taught(house: House, request: Request) -> Response:
    """A verdict was wrong: a click on a row, or on the page of a message."""
    person, name = access.person(request), name_of(request)
    form = await access.posted(request)
    label, classes = form.get("class", ""), await house.service.classes(person)
    if label not in classes:
        raise UsageError("choose what the message is: there is no such class")
    held = name if not classes[label] and (await house.service.judgement(person, name)).held else ""
    receipt = await house.service.learn_passed(person, name, label)  # the last that can fail: who is told of an error has taught nothing
    notice = notices.learnt(receipt, f"/history/{name}/forget{_whence(request)}", held)
    return _back(request, name, house.notices.put(person, notice))


async def forgotten(house: House, request: Request) -> Response:
    """Undo."""
    person, name = access.person(request), name_of(request)
    await access.posted(request)
    receipt = await house.service.forget_passed(person, name)
    return _back(request, name, house.notices.put(person, notices.taken_back(receipt)))


async def _is_there(house: House, person: Person, name: str) -> bool:
    """Whether it is the id of a message that they may see: others are searched for as what they are, part of a subject."""
    try:
        return bool(name) and bool(await house.service.judgement(person, name))
    except NotThereError:
        return False


def seen(found: Sequence[Judgement]) -> str:
    """Changes with anything that rows show."""
    text = "".join(f"{one.id} {one.label} {one.taught} {one.own} {one.can_teach} {one.held}\n" for one in found)
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _back(request: Request, name: str, told: str) -> Response:
    """To where the form stood: an address of ours, whatever was asked for."""
    whence = _whence(request)
    return see(f"/history/{name}", told) if whence == _ON_THE_MESSAGE else see(f"/history{whence}", told, f"m-{name}")


def _whence(request: Request) -> str:
    """Where the form stood, as the end of an address: on the page of the message, or what of the history was shown."""
    query = request.query_params
    return _ON_THE_MESSAGE if query.get("back") == "message" else Query.of(query).ending()
