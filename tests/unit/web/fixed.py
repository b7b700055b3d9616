"""A service of fixed values for tests of views without a filter, and an application around them
with the usual access rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from spamguard.config.options import Settings
from spamguard.errors import NotAllowedError, NotThereError, SpamguardError, UsageError
from spamguard.records import Clue, Explanation, Flip, Verdict
from spamguard.storage import Spool
from spamguard.web.auth import (
    Person,
    UnauthenticatedError,
    Visitor,
)
from spamguard.web.history import Search
from spamguard.web.models import (
    Class,
    ConfusionCell,
    HeldMessage,
    HeldMessageDetails,
    Hour,
    JudgementDetails,
    JudgementPage,
    LessonReceipt,
    Model,
    Opinion,
    QuarantinePage,
    RecipientReply,
    ReleaseResult,
    Today,
    User,
    Waiting,
    WordPart,
)
from spamguard.web.numbers import DaemonHealth
from spamguard.web.pages import PageContext, problem_page
from spamguard.web.requests import RequestContext, problem_from_error
from spamguard.web.service import Service
from spamguard.web.views import page_routes

NOW = 1_790_000_000.0
NAME = "06gvk961gretkbe9"
OTHER = "06gvk975a57i83a0"
OPERATOR, ANNA = Person("", True), Person("anna")
SPAM = Verdict("spam", 0.99871, 6.658, {"ham": 0.00129, "spam": 0.99871})
HAM = Verdict("ham", 0.02, -3.9, {"ham": 0.98, "spam": 0.02})
WRONG = [
    ConfusionCell("spam", "spam", 8),
    ConfusionCell("ham", "spam", 2),
    ConfusionCell("unsure", "ham", 1),
]
HELD = HeldMessage(
    NAME, NOW, "a@b.example", "Ann <a@b.example>", ("anna@example.net",), ("anna@example.net",),
    "Held", 99, "spam", False, 0.999,
)  # fmt: skip
DIGEST = "31b1a3cbc2f1" + "0" * 20


def judgement(name: str = NAME, **changes: Any) -> JudgementDetails:
    usual = JudgementDetails(
        NOW, "smtp://127.0.0.1:10025", "192.0.2.7", "bounce-4711@mailer.example",
        "Sunny Roofs <hello@roofs.example>", ("anna@example.net",), "Solar panels", 5321,
        "spam", 0.99871, 6.658, {}, "passed", "250 2.0.0 Ok", DIGEST[:12], name, "", "",
        True, False, [WordPart("solar", 2.5)],
    )  # fmt: skip
    return replace(usual, **changes)


def explanation(verdict: Verdict = SPAM) -> Explanation:
    clues = [
        Clue("solar", 3.0, {"ham": 0, "spam": 12}),
        Clue("meeting", -1.25, {"ham": 30, "spam": 1}),
        Clue("", 0.5, {"ham": 1, "spam": 2}),
    ]
    shares = {"multinomial words": 4.0, "logistic words": 2.558}
    return Explanation(
        verdict, "spam", "ham", 6.658, 0.1, 0.2, shares, shares, clues,
        {"charset": 1.1}, {"links": 3.008}, flip=Flip(4, "spam", "unsure"),
    )  # fmt: skip


class Monitor:
    """Reports that all is well, or the problems given."""

    def __init__(self) -> None:
        self.found: list[str] = []

    async def look(self) -> DaemonHealth:
        return DaemonHealth(NOW, self.found, {})

    async def find_unwell(self) -> list[str]:
        return self.found


@dataclass
class Fixed:
    """A service of fixed values, with the methods of `Service`. calls: requested changes."""

    judgements: list[JudgementDetails] = field(
        default_factory=lambda: [judgement(OTHER, label="ham", probability=0.02), judgement()]
    )
    held_back: list[HeldMessage] = field(default_factory=lambda: [HELD])
    following: str = ""
    header: str = "Subject: Held\r\nFrom: a@b.example"
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    reasons: Explanation = field(default_factory=explanation)
    changed: bool = True
    taught_classes: Mapping[str, bool] = field(default_factory=lambda: {"ham": False, "spam": True})
    failure: SpamguardError | None = None
    empty: bool = False
    settings: Settings = field(default_factory=lambda: Settings(Path("/nonexistent"), ()))
    monitor: Monitor = field(default_factory=Monitor)

    def _may(self) -> None:
        if self.failure:
            raise self.failure

    async def judge(self, person: Person, message: Spool) -> Opinion:
        self.messages.append(message.read())
        return Opinion(
            SPAM.label, SPAM.probability, SPAM.log_odds, SPAM.probabilities, DIGEST, "", "", ()
        )

    async def explain(self, person: Person, message: Spool) -> Explanation:
        self.messages.append(message.read())
        return self.reasons

    async def learn(self, person: Person, message: Spool, label: str) -> LessonReceipt:
        self.calls.append(("learn", person.name, message.read(), label))
        return LessonReceipt(DIGEST, label, self.changed, "", SPAM)

    async def forget(self, person: Person, digest: str) -> LessonReceipt:
        self.calls.append(("forget", person.name, digest))
        return LessonReceipt(digest, "", True, "spam", HAM)

    async def history(self, person: Person, search: Search) -> JudgementPage:
        self._may()
        self.searches.append(search)
        return JudgementPage(self.judgements, OTHER if len(self.judgements) > 1 else "")

    unsure = Service.unsure

    async def waiting(self, person: Person) -> Waiting:
        return Waiting("2", "1")

    async def judgement(self, person: Person, name: str) -> JudgementDetails:
        found = next((judgement for judgement in self.judgements if judgement.id == name), None)
        if found is None:
            raise NotThereError("there is no such message")
        return found

    async def why(self, person: Person, name: str) -> tuple[JudgementDetails, Explanation]:
        then = await self.judgement(person, name)
        if then.label == "not-scanned":
            raise UsageError("this message was not scanned: nothing is known of its words")
        return then, self.reasons

    async def learn_passed(self, person: Person, name: str, label: str) -> LessonReceipt:
        self.calls.append(("learn_passed", person.name, name, label))
        held = label == "ham" and any(row.held for row in self.judgements)
        return LessonReceipt(DIGEST, label, self.changed, "", SPAM, held)

    async def forget_passed(self, person: Person, name: str) -> LessonReceipt:
        self.calls.append(("forget_passed", person.name, name))
        return LessonReceipt(DIGEST, "", True, "spam", HAM)

    async def say_of_sender(
        self, person: Person, name: str, label: str, domain: str = ""
    ) -> LessonReceipt:
        self.calls.append(("say_of_sender", person.name, name, label, domain))
        return LessonReceipt(DIGEST, label, self.changed, "")

    async def today(self, person: Person, hours: int = 24) -> Today:
        if self.empty:
            return Today([Hour(NOW - 3600 * n, {}, 0) for n in reversed(range(hours))], 0, 0, ())
        found = [
            Hour(NOW - 3600 * n, {"ham": n % 7, "spam": n % 3, "unsure": n % 2}, n % 4)
            for n in reversed(range(hours))
        ]
        passed = sum(sum(hour.mail.values()) for hour in found)
        return Today(found, passed, sum(hour.lessons for hour in found), WRONG)

    async def model(self, person: Person) -> Model:
        if self.empty:
            return Model({}, "", 0, ())
        users = [User("anna", {"spam": 3}, NOW), User("", {"ham": 60, "spam": 57}, None)]
        classes = {"ham": Class(60, unwanted=False), "spam": Class(60, unwanted=True)}
        return Model(classes, "", 4, users)

    async def classes(self) -> Mapping[str, bool]:
        return self.taught_classes

    async def quarantine(self, person: Person, search: Search | None = None) -> QuarantinePage:
        if search:
            self.searches.append(search)
        return QuarantinePage(self.held_back, self.following)

    async def held(self, person: Person, name: str) -> HeldMessageDetails:
        return HeldMessageDetails(**asdict(self.held_back[0]), header=self.header)

    async def preview_held(self, person: Person, name: str) -> str:
        return "" if self.empty else self.header

    async def release(self, person: Person, name: str) -> ReleaseResult:
        self.calls.append(("release", person.name, name))
        return ReleaseResult(
            name, [RecipientReply("anna@example.net", "250 Ok")], self.changed, True
        )

    async def delete(self, person: Person, name: str) -> None:
        if not person.operator:
            raise NotAllowedError("only operators may do this")
        self.calls.append(("delete", person.name, name))


@dataclass
class Gate:
    """Accepts the link "good"."""

    person: Person = ANNA
    left: int = 0

    async def log_in(self, link: str, visitor: Visitor | None) -> tuple[Person, str]:
        if link != "good":
            raise UnauthenticatedError("this link was used before, or is too old")
        return self.person, "x"

    def log_out(self, visitor: Visitor | None) -> None:
        self.left += 1


Work = Callable[[httpx.AsyncClient], Awaitable[None]]


def application(
    service: Fixed, spool: Path, person: Person | None = ANNA, gate: Gate | None = None
) -> Any:
    """The views with the usual access rules; errors that a view raises become pages."""
    visitor = Visitor(person, "x") if person else None

    async def told(request: Request, error: Exception) -> Response:
        return problem_page(request, problem_from_error(error))

    routes = page_routes(PageContext(service, service.monitor, gate or Gate()))
    inner = Starlette(
        routes=list(routes), exception_handlers={SpamguardError: told, 404: told, 405: told}
    )

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        context = RequestContext("", "", False, None, "", {})
        scope["state"] = {"visitor": visitor, "spool": spool, "context": context}
        await inner(scope, receive, send)

    return outer


def asking(
    work: Work, service: Fixed, spool: Path, person: Person | None = ANNA, gate: Gate | None = None
) -> None:
    """Do something with a client of the pages."""

    async def run() -> None:
        transport = httpx.ASGITransport(application(service, spool, person, gate))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080"
        ) as client:
            await work(client)

    asyncio.run(run())
