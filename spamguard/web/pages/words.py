"""What the filter has counted of a word."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spamguard.web.access import contract as access
from spamguard.web.pages import charts
from spamguard.web.pages.drawing import page
from spamguard.web.pages.house import House

_LONGEST = 100  # characters of a word


async def shown(house: House, request: Request) -> Response:
    """The page, with what was looked up."""
    person = access.person(request)
    word = request.query_params.get("word", "")[:_LONGEST].strip()
    found = await house.service.words(person, word) if word else ()
    longest = max((abs(one.part) for one in found), default=0.0)
    names = list(dict.fromkeys(name for one in found for name in one.counts))
    return page(request, "words.html", word=word, names=names, found=[(one, charts.bar(one.part, longest)) for one in found])
