"""One message that passed, and why it was called what it was: then and now."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import UsageError
from spamguard.web.access import contract as access
from spamguard.web.pages import parts
from spamguard.web.pages.drawing import page
from spamguard.web.pages.house import House, name_of

WORDS, MORE_WORDS = 12, 100  # each way


async def shown(house: House, request: Request) -> Response:
    """The page. A message that nothing more can be said of now still has what was said then."""
    person, name = access.person(request), name_of(request)
    words = MORE_WORDS if request.query_params.get("words") == "all" else WORDS
    then, explained, silent = None, None, ""
    try:
        why = await house.service.why(person, name)
        then, explained = why.then, parts.told(why.now, why.then, words)
    except UsageError as error:
        then, silent = await house.service.judgement(person, name), str(error)
    return page(
        request,
        "message.html",
        one=then,
        explained=explained,
        silent=silent,
        more=words == WORDS,
        classes=await house.service.classes(person),
    )
