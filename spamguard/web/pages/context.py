"""What all views share: the service, searches of the history, and state between two requests.

Between two requests, a `UserTtlStore` keeps notices (what a click has done) and drafts (uploaded
messages that are not taught yet). It is memory of this process: bounded, short-lived, and shown to
the person who put it there only. After a restart people have to repeat the step.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

from spamguard.errors import NotThereError, UsageError
from spamguard.keys import is_id
from spamguard.storage import Spool
from spamguard.web import auth
from spamguard.web.health import HealthReporter
from spamguard.web.models import LessonReceipt, Person, PreviewDetails, ReleaseResult, Search
from spamguard.web.pages.filters import count_noun, label_text
from spamguard.web.service import Service

_MAX_NOTICES_PER_USER, _MAX_NOTICES, _NOTICE_SECONDS = 20, 2000, 600.0
_MAX_PAGE_DIGITS = 6
_MAX_DRAFTS_PER_USER, _MAX_DRAFTS, _DRAFT_SECONDS = 3, 40, 1800.0


class PageContext:
    """What views work with; one for each process."""

    def __init__(
        self, service: Service, monitor: HealthReporter, sessions: auth.SessionManager
    ) -> None:
        self.service, self.monitor, self.sessions = service, monitor, sessions
        self.notices: UserTtlStore[Notice] = UserTtlStore(
            _MAX_NOTICES_PER_USER, _MAX_NOTICES, _NOTICE_SECONDS, time.monotonic, lambda _: None
        )
        self.drafts: UserTtlStore[Draft] = UserTtlStore(
            _MAX_DRAFTS_PER_USER,
            _MAX_DRAFTS,
            _DRAFT_SECONDS,
            time.monotonic,
            lambda draft: draft.message.close(),
        )

    def requested_notice(self, request: Request) -> Notice | None:
        """Return the notice that the address of a page names (`told=`)."""
        visitor = auth.current_visitor(request)
        name = request.query_params.get("told", "")
        return self.notices.get(visitor.person, name) if visitor else None


def page_number(request: Request) -> int:
    """Return the page in a list that the address names (page=), 1 if it names none."""
    text = request.query_params.get("page", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_PAGE_DIGITS else 1


def path_id(request: Request) -> str:
    """Return the verdict id in the path of a request. NotThereError: it is not one."""
    verdict_id = str(request.path_params["name"])
    if not is_id(verdict_id):
        raise NotThereError("there is no message with that verdict id")
    return verdict_id


@dataclass(slots=True)
class Draft:
    """An uploaded message, the class to teach it as, and its preview."""

    message: Spool
    label: str
    details: PreviewDetails


# ---- notices


@dataclass(frozen=True, slots=True)
class Notice:
    """What a click has done, in a sentence.

    undo: address of the form that takes it back, or "". held: verdict id of a held message that
    was just taught as a wanted class, or "".
    """

    text: str
    receipt: LessonReceipt | None = None
    released: ReleaseResult | None = None
    undo: str = ""
    held: str = ""


def learnt_notice(receipt: LessonReceipt, undo: str, held: str = "") -> Notice:
    """Tell of a lesson. It can be undone if it changed anything."""
    label = label_text(receipt.label)
    if not receipt.changed:
        text = f"You had already said {label}. Nothing has changed."
        return Notice(text, receipt, held=held)
    before = f" You had said {label_text(receipt.was)} before." if receipt.was else ""
    return Notice(f"Learnt as {label}.{before}", receipt, undo=undo, held=held)


def taken_back_notice(receipt: LessonReceipt) -> Notice:
    """Tell of a vote that was taken back."""
    if not receipt.changed:
        text = "You had said nothing about this message, so there is nothing to take back."
    else:
        label = label_text(receipt.was)
        text = f"Taken back: you had said {label}. It counts as if it had never been taught."
    return Notice(text, receipt)


def released_notice(released: ReleaseResult) -> Notice:
    """Tell of a held message that was released, or should have been."""
    if not released.recipients:
        return Notice("This message had been released before.", released=released)
    if released.released:
        text = f"Released to {count_noun(len(released.recipients), 'recipient')}."
    else:
        text = (
            "Not all recipients have got the message: "
            "the replies of the next hop are below. Try again later."
        )
    if released.taught:
        text += " Learnt as ham."
    return Notice(text, released=released)


# ---- state between two requests

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _StoredItem(Generic[Item]):
    person: Person
    expires: float
    value: Item


class UserTtlStore(Generic[Item]):
    """Keeps items of people for some time, each under a name that nobody can guess.

    Parameters
    ----------
    max_per_user, max_items
        Beyond so many, the oldest are dropped.
    clock
        A monotonic clock, in seconds.
    drop
        Called with each item that is dropped.
    """

    def __init__(
        self,
        max_per_user: int,
        max_items: int,
        seconds: float,
        clock: Callable[[], float],
        drop: Callable[[Item], None],
    ) -> None:
        self._max_per_user, self._max_items, self._seconds = max_per_user, max_items, seconds
        self._clock, self._drop = clock, drop
        self._items: OrderedDict[str, _StoredItem[Item]] = OrderedDict()  # oldest first

    def put(self, person: Person, value: Item) -> str:
        """Store an item and return its name."""
        self._expire()
        of_person = [name for name, item in self._items.items() if item.person == person]
        for name in of_person[: max(0, len(of_person) - self._max_per_user + 1)]:
            self._drop_item(name)
        while len(self._items) >= self._max_items:
            self._drop_item(next(iter(self._items)))
        name = secrets.token_urlsafe(16)
        self._items[name] = _StoredItem(person, self._clock() + self._seconds, value)
        return name

    def get(self, person: Person, name: str) -> Item | None:
        """Return an item of this person."""
        self._expire()
        item = self._items.get(name)
        return item.value if item is not None and item.person == person else None

    def remove(self, person: Person, name: str) -> None:
        """Drop an item of this person."""
        if self.get(person, name) is not None:
            self._drop_item(name)

    def _expire(self) -> None:
        now = self._clock()
        while self._items and next(iter(self._items.values())).expires <= now:
            self._drop_item(next(iter(self._items)))

    def _drop_item(self, name: str) -> None:
        self._drop(self._items.pop(name).value)


# ---- searches of the history

_MAX_FIELD = 200  # characters
HISTORY_ROWS = 50
_VERDICT_ID = re.compile(r"(?:.*; id=)?([0-9a-v]{16})(?:;.*)?")


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search as an address or a form has it, as texts.

    Addresses are built from these fields alone, never from what a client sent. since, until: days
    such as 2026-11-20 in UTC, both included.
    """

    subject: str = ""
    sender: str = ""
    recipient: str = ""
    label: str = ""
    taught: str = ""
    since: str = ""
    until: str = ""
    before: str = ""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> SearchQuery:
        """Read an address or a form; unknown parameters are ignored."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: parameters.get(name, "")[:_MAX_FIELD].strip() for name in names})

    def to_search(self) -> Search:
        """Make the search for the service. UsageError: a day is not a day."""
        return Search(
            self.sender,
            self.recipient,
            self.subject,
            self.label,
            self.taught,
            _day_start(self.since) if self.since else 0.0,
            _day_start(self.until, days=1) if self.until else 0.0,
            self.before if is_id(self.before) else "",
            HISTORY_ROWS,
        )

    @property
    def verdict_id(self) -> str:
        """The verdict id that somebody searches for, alone or in a field X-Spamguard; or ""."""
        match = _VERDICT_ID.fullmatch(self.subject)
        return match[1] if match else ""

    @property
    def narrowed(self) -> bool:
        """Whether the search asks for more than a verdict and a page."""
        return replace(self, label="", before="") != SearchQuery()

    @property
    def live(self) -> bool:
        """Whether new mail can appear in it."""
        return not self.before and not self.until

    def ending(self, **changes: str) -> str:
        """Return the query part of an address with its question mark, or "".

        >>> SearchQuery(label="spam").ending(sender="ann")
        '?sender=ann&label=spam'
        """
        values = asdict(replace(self, **changes))
        encoded = urlencode({name: value for name, value in values.items() if value})
        return f"?{encoded}" if encoded else ""


def _day_start(day: str, days: int = 0) -> float:
    try:
        start = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
        return (start + timedelta(days)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"{day} is not a day: write it as in 2026-11-20") from None
