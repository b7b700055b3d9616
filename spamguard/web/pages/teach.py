"""A message from outside: what would be said of it, what teaching it would change, and only then teaching it."""

from __future__ import annotations

import re

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import NotThereError, UsageError
from spamguard.proxy.journal import subject_of
from spamguard.spool import Spool
from spamguard.web.access import contract as access
from spamguard.web.pages import notices, parts
from spamguard.web.pages.drawing import page, see
from spamguard.web.pages.house import Draft, House
from spamguard.web.pages.message import WORDS
from spamguard.web.service.values import Person

_CHUNK = 256 << 10
_HEAD = 64 << 10  # bytes in which a subject is looked for
_HEADER_END = re.compile(rb"\n\r?\n")
_GONE = "this message is no longer kept here: hand it over again"


async def form(house: House, request: Request) -> Response:
    """The page."""
    person = access.person(request)
    return page(request, "teach.html", classes=await house.service.classes(person))


async def handed_over(house: House, request: Request) -> Response:
    """A message comes: look at it, keep it for the next page."""
    person = access.person(request)
    message = access.new_spool(request)
    try:
        async with access.posted_with_file(request) as (given, file):
            await _copy(file, given.get("source", ""), message)
        draft = await _draft(house, person, message, given.get("class", ""))
    except BaseException:
        message.close()
        raise
    return see(f"/teach/{house.drafts.put(person, draft)}")


async def previewed(house: House, request: Request) -> Response:
    """What would happen."""
    person = access.person(request)
    name, draft = _kept(house, request)
    explained = parts.told(draft.told.why, None, WORDS)
    subject, classes = _subject(draft.message), await house.service.classes(person)
    return page(request, "preview.html", name=name, draft=draft, subject=subject, explained=explained, classes=classes)


async def changed(house: House, request: Request) -> Response:
    """The same message as something else."""
    person = access.person(request)
    given = await access.posted(request)
    name, draft = _kept(house, request)
    again = await _draft(house, person, draft.message, given.get("class", ""))
    draft.label, draft.told = again.label, again.told
    return see(f"/teach/{name}")


async def learnt(house: House, request: Request) -> Response:
    """Teach it."""
    person = access.person(request)
    await access.posted(request)
    name, draft = _kept(house, request)
    receipt = await house.service.learn(person, draft.message, draft.label)
    house.drafts.take(person, name)
    return see("/teach", house.notices.put(person, notices.learnt(receipt, f"/teach/forget?digest={receipt.digest}")))


async def forgotten(house: House, request: Request) -> Response:
    """Take back what was said about a message, by its digest."""
    person = access.person(request)
    await access.posted(request)
    receipt = await house.service.forget(person, request.query_params.get("digest", ""))
    return see("/teach", house.notices.put(person, notices.taken_back(receipt)))


# ---- the message


async def _draft(house: House, person: Person, message: Spool, label: str) -> Draft:
    if label not in await house.service.classes(person):
        raise UsageError("choose what the message is, then preview again: there is no such class")
    return Draft(message, label, await house.service.preview(person, message, label))


def _subject(message: Spool) -> str:
    """So that people see which message they chose."""
    return subject_of(_HEADER_END.split(message.head(_HEAD), 1)[0])


def _kept(house: House, request: Request) -> tuple[str, Draft]:
    name = str(request.path_params["draft"])
    draft = house.drafts.get(access.person(request), name)
    if draft is None:
        raise NotThereError(_GONE)
    return name, draft


async def _copy(file: UploadFile | None, source: str, message: Spool) -> None:
    """The file, else what was pasted. UsageError: there is nothing, or no message."""
    if file is not None and file.size:
        while chunk := await file.read(_CHUNK):
            message.write(chunk)
    else:
        message.write(source.strip("\r\n\ufeff").encode("utf-8", "replace"))
    if not message.size:
        raise UsageError("there is no message: choose a file, or paste the source of a message")
    if b":" not in message.head(4096):
        raise UsageError("this is no message: it has no header. Mail programs call what is needed “source” or “original”")
