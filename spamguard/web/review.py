"""The views of mail that waits for somebody's word: the queue of unsure mail, and the quarantine;
and, for page and API, the word about a sender.

The queue shows each group of messages alike once. It is made from a page of the history and nothing
is kept of it, so that it is never out of date. A form names the messages that were shown, and a
word teaches these, not those that came meanwhile.

Deleting held messages takes a second click on a page of its own.

A word about a sender is said beside a message whose sender a named server had authenticated when it
passed (`mail.authentication`). The history has no more than a keyed hash of the address, and a word
needs no more, so nobody can name an address here: people speak of senders of mail that they may
see.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, NamedTuple, TypeVar

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import (
    BusyError,
    NotAllowedError,
    NotThereError,
    SpamguardError,
    UsageError,
)
from spamguard.keys import is_id
from spamguard.proxy.history import fold_text
from spamguard.web import api, context
from spamguard.web.context import (
    Notice,
    PageContext,
    SearchQuery,
    page,
    page_number,
    path_id,
)
from spamguard.web.formatting import build_explanation, count_noun, label_text
from spamguard.web.models import MAX_ROWS, Judgement, JudgementPage, LessonReceipt, QuarantinePage
from spamguard.web.requests import current_person, problem_from_error, read_form
from spamguard.web.service import UNSURE_DAYS

# ---- the queue

QUEUE_GROUPS = 50
"""Groups on the page."""
_DAY_SECONDS = 86_400
_WORDS = ("spam", "ham")
_ACTION_SECONDS = 30.0  # for all messages of one form; a next hop may be slow

Result = TypeVar("Result")


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


def order_groups(groups: Sequence[MessageGroup], now: float) -> list[MessageGroup]:
    """Sort by day, counted back from now, and then by distance from even odds.

    A word helps most where the filter knows least, and on mail such as comes now.
    """

    def rank(group: MessageGroup) -> tuple[int, float]:
        newest = group.messages[0]
        return int((now - newest.time) // _DAY_SECONDS), abs(newest.probability - 0.5)

    return sorted(groups, key=rank)


@page("GET", "/queue")
async def queue_page(pages: PageContext, request: Request) -> Response:
    """Show the messages about which a word is most useful."""
    person, now, error_text = current_person(request), time.time(), ""
    query = _queue_query(request)
    found = JudgementPage(())
    try:
        found = await pages.service.unsure(person, replace(query.to_search(), with_clues=True))
    except UsageError as error:
        error_text = str(error)
    groups = order_groups(group_messages(found.judgements), now)
    return await pages.render(
        request,
        "queue.html",
        text=query.text,
        error_text=error_text,
        target=query.ending(),
        days=UNSURE_DAYS,
        groups=groups[:QUEUE_GROUPS],
        more=len(groups) > QUEUE_GROUPS,
        absent=found.absent,
        all="all" in request.query_params,
    )


@page("POST", "/queue")
async def teach_queue(pages: PageContext, request: Request) -> Response:
    """Teach the groups of one row, or of all rows that are selected."""
    person, form = current_person(request), await read_form(request)
    label = next((word for word in _WORDS if word in form), form.get("class", ""))
    if label not in _WORDS:
        raise UsageError("choose spam or ham")
    boxes = [form[label]] if label in form else [form[name] for name in form if is_id(name)]
    receipts, trouble = await _for_each(
        _verdict_ids(boxes), lambda name: pages.service.learn_passed(person, name, label)
    )
    changed = tuple(name for name, receipt in receipts if receipt.changed)
    ending = _queue_query(request).ending()
    notice = Notice(
        f"Learnt as {label_text(label)}: {count_noun(len(changed), 'message')}.{trouble}",
        undo=f"/queue/undo{ending}" if changed else "",
        undo_ids=changed,
    )
    return pages.redirect(person, f"/queue{ending}", notice)


@page("POST", "/queue/undo")
async def undo_queue(pages: PageContext, request: Request) -> Response:
    """Take back the person's votes on the messages that the form names."""
    person, form = current_person(request), await read_form(request)
    receipts, trouble = await _for_each(
        _verdict_ids([form.get("ids", "")]),
        lambda name: pages.service.forget_passed(person, name),
    )
    changed = sum(receipt.changed for _, receipt in receipts)
    notice = Notice(f"Taken back: {count_noun(changed, 'lesson')}.{trouble}")
    return pages.redirect(person, f"/queue{_queue_query(request).ending()}", notice)


def _queue_query(request: Request) -> SearchQuery:
    """Return the search of the queue, which is always one for unsure mail without a word."""
    query = SearchQuery.from_parameters(request.query_params)
    return replace(query, label="", taught="", before="")


