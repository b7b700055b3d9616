"""Views of what is learnt: numbers of the last hours, teaching a message, the model, undo, words.

An uploaded message is previewed first and taught after another click. Undo likewise shows what it
would take back first.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from spamguard.engine.policy import UNSURE
from spamguard.errors import NotThereError, UsageError
from spamguard.log import MAX_TIME
from spamguard.proxy.delivery_log import decode_subject
from spamguard.storage import Spool
from spamguard.web import auth
from spamguard.web.models import ConfusionCell, Person, Today, TokenCounts
from spamguard.web.pages import charts, context
from spamguard.web.pages.context import Draft, Notice, PageContext, SearchQuery, page_number
from spamguard.web.pages.filters import UNDECIDED, count_noun, day, tone
from spamguard.web.pages.rendering import build_explanation, redirect, render_page

# ---- today

TODAY_SPANS = {24: "24 hours", 72: "3 days", 168: "7 days"}


@dataclass(frozen=True, slots=True)
class Mistakes:
    """How the verdicts compare with what people said. rows: wrong verdicts first."""

    spoken: int
    wrong: int
    unsure: int
    rows: list[ConfusionCell]


async def today_page(pages: PageContext, request: Request) -> Response:
    """Show mail by verdict, lessons and mistakes of the last hours."""
    person, span = auth.current_person(request), request.query_params.get("hours", "")
    hours = int(span) if span in map(str, TODAY_SPANS) else next(iter(TODAY_SPANS))
    today = await pages.service.today(person, hours)
    by_label: Counter[str] = Counter()
    for hour in today.hours:
        by_label.update(hour.mail)
    totals = dict(by_label.most_common())
    classes = await pages.service.classes(person)
    tones = {label: tone(label, classes) for label in totals}
    nothing_decided = list(totals) == [UNSURE]
    charted = charts.hours_with_data(today.hours)
    return render_page(
        request,
        "today.html",
        today=today,
        hours=hours,
        spans=TODAY_SPANS,
        totals=totals,
        corrections=sum(hour.corrections for hour in today.hours),
        mail=charts.mail_chart(charted, tones),
        lessons=charts.lessons_chart(charted),
        mistakes=count_mistakes(today),
        classes=classes,
        since=SearchQuery(since=day(today.hours[0].start)),
        missing=(await pages.service.model(person)).missing if nothing_decided else "",
        faults=pages.monitor.find_unwell() if person.operator else (),
    )


def count_mistakes(today: Today) -> Mistakes:
    """Count wrong and unsure verdicts among the messages that people have spoken about."""
    rows = sorted(
        today.wrong, key=lambda row: (row.said == row.taught, row.said in UNDECIDED, -row.messages)
    )
    spoken = sum(row.messages for row in rows)
    wrong = sum(row.messages for row in rows if row.said not in (*UNDECIDED, row.taught))
    unsure = sum(row.messages for row in rows if row.said == UNSURE)
    return Mistakes(spoken, wrong, unsure, rows)


# ---- teaching a message

_CHUNK_BYTES = 256 << 10
_MAX_HEAD_BYTES = 64 << 10  # in which the subject is looked for
_HEADER_END = re.compile(rb"\n\r?\n")


async def teach_page(pages: PageContext, request: Request) -> Response:
    """Show the form to upload a message."""
    classes = await pages.service.classes(auth.current_person(request))
    return render_page(request, "teach.html", classes=classes)


async def upload_message(pages: PageContext, request: Request) -> Response:
    """Take a message, and lead to its preview."""
    person = auth.current_person(request)
    message = auth.new_spool(request)
    try:
        async with auth.read_form_with_file(request) as (form, file):
            await _copy_upload(file, form.get("source", ""), message)
        draft = await _make_draft(pages, person, message, form.get("class", ""))
    except BaseException:
        message.close()
        raise
    return redirect(f"/teach/{pages.drafts.put(person, draft)}")


async def _copy_upload(file: UploadFile | None, source: str, message: Spool) -> None:
    """Copy the file, or else the pasted text. UsageError: there is no message."""
    if file is not None and file.size:
        while chunk := await file.read(_CHUNK_BYTES):
            message.write(chunk)
    else:
        message.write(source.strip("\r\n\ufeff").encode("utf-8", "replace"))
    if not message.size:
        raise UsageError("there is no message: choose a file, or paste the source of a message")
    if b":" not in message.read_start(4096):
        raise UsageError(
            "this is not a message, because it has no header. "
            "Mail programs call what is needed “source” or “original”"
        )


async def preview_page(pages: PageContext, request: Request) -> Response:
    """Show what teaching the message would change."""
    person = auth.current_person(request)
    name, draft = _get_draft(pages, request)
    head = _HEADER_END.split(draft.message.read_start(_MAX_HEAD_BYTES), 1)[0]
    return render_page(
        request,
        "preview.html",
        name=name,
        draft=draft,
        subject=decode_subject(head),
        explained=build_explanation(draft.details.why, None, page_number(request)),
        classes=await pages.service.classes(person),
    )


async def change_draft(pages: PageContext, request: Request) -> Response:
    """Preview the same message as another class."""
    person = auth.current_person(request)
    form = await auth.read_form(request)
    name, draft = _get_draft(pages, request)
    changed = await _make_draft(pages, person, draft.message, form.get("class", ""))
    draft.label, draft.details = changed.label, changed.details
    return redirect(f"/teach/{name}")


async def learn_draft(pages: PageContext, request: Request) -> Response:
    """Teach the message."""
    person = auth.current_person(request)
    await auth.read_form(request)
    name, draft = _get_draft(pages, request)
    receipt = await pages.service.learn(person, draft.message, draft.label)
    pages.drafts.remove(person, name)
    notice = context.learnt_notice(receipt, f"/teach/forget?digest={receipt.digest}")
    return redirect("/teach", pages.notices.put(person, notice))


async def forget_digest(pages: PageContext, request: Request) -> Response:
    """Take back the person's vote on a message, by message digest."""
    person = auth.current_person(request)
    await auth.read_form(request)
    receipt = await pages.service.forget(person, request.query_params.get("digest", ""))
    return redirect("/teach", pages.notices.put(person, context.taken_back_notice(receipt)))


