"""Mail that is held back: look at it, hand it on after all, throw it away. Deleting asks once more, on a page of its own."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spamguard.ids import is_id
from spamguard.web.access import contract as access
from spamguard.web.pages import notices
from spamguard.web.pages.drawing import page, see
from spamguard.web.pages.house import House, name_of

_ROWS = 50


async def listed(house: House, request: Request) -> Response:
    """The page."""
    before = request.query_params.get("before", "")
    before = before if is_id(before) else ""
    found = await house.service.quarantine(access.person(request), before, _ROWS)
    return page(request, "quarantine.html", found=found, before=before)


async def shown(house: House, request: Request) -> Response:
    """One message, with its header section."""
    held = await house.service.held(access.person(request), name_of(request))
    return page(request, "held.html", one=held)


async def released(house: House, request: Request) -> Response:
    """Hand it on, and learn it as ham."""
    person, name = access.person(request), name_of(request)
    await access.posted(request)
    done = await house.service.release(person, name)
    told = house.notices.put(person, notices.released(done))
    return see("/quarantine" if done.released else f"/quarantine/{name}", told)


async def asked(house: House, request: Request) -> Response:
    """Really?"""
    held = await house.service.held(access.person(request), name_of(request))
    return page(request, "delete.html", one=held)


async def deleted(house: House, request: Request) -> Response:
    """Throw it away."""
    person, name = access.person(request), name_of(request)
    await access.posted(request)
    await house.service.delete(person, name)
    return see("/quarantine", house.notices.put(person, notices.Notice("Deleted. The message is gone for good.")))
