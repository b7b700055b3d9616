"""The views: one for each page, and for each action that a form starts.

To add a page, write its view with `page`, its template in `templates`, and a link in
`pages.NAVIGATION` if people are to find it at the top. What a view shows or does comes from
`service`.

Whatever changes something takes POST. One click beside a message says that its verdict was wrong.
Deleting held messages takes a second click on a page of its own. A one-time link is used up by a
button, because programs that check mail fetch the links in it.

The queue shows each group of messages alike once. It is made from a page of the history and nothing
is kept of it, so that it is never out of date. A form names the messages that were shown, and a
word teaches these, not those that came meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from spamguard.engine.policy import UNSURE
from spamguard.errors import (
    BusyError,
    NotAllowedError,
    NotThereError,
    SharedError,
    SpamguardError,
    UsageError,
)
from spamguard.keys import is_id
from spamguard.proxy.history import fold_text
from spamguard.storage import Spool
from spamguard.web import pages
from spamguard.web.auth import SESSION_SECONDS
from spamguard.web.models import Judgement
from spamguard.web.numbers import judge_health
from spamguard.web.pages import (
    Notice,
    PageContext,
    SearchQuery,
    Visit,
    build_explanation,
    count_noun,
    label_text,
    redirect,
)
from spamguard.web.requests import (
    current_context,
    problem_from_error,
    read_form_with_file,
    root_path,
    set_session_cookie,
)
from spamguard.web.service import UNSURE_DAYS

Result = TypeVar("Result")
View = Callable[[Visit], Awaitable[Response]]

VIEWS: list[tuple[str, str, View]] = []
"""Method, path and view of each page."""


def page(method: str, path: str) -> Callable[[View], View]:
    def register(view: View) -> View:
        VIEWS.append((method, path, view))
        return view

    return register


def page_routes(context: PageContext) -> Sequence[BaseRoute]:
    def route(method: str, path: str, view: View) -> Route:
        async def respond(request: Request) -> Response:
            """Add the requested notice to the page, and the proxy's path to a redirect."""
            request.state.notice = context.requested_notice(request)
            answer = await view(Visit(context, request))
            if "location" in answer.headers:
                answer.headers["location"] = root_path(request) + answer.headers["location"]
            return answer

        return Route(path, respond, methods=[method])

    routes = [route(*view) for view in VIEWS]
    return [*routes, Route("/static/{file}", pages.serve_asset, methods=["GET"])]


# ---- today

TODAY_SPANS = {24: "24 hours", 72: "3 days", 168: "7 days"}


@page("GET", "/")
async def today_page(visit: Visit) -> Response:
    person, service, span = visit.person, visit.service, visit.parameters.get("hours", "")
    hours = int(span) if span in map(str, TODAY_SPANS) else next(iter(TODAY_SPANS))
    today = await service.today(person, hours)
    totals: Counter[str] = Counter()
    for hour in today.hours:
        totals.update(hour.mail)
    classes = await service.classes()
    tones = {label: pages.tone(label, classes) for label in totals}
    mail, lessons = pages.draw_hours(today.hours, tones)
    health = await visit.context.monitor.look() if person.operator else None
    model = await service.model(person)
    return await visit.render(
        "today.html",
        today=today,
        hours=hours,
        spans=TODAY_SPANS,
        totals=dict(totals.most_common()),
        mail=mail,
        lessons=lessons,
        mistakes=pages.count_mistakes(today.wrong),
        classes=classes,
        since=SearchQuery(f"since:{pages.day(today.hours[0].start)}"),
        model=model,
        health=health,
        worries=judge_health(health, model) if health or list(totals) == [UNSURE] else (),
    )


# ---- history


