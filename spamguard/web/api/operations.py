"""Everything that can be asked of the API: one table. Routes, checks of what is given, and the description are made from it.

A handler gets what was asked, checked, and returns what is told by its type (`schema`). Nothing here knows HTTP beyond methods and paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from spamguard.errors import UsageError
from spamguard.spool import Spool
from spamguard.web.api import given, shapes
from spamguard.web.service.contract import Monitor, Service
from spamguard.web.service.values import MOST, Found, Person, Preview, Search, Why


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, checked. given: by name of the parameter. name: the id in the path. message: of those that take one.
    root: where we are on this host, as `access.contract.root`."""

    service: Service
    monitor: Monitor
    person: Person
    given: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    spool: Spool | None = None
    root: str = ""

    @property
    def message(self) -> Spool:
        """The message that was handed over. UsageError: none was."""
        if self.spool is None:
            raise UsageError("a message is needed")
        return self.spool


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is no JSON."""

    content: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class Operation:
    """operators: for them only."""

    method: str
    path: str
    name: str
    about: str
    run: Callable[[Asked], Awaitable[Any]]
    parameters: tuple[given.Parameter, ...] = ()
    takes_message: bool = False
    operators: bool = False

    @property
    def answer(self) -> Any:
        """Type of the answer, as the handler declares it; Text: no JSON."""
        return get_type_hints(self.run.call if isinstance(self.run, Plain) else self.run)["return"]


# ---- handlers


@dataclass(frozen=True, slots=True)
class Plain:
    """What a method of the service tells, as it is: it is given who asks, then what there is of id, message and query, in this order."""

    call: Callable[..., Awaitable[Any]]

    async def __call__(self, asked: Asked) -> Any:
        """Ask."""
        named = [asked.name] if asked.name else []
        handed = [] if asked.spool is None else [asked.spool]
        return await getattr(asked.service, self.call.__name__)(asked.person, *named, *handed, *asked.given.values())


async def _explain(asked: Asked) -> shapes.WhyTold:
    return _why_told(await asked.service.explain(asked.person, asked.message))


async def _preview(asked: Asked) -> Preview:
    return (await asked.service.preview(asked.person, asked.message, asked.given["class"])).preview


async def _history(asked: Asked) -> Found:
    asked_for = {_FIELDS.get(name, name): value for name, value in asked.given.items()}
    return await asked.service.history(asked.person, Search(**asked_for))


async def _why(asked: Asked) -> shapes.WhyTold:
    return _why_told(await asked.service.why(asked.person, asked.name))


def _why_told(found: Why) -> shapes.WhyTold:
    return shapes.WhyTold(found.then, shapes.explained_by(found.now))


async def _undo(asked: Asked) -> shapes.Undone:
    user, since, dry = asked.given["user"], asked.given["since"], asked.given["dry_run"]
    done = await asked.service.undo(asked.person, user, since, dry=dry)
    return shapes.Undone(user, since, dry, len(done), done)


async def _delete(asked: Asked) -> shapes.Deleted:
    await asked.service.delete(asked.person, asked.name)
    return shapes.Deleted(asked.name, deleted=True)


async def _words(asked: Asked) -> shapes.Words:
    return shapes.Words(await asked.service.words(asked.person, asked.given["word"]))


async def _classes(asked: Asked) -> shapes.Classes:
    return shapes.Classes(await asked.service.classes(asked.person))


async def _metrics(asked: Asked) -> Text:
    return Text(*await asked.monitor.page())


async def _health(asked: Asked) -> shapes.Health:
    wrong = await asked.monitor.wrong()
    return shapes.Health(not wrong, wrong if asked.person.operator else [])


async def _described(asked: Asked) -> dict[str, Any]:
    from spamguard.web.api.openapi import description  # noqa: PLC0415  # made from the table below

    return {**description(), "servers": [{"url": asked.root or "/"}]}


# ---- the table


_CLASS = given.Parameter("class", given.CLASS, "What the message is: spam, ham, or a class of your own")
_PAGE = (
    given.Parameter("before", given.ID, "Only older ones than this id", ""),
    given.Parameter("limit", given.COUNT, f"How many, at most {MOST}", 50),
)
_SEARCH = (
    given.Parameter("from", given.TEXT, "Part of the sender's address, or of the author: of the header's From", ""),
    given.Parameter("to", given.TEXT, "Part of a recipient's address", ""),
    given.Parameter("subject", given.TEXT, "Part of the subject", ""),
    given.Parameter("label", given.CLASS, "A class, unsure or not-scanned: what was said", ""),
    given.Parameter("taught", given.CLASS, "A class, or any: what people have said", ""),
    given.Parameter("since", given.TIME, "Not older than this", 0.0),
    given.Parameter("until", given.TIME, "Older than this", 0.0),
    *_PAGE,
)
_FIELDS = {"from": "sender", "to": "recipient"}  # of `Search`
_WORD = given.Parameter("word", given.TEXT, "A word, or a token as explanations name it")
_DIGEST = given.Parameter("digest", given.DIGEST, "Which message, as judge and learn tell it")
_UNDO = (
    given.Parameter("user", given.TEXT, "Whose word; others than operators name themselves; empty: the site's"),
    given.Parameter("since", given.TIME, "From when on"),
    given.Parameter("dry_run", given.FLAG, "true: only tell what it would do", False),
)
_HOURS = given.Parameter("hours", given.HOURS, "How many of the last hours", 24)

OPERATIONS = (
    Operation("POST", "/judge", "judge", "What the filter thinks of a message", Plain(Service.judge), takes_message=True),
    Operation("POST", "/explain", "explain", "Why it thinks so", _explain, takes_message=True),
    Operation("POST", "/learn", "learn", "Teach a message", Plain(Service.learn), (_CLASS,), takes_message=True),
    Operation("POST", "/preview", "preview", "What that would change", _preview, (_CLASS,), takes_message=True),
    Operation("POST", "/forget", "forget", "Take back what you have said of a message", Plain(Service.forget), (_DIGEST,)),
    Operation("GET", "/history", "history", "Messages that passed", _history, _SEARCH),
    Operation("GET", "/history/{id}", "judgement", "One of them, with its words", Plain(Service.judgement)),
    Operation("GET", "/history/{id}/why", "why", "Why, then and now", _why),
    Operation("POST", "/history/{id}/learn", "learnPassed", "Teach one of them", Plain(Service.learn_passed), (_CLASS,)),
    Operation("POST", "/history/{id}/forget", "forgetPassed", "Take that back", Plain(Service.forget_passed)),
    Operation("POST", "/undo", "undo", "Take back all that a user has said since then", _undo, _UNDO),
    Operation("GET", "/quarantine", "quarantine", "What is held back", Plain(Service.quarantine), _PAGE),
    Operation("GET", "/quarantine/{id}", "held", "One of these, with its header", Plain(Service.held)),
    Operation("DELETE", "/quarantine/{id}", "delete", "Throw it away, for good", _delete, operators=True),
    Operation("POST", "/quarantine/{id}/release", "release", "Hand it on, and learn it as ham", Plain(Service.release)),
    Operation("GET", "/today", "today", "The last hours", Plain(Service.today), (_HOURS,)),
    Operation("GET", "/model", "model", "What has been learnt", Plain(Service.model)),
    Operation("GET", "/words", "words", "How a word counts", _words, (_WORD,)),
    Operation("GET", "/classes", "classes", "What mail may be taught as", _classes),
    Operation("GET", "/status", "status", "The daemon and the filter, as `spamguard status`", Plain(Service.status), operators=True),
    Operation("GET", "/metrics", "metrics", "For Prometheus", _metrics, operators=True),
    Operation("GET", "/health", "health", "Whether all processes live", _health),
    Operation("GET", "/openapi.json", "openapi", "This description", _described),
)
