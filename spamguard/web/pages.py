"""The views: one for each page, and for each action that a form starts.

To add a page, write its view with `page`, its template in `templates`, and a link in
`context.NAVIGATION` if people are to find it at the top. What a view shows or does comes from
`service`.

Whatever changes something takes POST. One click beside a message says that its verdict was wrong.
Deleting a held message takes a second click on a page of its own. A one-time link is used up by a
button, because programs that check mail fetch the links in it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress
from hashlib import blake2b

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from spamguard.engine.policy import UNSURE
from spamguard.errors import BusyError, NotThereError, SharedError, UsageError
from spamguard.storage import Spool
from spamguard.web import context, formatting
from spamguard.web.auth import SESSION_SECONDS
from spamguard.web.context import (
    Notice,
    PageContext,
    SearchQuery,
    page,
    page_number,
    path_id,
    redirect,
)
from spamguard.web.formatting import build_explanation, day, tone
from spamguard.web.health import judge_health
from spamguard.web.models import (
    JudgementPage,
)
from spamguard.web.requests import (
    RefusalError,
    current_person,
    current_visitor,
    read_form,
    read_form_with_file,
    set_session_cookie,
)

# ---- today

TODAY_SPANS = {24: "24 hours", 72: "3 days", 168: "7 days"}


@page("GET", "/")
async def today_page(pages: PageContext, request: Request) -> Response:
    """Show mail by verdict, lessons and mistakes of the last hours, and what has been learnt."""
    person, span = current_person(request), request.query_params.get("hours", "")
    hours = int(span) if span in map(str, TODAY_SPANS) else next(iter(TODAY_SPANS))
    today = await pages.service.today(person, hours)
    by_label: Counter[str] = Counter()
    for hour in today.hours:
        by_label.update(hour.mail)
    totals = dict(by_label.most_common())
    classes = await pages.service.classes(person)
    tones = {label: tone(label, classes) for label in totals}
    nothing_decided = list(totals) == [UNSURE]
    charted = formatting.hours_with_data(today.hours)
    health = await pages.monitor.look() if person.operator else None
    model = await pages.service.model(person)
    return await pages.render(
        request,
        "today.html",
        today=today,
        hours=hours,
        spans=TODAY_SPANS,
        totals=totals,
        mail=formatting.mail_chart(charted, tones),
        lessons=formatting.lessons_chart(charted),
        mistakes=formatting.count_mistakes(today.wrong),
        classes=classes,
        since=SearchQuery(since=day(today.hours[0].start)),
        model=model,
        health=health,
        worries=judge_health(health, model) if health or nothing_decided else (),
    )


# ---- history

_MESSAGE_PAGE = "?back=message"  # ends the address of forms on the page of one message


@page("GET", "/history")
async def history_page(pages: PageContext, request: Request) -> Response:
    """Show the history with its search; 204 if the script has already seen these rows."""
    person, error_text = current_person(request), ""
    query = SearchQuery.from_parameters(request.query_params)
    if query.verdict_id:
        with suppress(NotThereError, BusyError):  # then it may be part of a subject
            await pages.service.judgement(person, query.verdict_id)
            return redirect(f"/history/{query.verdict_id}")
    try:
        rows = await pages.service.history(person, query.to_search())
    except UsageError as error:
        rows, error_text = JudgementPage(()), str(error)
    # It changes with anything that the rows show.
    text = "".join(
        f"{row.id} {row.label} {row.taught} {row.own} {row.can_teach} {row.held}\n"
        for row in rows.judgements
    )
    shown = f"{text}{rows.absent}".encode("utf-8", "replace")
    digest = blake2b(shown, digest_size=8).hexdigest()
    if request.query_params.get("seen") == digest:
        return Response(status_code=204)
    return await pages.render(
        request,
        "history.html",
        query=query,
        error_text=error_text,
        page=rows,
        rows_digest=digest,
        classes=await pages.service.classes(person),
    )


@page("GET", "/history/{name}")
async def message_page(pages: PageContext, request: Request) -> Response:
    """Show one message and why it was judged so; at least as it was when the message passed."""
    person, verdict_id = current_person(request), path_id(request)
    explained, unexplained = None, ""
    try:
        message, why = await pages.service.why(person, verdict_id)
        explained = build_explanation(why, message, page_number(request))
    except UsageError as error:
        message, unexplained = await pages.service.judgement(person, verdict_id), str(error)
    return await pages.render(
        request,
        "message.html",
        message=message,
        explained=explained,
        unexplained=unexplained,
        classes=await pages.service.classes(person),
    )


@page("POST", "/history/{name}/teach")
async def teach_passed(pages: PageContext, request: Request) -> Response:
    """Teach a message of the history."""
    person, verdict_id = current_person(request), path_id(request)
    form = await read_form(request)
    label, held = form.get("class", ""), ""
    unwanted = (await pages.service.classes(person)).get(label)
    if not unwanted and (await pages.service.judgement(person, verdict_id)).held:
        held = verdict_id
    # Nothing after the lesson may fail: an error means that nothing was taught.
    receipt = await pages.service.learn_passed(person, verdict_id, label)
    undo = f"/history/{verdict_id}/forget{_form_origin(request)}"
    return _redirect_back(pages, request, context.learnt_notice(receipt, undo, held))


@page("POST", "/history/{name}/forget")
async def forget_passed(pages: PageContext, request: Request) -> Response:
    """Take back the person's vote on a message of the history."""
    person, verdict_id = current_person(request), path_id(request)
    await read_form(request)
    receipt = await pages.service.forget_passed(person, verdict_id)
    return _redirect_back(pages, request, context.taken_back_notice(receipt))