async def _make_draft(pages: PageContext, person: Person, message: Spool, label: str) -> Draft:
    if label not in await pages.service.classes(person):
        raise UsageError("choose what the message is, then preview again: there is no such class")
    return Draft(message, label, await pages.service.preview(person, message, label))


def _get_draft(pages: PageContext, request: Request) -> tuple[str, Draft]:
    name = str(request.path_params["draft"])
    draft = pages.drafts.get(auth.current_person(request), name)
    if draft is None:
        raise NotThereError("this message is no longer stored here: upload it again")
    return name, draft


# ---- the model, and undo

UNDO_SPANS = {
    "1": "in the last hour",
    "24": "in the last 24 hours",
    "168": "in the last 7 days",
    "720": "in the last 30 days",
    "": "at any time",
}
"""By hours."""
_MAX_USER = 320  # characters of a name
_MAX_USERS = _MAX_LESSONS = 200  # rows


async def model_page(pages: PageContext, request: Request) -> Response:
    """Show what has been learnt, how well it holds, and how much each person has taught."""
    model = await pages.service.model(auth.current_person(request))
    return render_page(
        request,
        "model.html",
        model=model,
        growth=charts.growth_chart(model.growth),
        calibration=charts.calibration_chart(model.calibration),
        max_users=_MAX_USERS,
    )


async def undo_page(pages: PageContext, request: Request) -> Response:
    """Show which lessons of a user would be taken back."""
    person, query = auth.current_person(request), request.query_params
    user, hours = query.get("user", "")[:_MAX_USER], query.get("hours", "24")
    if hours not in UNDO_SPANS:
        raise UsageError("choose a time from the list: there is no such time")
    since = float(int(time.time() - int(hours) * 3600)) if hours else 0.0
    receipts = await pages.service.undo(person, user, since, dry=True)
    shown = receipts[:_MAX_LESSONS]
    return render_page(
        request,
        "undo.html",
        user=user,
        hours=hours,
        spans=UNDO_SPANS,
        since=since,
        receipts=receipts,
        sums=Counter(receipt.was for receipt in receipts),
        shown=shown,
        passed=await pages.service.passed(person, [receipt.digest for receipt in shown]),
        classes=await pages.service.classes(person),
    )


async def undo_lessons(pages: PageContext, request: Request) -> Response:
    """Take these lessons back."""
    person = auth.current_person(request)
    form = await auth.read_form(request)
    user = unquote(form.get("user", ""))[:_MAX_USER]
    try:
        since = float(form.get("since", ""))
    except ValueError:
        since = -1.0
    if not 0 <= since <= MAX_TIME:
        raise UsageError("this is not a time: go back and choose again")
    receipts = await pages.service.undo(person, user, since)
    lessons, teacher = count_noun(len(receipts), "lesson"), user or "the site"
    text = f"Taken back: {lessons} of {teacher}. The filter settles in the background."
    return redirect("/model", pages.notices.put(person, Notice(text)))


# ---- words


async def words_page(pages: PageContext, request: Request) -> Response:
    """Show how often a word was taught, and what it adds."""
    person = auth.current_person(request)
    word, error_text = request.query_params.get("word", "").strip(), ""
    counted: Sequence[TokenCounts] = ()
    try:
        counted = await pages.service.words(person, word) if word else ()
    except UsageError as error:
        error_text = str(error)
    longest = max((abs(row.part) for row in counted), default=0.0)
    return render_page(
        request,
        "words.html",
        422 if error_text else 200,
        word=word,
        error_text=error_text,
        classes=list(dict.fromkeys(name for row in counted for name in row.messages)),
        rows=[(row, charts.part_bar(row.part, longest)) for row in counted],
    )
