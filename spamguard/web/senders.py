"""“Always from this sender”: page and API for what a person says of the sender of a message.

The message is one of the history whose sender a named server had authenticated when it passed
(`mail.authentication`). The history has no more than a keyed hash of the address, and a word needs
no more, so nobody can name an address here: people speak of senders of mail that they may see.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import UsageError
from spamguard.users import SENDER_STRENGTHS
from spamguard.web import api
from spamguard.web.context import Notice, PageContext, page, path_id
from spamguard.web.models import LessonReceipt
from spamguard.web.requests import current_person, read_form

_SIDES = {"ham": "wanted", "spam": "unwanted"}
_USUAL = "usual"

# ---- the API


@api.router.post(
    "/history/{id}/sender",
    name="saySender",
    summary="Say what mail of its sender is, or take that back",
    **api.WITH_ID,
)
async def say_sender(
    call: api.Call,
    verdict_id: api.VerdictId,
    label: Annotated[
        str,
        Query(alias="class", pattern="^(ham|spam)?$", description="ham or spam; empty: take back"),
    ],
    strength: Annotated[
        str, Query(pattern=f"^({'|'.join(SENDER_STRENGTHS)})$", description="How much it counts")
    ] = _USUAL,
) -> LessonReceipt:
    return await call.service.say_of_sender(call.person, verdict_id, label, strength)


# ---- the page


@page("POST", "/history/{name}/sender")
async def say_sender_form(pages: PageContext, request: Request) -> Response:
    """Keep what the person says of the sender of a message, or take it back."""
    person, verdict_id = current_person(request), path_id(request)
    form = await read_form(request)
    label, strength = form.get("class", ""), form.get("strength", _USUAL)
    if (label and label not in _SIDES) or strength not in SENDER_STRENGTHS:
        raise UsageError("choose what mail of this sender is: there is no such choice")
    receipt = await pages.service.say_of_sender(person, verdict_id, label, strength)
    if not label:
        text = "Taken back: what you had said of this sender counts no more."
    elif not receipt.changed:
        text = f"You had already said that mail of this sender is {_SIDES[label]}."
    else:
        text = f"Mail of this sender is {_SIDES[label]}. That counts where it is authenticated."
    path = f"/history/{verdict_id}"
    undo = f"{path}/sender" if label and receipt.changed else ""
    return pages.redirect(person, path, Notice(text, undo=undo))