def _verdict_ids(boxes: Sequence[str]) -> list[str]:
    """Return the ids in the values of boxes. UsageError: there is none, or too many."""
    ids = [name for name in " ".join(boxes).split() if is_id(name)]
    if not ids:
        raise UsageError("nothing is selected: go back and tick the box of each message")
    if len(ids) > MAX_ROWS:
        raise UsageError(f"these are more than {MAX_ROWS} messages: select fewer")
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
async def quarantine_page(pages: PageContext, request: Request) -> Response:
    """List the held messages, with their search."""
    person, error_text = current_person(request), ""
    query = replace(SearchQuery.from_parameters(request.query_params), label="", taught="")
    held = QuarantinePage(())
    try:
        held = await pages.service.quarantine(person, query.to_search())
    except UsageError as error:
        error_text = str(error)
    return await pages.render(
        request,
        "quarantine.html",
        page=held,
        query=query,
        keep=pages.service.keep_held,
        error_text=error_text,
        all="all" in request.query_params,
    )


@page("POST", "/quarantine")
async def act_on_held(pages: PageContext, request: Request) -> Response:
    """Release the selected messages, or ask whether to delete them, or delete them."""
    person, form = current_person(request), await read_form(request)
    action, ids = form.get("do", ""), _verdict_ids([form[name] for name in form if is_id(name)])
    if action == "ask":
        return await pages.render(request, "delete.html", ids=ids)
    if action == "delete":
        deleted, trouble = await _for_each(ids, lambda name: pages.service.delete(person, name))
        text = f"Deleted: {count_noun(len(deleted), 'message')}, gone for good.{trouble}"
    elif action == "release":
        results, trouble = await _for_each(ids, lambda name: pages.service.release(person, name))
        released = [result for _, result in results if result.released]
        text = f"Released: {count_noun(len(released), 'message')}.{trouble}"
        if len(released) < len(results):
            failed = count_noun(len(results) - len(released), "message")
            text += f" The next hop has not taken {failed} for everybody: look at what is left."
    else:
        raise UsageError("choose what to do: release or delete")
    return pages.redirect(person, "/quarantine", Notice(text))


@page("GET", "/quarantine/{name}")
async def held_page(pages: PageContext, request: Request) -> Response:
    """Show a held message with its text, why it was judged so, and its header section."""
    person, verdict_id = current_person(request), path_id(request)
    held = await pages.service.held(person, verdict_id)
    text = await pages.service.preview_held(person, verdict_id)
    explained = then = None
    # It may be held for longer than it is remembered.
    with suppress(UsageError, NotAllowedError, NotThereError, BusyError):
        then, why = await pages.service.why(person, verdict_id)
        explained = build_explanation(why, then, page_number(request))
    return await pages.render(
        request, "held.html", message=held, text=text, explained=explained, message_then=then
    )


@page("POST", "/quarantine/{name}/release")
async def release_held(pages: PageContext, request: Request) -> Response:
    """Release a held message, and learn it as ham."""
    person, verdict_id = current_person(request), path_id(request)
    await read_form(request)
    released = await pages.service.release(person, verdict_id)
    notice = context.released_notice(released)
    if not released.released:
        return pages.redirect(person, f"/quarantine/{verdict_id}", notice)
    return pages.redirect(person, "/quarantine", notice, f"m-{verdict_id}")


@page("GET", "/quarantine/{name}/delete")
async def confirm_delete_page(pages: PageContext, request: Request) -> Response:
    """Ask whether to delete a held message."""
    held = await pages.service.held(current_person(request), path_id(request))
    return await pages.render(request, "delete.html", message=held, ids=())


@page("POST", "/quarantine/{name}/delete")
async def delete_held(pages: PageContext, request: Request) -> Response:
    """Delete a held message."""
    person, verdict_id = current_person(request), path_id(request)
    await read_form(request)
    await pages.service.delete(person, verdict_id)
    notice = Notice("Deleted. The message is gone for good.")
    return pages.redirect(person, "/quarantine", notice)


# ---- words about a sender

_SIDES = {"ham": "wanted", "spam": "unwanted"}


@api.router.post(
    "/history/{id}/sender",
    name="saySender",
    summary="Say what mail of its sender is, or take that back",
)
async def say_sender(
    call: api.Call,
    verdict_id: api.VerdictId,
    label: Annotated[
        str,
        Query(alias="class", pattern="^(ham|spam)?$", description="ham or spam; empty: take back"),
    ],
) -> LessonReceipt:
    return await call.service.say_of_sender(call.person, verdict_id, label)


@page("POST", "/history/{name}/sender")
async def say_sender_form(pages: PageContext, request: Request) -> Response:
    """Keep what the person says of the sender of a message, or take it back."""
    person, verdict_id = current_person(request), path_id(request)
    label = (await read_form(request)).get("class", "")
    if label and label not in _SIDES:
        raise UsageError("choose what mail of this sender is: there is no such choice")
    receipt = await pages.service.say_of_sender(person, verdict_id, label)
    if not label:
        text = "Taken back: what you had said of this sender counts no more."
    elif not receipt.changed:
        text = f"You had already said that mail of this sender is {_SIDES[label]}."
    else:
        text = f"Mail of this sender is {_SIDES[label]}. That counts where it is authenticated."
    path = f"/history/{verdict_id}"
    undo = f"{path}/sender" if label and receipt.changed else ""
    return pages.redirect(person, path, Notice(text, undo=undo))