def _redirect_back(pages: PageContext, request: Request, notice: Notice) -> Response:
    """Lead to the page of the form, which is always a page of ours."""
    person, verdict_id = current_person(request), path_id(request)
    origin = _form_origin(request)
    if origin == _MESSAGE_PAGE:
        return pages.redirect(person, f"/history/{verdict_id}", notice)
    return pages.redirect(person, f"/history{origin}", notice, f"m-{verdict_id}")


def _form_origin(request: Request) -> str:
    """Return the end of the form's address: of the message page, or of a search."""
    if request.query_params.get("back") == "message":
        return _MESSAGE_PAGE
    return SearchQuery.from_parameters(request.query_params).ending()


# ---- teaching a message

_CHUNK_BYTES = 256 << 10


@page("GET", "/teach")
async def teach_page(pages: PageContext, request: Request) -> Response:
    """Show the form to upload a message."""
    classes = await pages.service.classes(current_person(request))
    return await pages.render(request, "teach.html", classes=classes)


@page("POST", "/teach")
async def upload_message(pages: PageContext, request: Request) -> Response:
    """Teach a message."""
    person = current_person(request)
    with closing(Spool(request.scope["state"]["spool"])) as message:
        async with read_form_with_file(request) as (form, file):
            if file is not None and file.size:
                while chunk := await file.read(_CHUNK_BYTES):
                    message.write(chunk)
            else:
                source = form.get("source", "").strip("\r\n\ufeff")
                message.write(source.encode("utf-8", "replace"))
            if not message.size:
                raise UsageError(
                    "there is no message: choose a file, or paste the source of a message"
                )
            if b":" not in message.read_start(4096):
                raise UsageError(
                    "this is not a message, because it has no header. "
                    "Mail programs call what is needed “source” or “original”"
                )
        receipt = await pages.service.learn(person, message, form.get("class", ""))
    undo = f"/teach/forget?digest={receipt.digest}"
    return pages.redirect(person, "/teach", context.learnt_notice(receipt, undo))


@page("POST", "/teach/forget")
async def forget_digest(pages: PageContext, request: Request) -> Response:
    """Take back the person's vote on a message, by message digest."""
    person = current_person(request)
    await read_form(request)
    receipt = await pages.service.forget(person, request.query_params.get("digest", ""))
    return pages.redirect(person, "/teach", context.taken_back_notice(receipt))


# ---- help


@page("GET", "/help")
async def help_page(pages: PageContext, request: Request) -> Response:
    """Show what users may want to know."""
    current_person(request)  # all pages need a login
    return await pages.render(request, "help.html")


# ---- login


@page("GET", "/login")
async def login_page(pages: PageContext, request: Request) -> Response:
    """Show the login button, or without a link how to get one."""
    link = request.query_params.get("link", "")
    if not link and current_visitor(request):
        return redirect("/")
    return await pages.render(
        request, "login.html", link=link, asked="asked" in request.query_params
    )


@page("POST", "/login")
async def log_in(pages: PageContext, request: Request) -> Response:
    """Use up a one-time link. Operators get to the numbers, others to their mail."""
    form = await read_form(request)
    try:
        person, secret = await pages.sessions.log_in(form.get("link", ""), current_visitor(request))
    except SharedError as error:
        text = "a link cannot be used while the database of all nodes is away: try again later"
        raise RefusalError(410, text) from error
    answer = redirect("/" if person.operator else "/history")
    set_session_cookie(request, answer, secret, SESSION_SECONDS)
    return answer


@page("POST", "/login/mail")
async def mail_link(pages: PageContext, request: Request) -> Response:
    """Send a one-time link by mail; the answer is the same for all addresses."""
    form = await read_form(request)
    if pages.mailer is None:
        raise NotThereError("this filter sends no links by mail")
    pages.mailer.check_client(request.scope["state"]["client"])
    answer = redirect("/login?asked")
    answer.background = BackgroundTask(pages.mailer.request_link, form.get("address", ""))
    return answer


@page("POST", "/logout")
async def log_out(pages: PageContext, request: Request) -> Response:
    """End the session."""
    await read_form(request)
    pages.sessions.log_out(current_visitor(request))
    answer = redirect("/login")
    set_session_cookie(request, answer, "", 0)
    return answer
