"""What the filter has counted of a word."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import UsageError
from spamguard.web.access import contract as access
from spamguard.web.pages import charts
from spamguard.web.pages.drawing import page
from spamguard.web.pages.house import House
from spamguard.web.service.values import Counted


async def shown(house: House, request: Request) -> Response:
    """The page, with what was looked up."""
    person = access.person(request)
    word, wrong = request.query_params.get("word", "").strip(), ""
    found: Sequence[Counted] = ()
    try:
        found = await house.service.words(person, word) if word else ()
    except UsageError as error:
        wrong = str(error)
    longest = max((abs(one.part) for one in found), default=0.0)
    names = list(dict.fromkeys(name for one in found for name in one.messages))
    rows = [(one, charts.bar(one.part, longest)) for one in found]
    return page(request, "words.html", 422 if wrong else 200, word=word, wrong=wrong, names=names, found=rows)