@page("GET", "/history")
async def history_page(visit: Visit) -> Response:
    """Show the history with its search; 204 if the script has already seen these rows."""
    person, query = visit.person, visit.query()
    if query.verdict_id:
        with suppress(NotThereError, BusyError):  # then it may be part of a subject
            await visit.service.judgement(person, query.verdict_id)
            return redirect(f"/history/{query.verdict_id}")
    rows = await visit.service.history(person, query.to_search())
    # It changes with anything that the rows show.
    digest = blake2b(repr(rows).encode("utf-8", "replace"), digest_size=8).hexdigest()
    if visit.parameters.get("seen") == digest:
        return Response(status_code=204)
    return await visit.render(
        "history.html",
        query=query,
        page=rows,
        rows_digest=digest,
        classes=await visit.service.classes(),
    )


@page("GET", "/history/{name}")
async def message_page(visit: Visit) -> Response:
    person, verdict_id = visit.person, visit.verdict_id
    explained, unexplained = None, ""
    try:
        message, why = await visit.service.why(person, verdict_id)
        explained = build_explanation(why, message, everything="all" in visit.parameters)
    except UsageError as error:
        message, unexplained = await visit.service.judgement(person, verdict_id), str(error)
    return await visit.render(
        "message.html",
        message=message,
        explained=explained,
        unexplained=unexplained,
        classes=await visit.service.classes(),
    )


@page("POST", "/history")
@page("POST", "/queue")
async def teach_listed(visit: Visit) -> Response:
    """Teach the messages that a form names, or take back what was said of them (class "")."""
    person, service, form = visit.person, visit.service, await visit.form()
    if "class" not in form:
        raise UsageError("choose what it is")
    label, _, named = form["class"].partition(" ")  # a button beside a message has its id
    ids = _verdict_ids(form, named)
    receipts, trouble = await _for_each(
        ids,
        lambda name: (
            service.learn_passed(person, name, label)
            if label
            else service.forget_passed(person, name)
        ),
    )
    changed = [name for name, receipt in receipts if receipt.changed]
    is_alone = visit.parameters.get("back") == "message"
    ending = "?back=message" if is_alone else visit.query().ending()
    address = f"{visit.request.url.path}{ending}"
    notice = Notice(undo=address if label and changed else "", undo_ids=changed)
    if len(ids) == 1:
        receipt = receipts[0][1]
        notice = notice._replace(receipt=receipt, held=ids[0] if receipt.held else "")
    else:
        done = f"Learnt as {label_text(label)}" if label else "Taken back"
        text = f"{done}: {count_noun(len(changed), 'message')}.{trouble}"
        notice = notice._replace(text=text)
    if is_alone:
        return visit.redirect(f"/history/{ids[0]}", notice)
    return visit.redirect(address, notice, f"m-{ids[0]}")


_SIDES = {"ham": "wanted", "spam": "unwanted"}


@page("POST", "/history/{name}/sender")
async def say_sender(visit: Visit) -> Response:
    person, path = visit.person, f"/history/{visit.verdict_id}"
    label, domain = (await visit.form()).get("class", ""), visit.parameters.get("domain", "")
    if label and label not in _SIDES:
        raise UsageError("choose what mail of this sender is: there is no such choice")
    receipt = await visit.service.say_of_sender(person, visit.verdict_id, label, domain)
    whom = f"everybody at {domain}" if domain else "this sender"
    text = f"Taken back: what you had said of {whom} counts no more."
    if label:
        text = f"Mail of {whom} is {_SIDES[label]}. That counts where it is authenticated."
    undo = f"{path}/sender" + (domain and f"?domain={quote(domain)}")
    return visit.redirect(path, Notice(text, undo=undo if label and receipt.changed else ""))


# ---- the queue

QUEUE_GROUPS = 50
"""Groups on the page."""
_ACTION_SECONDS = 30.0  # for all messages of one form; a next hop may be slow


class MessageGroup(NamedTuple):
    """Messages alike, newest first. ids: one for each message digest, as votes are by digest."""

    messages: list[Judgement]
    ids: list[str]


