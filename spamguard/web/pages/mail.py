"""Views of messages: history, one message, quarantine; and logging in and out.

One click beside a message says that its verdict was wrong. Deleting a held message takes a second
click on a page of its own. A one-time link is used up by a button, because programs that check mail
fetch the links in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import NotThereError, UsageError
from spamguard.keys import is_id
from spamguard.web import auth
from spamguard.web.models import Judgement, JudgementPage
from spamguard.web.pages import context
from spamguard.web.pages.context import PageContext, SearchQuery, page_number, path_id
from spamguard.web.pages.rendering import build_explanation, redirect, render_page

# ---- history

_MESSAGE_PAGE = "?back=message"  # ends the address of forms on the page of one message


async def history_page(pages: PageContext, request: Request) -> Response:
    """Show the history with its search; 204 if the script has already seen these rows."""
    person, error_text, page = auth.current_person(request), "", JudgementPage(())
    query = SearchQuery.from_parameters(request.query_params)
    if query.verdict_id:
        try:
            await pages.service.judgement(person, query.verdict_id)
            return redirect(f"/history/{query.verdict_id}")
        except NotThereError:  # then it may be part of a subject
            pass
    try:
        page = await pages.service.history(person, query.to_search())
    except UsageError as error:
        error_text = str(error)
    digest = rows_digest(page.judgements)
    if request.query_params.get("seen") == digest:
        return Response(status_code=204)
    return render_page(
        request,
        "history.html",
        422 if error_text else 200,
        query=query,
        error_text=error_text,
        page=page,
        rows_digest=digest,
        classes=await pages.service.classes(person),
    )


def rows_digest(rows: Sequence[Judgement]) -> str:
    """Return a digest that changes with anything that the rows show."""
    text = "".join(
        f"{row.id} {row.label} {row.taught} {row.own} {row.can_teach} {row.held}\n" for row in rows
    )
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


async def message_page(pages: PageContext, request: Request) -> Response:
    """Show one message and why it was judged so; at least as it was when the message passed."""
    person, verdict_id = auth.current_person(request), path_id(request)
    explained, unexplained = None, ""
    try:
        why = await pages.service.why(person, verdict_id)
        explained = build_explanation(why.now, why.then, page_number(request))
        message = why.then
    except UsageError as error:
        message, unexplained = await pages.service.judgement(person, verdict_id), str(error)
    return render_page(
        request,
        "message.html",
        message=message,
        explained=explained,
        unexplained=unexplained,
        classes=await pages.service.classes(person),
    )


async def teach_passed(pages: PageContext, request: Request) -> Response:
    """Teach a message of the history."""
    person, verdict_id = auth.current_person(request), path_id(request)
    form = await auth.read_form(request)
    label, classes = form.get("class", ""), await pages.service.classes(person)
    if label not in classes:
        raise UsageError("choose what the message is: there is no such class")
    held = ""
    if not classes[label] and (await pages.service.judgement(person, verdict_id)).held:
        held = verdict_id
    # Nothing after the lesson may fail: an error means that nothing was taught.
    receipt = await pages.service.learn_passed(person, verdict_id, label)
    undo = f"/history/{verdict_id}/forget{_form_origin(request)}"
    notice = pages.notices.put(person, context.learnt_notice(receipt, undo, held))
    return _redirect_back(request, verdict_id, notice)


async def forget_passed(pages: PageContext, request: Request) -> Response:
    """Take back the person's vote on a message of the history."""
    person, verdict_id = auth.current_person(request), path_id(request)
    await auth.read_form(request)
    receipt = await pages.service.forget_passed(person, verdict_id)
    notice = pages.notices.put(person, context.taken_back_notice(receipt))
    return _redirect_back(request, verdict_id, notice)


def _redirect_back(request: Request, verdict_id: str, notice: str) -> Response:
    """Lead to the page of the form, which is always a page of ours."""
    origin = _form_origin(request)
    if origin == _MESSAGE_PAGE:
        return redirect(f"/history/{verdict_id}", notice)
    return redirect(f"/history{origin}", notice, f"m-{verdict_id}")


def _form_origin(request: Request) -> str:
    """Return the end of the form's address: of the message page, or of a search."""
    if request.query_params.get("back") == "message":
        return _MESSAGE_PAGE
    return SearchQuery.from_parameters(request.query_params).ending()


# ---- quarantine

_QUARANTINE_ROWS = 50


async def quarantine_page(pages: PageContext, request: Request) -> Response:
    """List the held messages."""
    before = request.query_params.get("before", "")
    before = before if is_id(before) else ""
    person = auth.current_person(request)
    page = await pages.service.quarantine(person, before, _QUARANTINE_ROWS)
    return render_page(request, "quarantine.html", page=page, before=before)


async def held_page(pages: PageContext, request: Request) -> Response:
    """Show a held message with its header section."""
    held = await pages.service.held(auth.current_person(request), path_id(request))
    return render_page(request, "held.html", message=held)


async def release_held(pages: PageContext, request: Request) -> Response:
    """Release a held message, and learn it as ham."""
    person, verdict_id = auth.current_person(request), path_id(request)
    await auth.read_form(request)
    released = await pages.service.release(person, verdict_id)
    notice = pages.notices.put(person, context.released_notice(released))
    return redirect("/quarantine" if released.released else f"/quarantine/{verdict_id}", notice)


async def confirm_delete_page(pages: PageContext, request: Request) -> Response:
    """Ask whether to delete a held message."""
    held = await pages.service.held(auth.current_person(request), path_id(request))
    return render_page(request, "delete.html", message=held)


async def delete_held(pages: PageContext, request: Request) -> Response:
    """Delete a held message."""
    person, verdict_id = auth.current_person(request), path_id(request)
    await auth.read_form(request)
    await pages.service.delete(person, verdict_id)
    notice = context.Notice("Deleted. The message is gone for good.")
    return redirect("/quarantine", pages.notices.put(person, notice))


# ---- login


async def login_page(_: PageContext, request: Request) -> Response:
    """Show the login button, or without a link how to get one."""
    link = request.query_params.get("link", "")
    if not link and auth.current_visitor(request):
        return redirect("/")
    return render_page(request, "login.html", link=link)


async def log_in(pages: PageContext, request: Request) -> Response:
    """Use up a one-time link. Operators get to the numbers, others to their mail."""
    form = await auth.read_form(request)
    answer = redirect("/")
    person = await pages.sessions.enter(request, form.get("link", ""), answer)
    if not person.operator:
        answer.headers["location"] = "/history"
    return answer


async def log_out(pages: PageContext, request: Request) -> Response:
    """End the session."""
    await auth.read_form(request)
    answer = redirect("/login")
    await pages.sessions.leave(request, answer)
    return answer
