"""The last hours at a glance: mail by verdict, what people taught, how often we were wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from spamguard.policy import missing
from spamguard.web.access import contract as access
from spamguard.web.pages import charts
from spamguard.web.pages.drawing import page
from spamguard.web.pages.house import House
from spamguard.web.pages.texts import UNDECIDED, tone
from spamguard.web.service.values import Person, Today

SPANS = {24: "24 hours", 72: "3 days", 168: "7 days"}


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Of the mail that people have spoken about. rows: what we said, what they say, how often: wrong ones first, right ones last."""

    spoken: int
    wrong: int
    unsure: int
    rows: list[tuple[str, str, int]]


async def shown(house: House, request: Request) -> Response:
    """The page."""
    person = access.person(request)
    asked = request.query_params.get("hours", "")
    hours = int(asked) if asked in map(str, SPANS) else next(iter(SPANS))
    found = await house.service.today(person, hours)
    totals = _totals(found)
    unwanted = await house.classes(person)
    tones = {label: tone(label, unwanted) for label in totals}
    return page(
        request,
        "today.html",
        found=found,
        hours=hours,
        spans=SPANS,
        totals=totals,
        tones=tones,
        corrections=sum(hour.corrections for hour in found.hours),
        mail=charts.stacked(found.hours, tones),
        lessons=charts.lessons(found.hours),
        mistakes=mistakes(found),
        told=house.told(request),
        classes=unwanted,
        missing=await _missing(house, person) if list(totals) == ["unsure"] else "",
        wrong=await house.monitor.wrong() if person.operator else (),
    )


def mistakes(found: Today) -> Mistakes:
    """How often we were wrong, as far as anybody has told."""
    rows = [(said, truth, count) for (said, truth), count in found.wrong.items() if count]
    wrong = sum(count for said, truth, count in rows if said not in (*UNDECIDED, truth))
    unsure = sum(count for said, _, count in rows if said == "unsure")
    rows.sort(key=lambda row: (row[0] == row[1], row[0] in UNDECIDED, -row[2]))
    return Mistakes(sum(count for _, _, count in rows), wrong, unsure, rows)


async def _missing(house: House, person: Person) -> str:
    found = await house.service.model(person)
    return missing(found.classes, found.unwanted)


def _totals(found: Today) -> Mapping[str, int]:
    """Messages by label, most first."""
    sums: dict[str, int] = {}
    for hour in found.hours:
        for label, count in hour.mail.items():
            sums[label] = sums.get(label, 0) + count
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