def group_messages(messages: Sequence[Judgement]) -> list[MessageGroup]:
    """Put messages together that have the same digest, or both senders and subject in common.

    messages: newest first; so are the groups.
    """
    groups: list[MessageGroup] = []
    by_key: dict[object, MessageGroup] = {}
    for message in messages:
        keys: list[object] = [message.message]
        if message.subject and (message.author or message.sender):
            keys.append((message.author, message.sender, fold_text(message.subject)))
        group = next((by_key[key] for key in keys if key in by_key), None)
        if group is None:
            group = MessageGroup([], [])
            groups.append(group)
        group.messages.append(message)
        if message.message not in by_key:
            group.ids.append(message.id)
        for key in keys:
            by_key.setdefault(key, group)
    return groups


def _rank(group: MessageGroup) -> tuple[int, float]:
    """The day, counted back from now, and then the distance from even odds.

    A word helps most where the filter knows least, and on mail such as comes now.
    """
    newest = group.messages[0]
    return int((time.time() - newest.time) // 86_400), abs(newest.probability - 0.5)


@page("GET", "/queue")
async def queue_page(visit: Visit) -> Response:
    query = visit.query()
    search = replace(query.to_search(), with_clues=True)
    found = await visit.service.unsure(visit.person, search)
    groups = sorted(group_messages(found.rows), key=_rank)
    return await visit.render(
        "queue.html",
        text=query.q,
        target=query.ending(),
        days=UNSURE_DAYS,
        groups=groups[:QUEUE_GROUPS],
        more=len(groups) > QUEUE_GROUPS,
        absent=found.absent,
        all="all" in visit.parameters,
    )


def _verdict_ids(form: Mapping[str, str], named: str = "") -> list[str]:
    """Return the ids that a button names, or else those of the boxes that are ticked."""
    boxes = [named] if named else [form[name] for name in form if is_id(name)]
    ids = [name for name in " ".join(boxes).split() if is_id(name)]
    if not ids:
        raise UsageError("nothing is selected: go back and tick the box of each message")
    return ids


async def _for_each(
    names: Sequence[str], act: Callable[[str], Awaitable[Result]]
) -> tuple[list[tuple[str, Result]], str]:
    """Do the same with each message, until one fails or the time is up.

    Returns the results by id, and why some are missing, as a sentence or "". An error of the first
    is raised.
    """
    results: list[tuple[str, Result]] = []
    deadline = time.monotonic() + _ACTION_SECONDS
    for name in names:
        left = f" Not done for {count_noun(len(names) - len(results), 'message')}:"
        if time.monotonic() > deadline:
            return results, f"{left} it took too long. Do it once more."
        try:
            results.append((name, await act(name)))
        except SpamguardError as error:
            if not results:
                raise
            return results, f"{left} {problem_from_error(error).detail}."
    return results, ""


# ---- quarantine


@page("GET", "/quarantine")
async def quarantine_page(visit: Visit) -> Response:
    query = visit.query()
    held = await visit.service.quarantine(visit.person, query.to_search())
    return await visit.render(
        "quarantine.html",
        page=held,
        query=query,
        keep=visit.service.settings.quarantine.keep,  # days
        all="all" in visit.parameters,
    )


@page("POST", "/quarantine")
async def act_on_held(visit: Visit) -> Response:
    person, service, form = visit.person, visit.service, await visit.form()
    action, ids = form.get("do", ""), _verdict_ids(form)
    if action == "ask":
        message = await service.held(person, ids[0]) if len(ids) == 1 else None
        return await visit.render("delete.html", ids=ids, message=message)
    if action == "delete":
        deleted, trouble = await _for_each(ids, lambda name: service.delete(person, name))
        notice = Notice(f"Deleted: {count_noun(len(deleted), 'message')}, gone for good.{trouble}")
    elif action == "release":
        results, trouble = await _for_each(ids, lambda name: service.release(person, name))
        left = [result for _, result in results if not result.released]
        text = f"Released: {count_noun(len(results) - len(left), 'message')}, learnt as ham: "
        text += f"{sum(result.taught for _, result in results)}.{trouble}"
        notice = Notice(text, replies=[reply for result in left for reply in result.recipients])
    else:
        raise UsageError("choose what to do: release or delete")
    return visit.redirect("/quarantine", notice, f"m-{ids[0]}")


@page("GET", "/quarantine/{name}")
async def held_page(visit: Visit) -> Response:
    person, verdict_id = visit.person, visit.verdict_id
    held = await visit.service.held(person, verdict_id)
    text = await visit.service.preview_held(person, verdict_id)
    explained = then = None
    # It may be held for longer than it is remembered.
    with suppress(UsageError, NotAllowedError, NotThereError, BusyError):
        then, why = await visit.service.why(person, verdict_id)
        explained = build_explanation(why, then, everything="all" in visit.parameters)
    return await visit.render(
        "held.html", message=held, text=text, explained=explained, message_then=then
    )


# ---- teaching a message

_CHUNK_BYTES = 256 << 10


@page("GET", "/teach")
async def teach_page(visit: Visit) -> Response:
    _ = visit.person  # all pages need a login
    return await visit.render("teach.html", classes=await visit.service.classes())


@page("POST", "/teach")
async def upload_message(visit: Visit) -> Response:
    person = visit.person
    with closing(Spool(visit.request.scope["state"]["spool"])) as message:
        async with read_form_with_file(visit.request) as (form, file):
            if file is not None and file.size:
                while chunk := await file.read(_CHUNK_BYTES):
                    message.write(chunk)
            else:
                source = form.get("source", "").strip("\r\n\ufeff")
                message.write(source.encode("utf-8", "replace"))
            if b":" not in message.read_start(4096):
                raise UsageError(
                    "this is not a message, because it has no header: choose a file, or paste what "
                    "mail programs call “source” or “original”"
                )
        receipt = await visit.service.learn(person, message, form.get("class", ""))
    undo = f"/teach/forget?digest={receipt.digest}"
    return visit.redirect("/teach", Notice(receipt=receipt, undo=undo if receipt.changed else ""))


@page("POST", "/teach/forget")
async def forget_digest(visit: Visit) -> Response:
    receipt = await visit.service.forget(visit.person, visit.parameters.get("digest", ""))
    return visit.redirect("/teach", Notice(receipt=receipt))


# ---- help

HELP_LANGUAGES = {path.name[5:7] for path in Path(__file__).parent.glob("templates/help.*.html")}
"""A browser gets the first language that it names, or English. A file more is a language more."""


@page("GET", "/help")
async def help_page(visit: Visit) -> Response:
    _ = visit.person  # all pages need a login
    first = visit.request.headers.get("accept-language", "")[:2].lower()
    return await visit.render(f"help.{first if first in HELP_LANGUAGES else 'en'}.html")


# ---- login


@page("GET", "/login")
async def login_page(visit: Visit) -> Response:
    link = visit.parameters.get("link", "")
    if not link and visit.visitor:
        return redirect("/")
    return await visit.render("login.html", link=link, asked="asked" in visit.parameters)


@page("POST", "/login")
async def log_in(visit: Visit) -> Response:
    link = (await visit.form()).get("link", "")
    try:
        person, secret = await visit.context.sessions.log_in(link, visit.visitor)
    except SharedError as error:
        text = "a link cannot be used while the database of all nodes is away: try again later"
        raise HTTPException(410, text) from error
    answer = redirect("/" if person.operator else "/history")
    set_session_cookie(visit.request, answer, secret, SESSION_SECONDS)
    return answer


@page("POST", "/login/mail")
async def mail_link(visit: Visit) -> Response:
    """Send a one-time link by mail; the answer is the same for all addresses."""
    form, mailer = await visit.form(), visit.context.mailer
    if mailer is None:
        raise NotThereError("this filter sends no links by mail")
    mailer.check_client(current_context(visit.request).client)
    answer = redirect("/login?asked")
    answer.background = BackgroundTask(mailer.request_link, form.get("address", ""))
    return answer


@page("POST", "/logout")
async def log_out(visit: Visit) -> Response:
    visit.context.sessions.log_out(visit.visitor)
    answer = redirect("/login")
    set_session_cookie(visit.request, answer, "", 0)
    return answer
