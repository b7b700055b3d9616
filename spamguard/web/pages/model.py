"""What has been learnt and how well it holds; what each person taught, and taking that back: first what it would be, then doing it."""

from __future__ import annotations

import time
from collections import Counter
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from spamguard.errors import UsageError
from spamguard.times import LATEST
from spamguard.web.access import contract as access
from spamguard.web.pages import charts
from spamguard.web.pages.drawing import page, see
from spamguard.web.pages.house import House
from spamguard.web.pages.notices import Notice
from spamguard.web.pages.texts import counted

SPANS = {"1": "in the last hour", "24": "in the last 24 hours", "168": "in the last 7 days", "720": "in the last 30 days"} | {
    "": "at any time"
}
"""By hours."""
_LONGEST = 320  # characters of a user's name
_MOST_USERS = _MOST_LESSONS = 200  # rows


async def shown(house: House, request: Request) -> Response:
    """The page."""
    person = access.person(request)
    found = await house.service.model(person)
    return page(
        request,
        "model.html",
        found=found,
        growth=charts.growth(found.growth),
        calibration=charts.calibration(found.calibration),
        most_users=_MOST_USERS,
    )


async def asked(house: House, request: Request) -> Response:
    """What undoing would take back."""
    person = access.person(request)
    user, hours = request.query_params.get("user", "")[:_LONGEST], request.query_params.get("hours", "24")
    if hours not in SPANS:
        raise UsageError("choose since when: there is no such span")
    since = float(int(time.time() - int(hours) * 3600)) if hours else 0.0
    found = await house.service.undo(person, user, since, dry=True)
    sums = Counter(receipt.was for receipt in found)
    first = found[:_MOST_LESSONS]
    return page(
        request,
        "undo.html",
        user=user,
        hours=hours,
        spans=SPANS,
        since=since,
        receipts=found,
        sums=sums,
        first=first,
        passed=await house.service.passed(person, [receipt.digest for receipt in first]),
        classes=await house.service.classes(person),
    )


async def undone(house: House, request: Request) -> Response:
    """Take it back."""
    person = access.person(request)
    form = await access.posted(request)
    user, since = unquote(form.get("user", ""))[:_LONGEST], _seconds(form.get("since", ""))
    found = await house.service.undo(person, user, since)
    words = f"Taken back: {counted(len(found), 'lesson')} of {user or 'the site'}. The filter settles in the background."
    return see("/model", house.notices.put(person, Notice(words)))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= LATEST:
        raise UsageError("since when is not a time: go back and choose again")
    return value
