"""Coming in by a one-time link, and going. The link is burnt by a button: programs that look at mail fetch what it links to."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spamguard.web.access import contract as access
from spamguard.web.pages.drawing import page, see
from spamguard.web.pages.house import House


async def landed(_: House, request: Request) -> Response:
    """The page that a link leads to; without a link, how to get one, for those who need it."""
    link = request.query_params.get("link", "")
    return see("/") if not link and access.visitor(request) else page(request, "login.html", link=link)


async def entered(house: House, request: Request) -> Response:
    """The button on it."""
    form = await access.posted(request)
    answer = see("/")
    person = await house.gate.enter(request, form.get("link", ""), answer)
    if not person.operator:
        answer.headers["location"] = "/history"  # they come for their mail, numbers are for who runs this
    return answer


async def left(house: House, request: Request) -> Response:
    """Log out."""
    await access.posted(request)
    answer = see("/login")
    await house.gate.leave(request, answer)
    return answer
