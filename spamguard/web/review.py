"""The views of mail that waits for somebody's word: the quarantine.

Deleting a held message takes a second click on a page of its own.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spamguard.keys import is_id
from spamguard.web import context
from spamguard.web.context import Notice, PageContext, page, path_id, render_page
from spamguard.web.requests import current_person, read_form

# ---- quarantine

_QUARANTINE_ROWS = 50


@page("GET", "/quarantine")
async def quarantine_page(pages: PageContext, request: Request) -> Response:
    """List the held messages."""
    before = request.query_params.get("before", "")
    before = before if is_id(before) else ""
    held = await pages.service.quarantine(current_person(request), before, _QUARANTINE_ROWS)
    return render_page(request, "quarantine.html", page=held, before=before)


@page("GET", "/quarantine/{name}")
async def held_page(pages: PageContext, request: Request) -> Response:
    """Show a held message with its header section."""
    held = await pages.service.held(current_person(request), path_id(request))
    return render_page(request, "held.html", message=held)


@page("POST", "/quarantine/{name}/release")
async def release_held(pages: PageContext, request: Request) -> Response:
    """Release a held message, and learn it as ham."""
    person, verdict_id = current_person(request), path_id(request)
    await read_form(request)
    released = await pages.service.release(person, verdict_id)
    path = "/quarantine" if released.released else f"/quarantine/{verdict_id}"
    return pages.redirect(person, path, context.released_notice(released))


@page("GET", "/quarantine/{name}/delete")
async def confirm_delete_page(pages: PageContext, request: Request) -> Response:
    """Ask whether to delete a held message."""
    held = await pages.service.held(current_person(request), path_id(request))
    return render_page(request, "delete.html", message=held)


@page("POST", "/quarantine/{name}/delete")
async def delete_held(pages: PageContext, request: Request) -> Response:
    """Delete a held message."""
    person, verdict_id = current_person(request), path_id(request)
    await read_form(request)
    await pages.service.delete(person, verdict_id)
    notice = Notice("Deleted. The message is gone for good.")
    return pages.redirect(person, "/quarantine", notice)
