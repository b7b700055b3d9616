"""The last hours at a glance: mail by verdict, what people taught, how often we were wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from spamguard.policy import UNSURE
from spamguard.web.access import contract as access
from spamguard.web.pages import charts
from spamguard.web.pages.drawing import page
from spamguard.web.pages.house import House
from spamguard.web.pages.query import Query
from spamguard.web.pages.texts import UNDECIDED, day, tone
from spamguard.web.service.values import Today, Wrong

SPANS = {24: "24 hours", 72: "3 days", 168: "7 days"}


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Of the mail that people have spoken about. rows: wrong ones first, right ones last."""

    spoken: int
    wrong: int
    unsure: int
    rows: list[Wrong]


async def shown(house: House, request: Request) -> Response:
    """The page."""
    person = access.person(request)
    asked = request.query_params.get("hours", "")
    hours = int(asked) if asked in map(str, SPANS) else next(iter(SPANS))
    found = await house.service.today(person, hours)
    totals = _totals(found)
    unwanted = await house.service.classes(person)
    tones = {label: tone(label, unwanted) for label in totals}
    return page(
        request,
        "today.html",
        found=found,
        hours=hours,
        spans=SPANS,
        totals=totals,
        corrections=sum(hour.corrections for hour in found.hours),
        mail=charts.stacked(found.hours, tones),
        lessons=charts.lessons(found.hours),
        mistakes=mistakes(found),
        classes=unwanted,
        since=Query(since=day(found.hours[0].start)),
        missing=(await house.service.model(person)).missing if list(totals) == [UNSURE] else "",
        wrong=await house.monitor.wrong() if person.operator else (),
    )


def mistakes(found: Today) -> Mistakes:
    """How often we were wrong, as far as anybody has told."""
    wrong = sum(one.messages for one in found.wrong if one.said not in (*UNDECIDED, one.taught))
    unsure = sum(one.messages for one in found.wrong if one.said == UNSURE)
    rows = sorted(found.wrong, key=lambda one: (one.said == one.taught, one.said in UNDECIDED, -one.messages))
    return Mistakes(sum(one.messages for one in rows), wrong, unsure, rows)


def _totals(found: Today) -> Mapping[str, int]:
    """Messages by label, most first."""
    sums: Counter[str] = Counter()
    for hour in found.hours:
        sums.update(hour.mail)
    return dict(sums.most_common())
