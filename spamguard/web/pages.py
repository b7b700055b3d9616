"""How a page is made: values as texts and charts, searches in addresses, notices, rendering.

The server renders whole pages, which work without the script. Templates escape each value, and
`make_visible` makes each text harmless first: a letter that turns the direction of a line, hides
text, or breaks out of a field must never get through. A page must never contain a script, a style
or an address of another host; the security policy of every answer (`requests`) forbids browsers to
follow any.

Templates draw charts as SVG, by hand because libraries for charts put scripts and styles into a
page. A chart must never be the only way to read a number: each has a table beside it.

Between two requests, `PageContext` keeps what a click has done. It is memory of this process:
bounded, and shown to the person who put it there only.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spamguard.engine import explain_text
from spamguard.engine.explain_text import ExplainedFeature, GroupPart
from spamguard.engine.policy import UNSURE
from spamguard.errors import NotThereError
from spamguard.keys import is_id
from spamguard.ledger.senders import label_class
from spamguard.mail import headers
from spamguard.records import Explanation
from spamguard.times import utc_datetime
from spamguard.web.auth import Person, SessionManager
from spamguard.web.history import SEARCH_TERM, Search, parse_search
from spamguard.web.mail import Mailer
from spamguard.web.models import (
    ConfusionCell,
    Hour,
    JudgementDetails,
    LessonReceipt,
    RecipientReply,
    Waiting,
)
from spamguard.web.monitor import HealthReporter
from spamguard.web.requests import (
    current_person,
    current_visitor,
    read_form_with_file,
    root_path,
)
from spamguard.web.service import Service

# ---- texts and numbers

# Not printable for Unicode, but harmless: line ends, tabs, and the joiners that Persian, Hindi and
# emoji need.
_HARMLESS = frozenset("\n\t\u200c\u200d")
_TONES = {"unsure": "unsure", "not-scanned": "none"}
UNDECIDED = list(_TONES)
"""Labels that are not classes."""


def make_visible(value: object) -> object:
    """Make harmful letters of a text visible; return any other value as it is.

    Templates apply it to everything they put out.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(
        letter
        if letter.isprintable() or letter in _HARMLESS
        else " "
        if unicodedata.category(letter) == "Zs"
        else f"⟨U+{ord(letter):04X}⟩"
        for letter in value
    )


def label_text(label: str) -> str:
    if side := label_class(label):
        return f"sender: {side}"
    return "not scanned" if label == "not-scanned" else label


def tone(label: str, unwanted: Mapping[str, bool]) -> str:
    """Return one of `TONES` for a label; each has a colour and a sign. unwanted: of each class."""
    return _TONES.get(label) or ("unwanted" if unwanted.get(label, label == "spam") else "wanted")


def number(value: int) -> str:
    return f"{value:,}"


def plural(value: int, noun: str) -> str:
    return noun if value == 1 else f"{noun}s"


def count_noun(value: int, noun: str) -> str:
    return f"{value:,} {plural(value, noun)}"


def percent(share: float) -> str:
    """Format a share; 0 % and 100 % only if it is exactly that."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share:.0%}".replace("%", " %") if share in (0, 1) else f"{share * 100:.1f} %"


def signed(part: float) -> str:
    return f"{part:+.3f}".replace("-", "\u2212")


def moment(seconds: float, *, exact: bool = False) -> Markup:
    """Format a time in UTC, which the script changes to the reader's time zone."""
    when = utc_datetime(seconds)
    text = when.strftime("%Y-%m-%d %H:%M:%S UTC" if exact else "%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}">{}</time>').format(when.strftime("%Y-%m-%dT%H:%M:%SZ"), text)


def day(seconds: float) -> str:
    return utc_datetime(seconds).strftime("%Y-%m-%d")


def clock(seconds: float, span: float) -> str:
    return utc_datetime(seconds).strftime("%H:%M" if span < 2 * 86400 else "%d %b")


# ---- charts

WIDTH, HEIGHT = 420, 180
"""Of every chart, in its own units, about a pixel each."""
LEFT, RIGHT, TOP, BOTTOM = 52, 398, 10, 154
"""The area of the numbers; labels of the axes stand around it."""
TONES = ("wanted", "unsure", "unwanted", "none")
"""The parts of a bar, from bottom to top."""
_MAX_LABELS = 5  # on an axis of time


class Chart(NamedTuple):
    """Bars by the hour. columns: numbers of each hour, by tone."""

    starts: Sequence[float]
    columns: Sequence[Mapping[str, int]]

    @property
    def top(self) -> int:
        """The end of the axis, which has a whole number in its middle."""
        most = max(sum(column.values()) for column in self.columns)
        return max(2, most + most % 2)

    @property
    def labelled(self) -> range:
        """The hours that have a label: so few that they do not touch."""
        number = len(self.starts)
        unit = 24 if number > 48 else 1  # beyond two days, labels are days: one for each day
        every = -(-number // (_MAX_LABELS * unit)) * unit or unit
        return range(every // 2, number, every)


def draw_hours(hours: Sequence[Hour], tones: Mapping[str, str]) -> tuple[Chart, Chart]:
    """Make the charts of mail and of lessons. tones: of each label."""
    mail = [Counter[str]() for _ in hours]
    for column, hour in zip(mail, hours, strict=True):
        for label, count in hour.mail.items():
            column[tones.get(label, "none")] += count
    starts = [hour.start for hour in hours]
    return Chart(starts, mail), Chart(starts, [Counter(wanted=hour.lessons) for hour in hours])


# ---- mistakes


class Mistakes(NamedTuple):
    """How the verdicts compare with what people said. rows: wrong verdicts first."""

    spoken: int
    wrong: int
    unsure: int
    rows: list[ConfusionCell]


def count_mistakes(cells: Sequence[ConfusionCell]) -> Mistakes:
    rows = sorted(
        cells, key=lambda row: (row.said == row.taught, row.said in UNDECIDED, -row.messages)
    )
    return Mistakes(
        spoken=sum(row.messages for row in rows),
        wrong=sum(row.messages for row in rows if row.said not in (*UNDECIDED, row.taught)),
        unsure=sum(row.messages for row in rows if row.said == UNSURE),
        rows=rows,
    )


# ---- explanations

_WORD_MARK = "\x00"  # on both sides of a stranger's word in a sentence, which is printable
Part = TypeVar("Part", GroupPart, ExplainedFeature)


class ExplanationView(NamedTuple):
    """An explanation as a sentence and tables, each of which sums to the log-odds.

    sentence: every second part is a word of the message. flip: what would change the label.
    question: of what it gives the log-odds.
    features: the strongest, and a row for all others, or all of them (more: there are others).
    before: what words added when the message passed.
    """

    why: Explanation
    sentence: Sequence[str]
    flip: str
    question: str
    groups: Sequence[GroupPart]
    features: Sequence[ExplainedFeature]
    before: Mapping[str, float]
    more: bool


def build_explanation(
    why: Explanation, then: JudgementDetails | None, *, everything: bool
) -> ExplanationView:
    """Arrange an explanation in tables.

    then: the verdict when the message passed. everything: show all features. Else those that are
    left out hold a third of the log-odds at most.
    """
    features = explain_text.list_features(why)
    sentence = explain_text.describe_verdict(
        why, features, label_text, f"{_WORD_MARK}{{}}{_WORD_MARK}".format
    )
    number = explain_text.count_first([feature.part for feature in features], why.log_odds)
    others = [] if everything else features[number:]
    rest = sum(feature.part for feature in others)
    other = ExplainedFeature("all other features", "", rest, len(others))
    shown = features[: len(features) - len(others)]
    return ExplanationView(
        why,
        sentence.split(_WORD_MARK),
        explain_text.describe_flip(why, label_text),
        explain_text.describe_odds(why, label_text),
        _round(explain_text.sum_groups(features), why.log_odds),
        _round([*shown, other], why.log_odds),
        {word.text: word.part for word in then.words} if then else {},
        bool(others),
    )


def _round(rows: Sequence[Part], total: float) -> list[Part]:
    """Round the parts so that they add up; rows that round to nothing go."""
    steps = explain_text.round_parts([row.part for row in rows], total)
    return [
        row._replace(part=step / explain_text.STEPS_PER_NAT)
        for row, step in zip(rows, steps, strict=True)
        if step
    ]


# ---- state between two requests

_MAX_NOTICES = 2000


class PageContext:
    """What pages keep between requests; one for each process.

    These are the latest notices, each for one person under a name that nobody can guess.
    """

    def __init__(
        self,
        service: Service,
        monitor: HealthReporter,
        sessions: SessionManager,
        mailer: Mailer | None = None,
    ) -> None:
        self.service, self.monitor, self.sessions = service, monitor, sessions
        self.mailer = mailer
        self._notices: OrderedDict[str, tuple[Person, Notice]] = OrderedDict()
        templates()  # now, so that an upgrade does not mix two versions in this process

    def keep_notice(self, person: Person, notice: Notice) -> str:
        name = secrets.token_urlsafe(16)
        self._notices[name] = person, notice
        if len(self._notices) > _MAX_NOTICES:
            self._notices.popitem(last=False)
        return name

    def requested_notice(self, request: Request) -> Notice | None:
        visitor, name = current_visitor(request), request.query_params.get("told", "")
        person, notice = self._notices.get(name, (None, None))
        return notice if visitor and visitor.person == person else None


class Visit:
    """One request for a page, and what views work with."""

    def __init__(self, context: PageContext, request: Request) -> None:
        self.request, self.context, self.service = request, context, context.service
        self.visitor, self.parameters = current_visitor(request), request.query_params

    @property
    def person(self) -> Person:
        return current_person(self.request)

    @property
    def verdict_id(self) -> str:
        return path_id(self.request)

    def query(self) -> SearchQuery:
        return SearchQuery.from_parameters(self.parameters)

    async def form(self) -> Mapping[str, str]:
        async with read_form_with_file(self.request) as (texts, _):
            return texts

    async def render(self, name: str, /, **values: Any) -> HTMLResponse:
        """Make an answer with a template, and what waits for the person in its navigation."""
        if self.visitor is not None:
            values["waiting"] = await self.service.waiting(self.visitor.person)
        return render_page(self.request, name, 200, **values)

    def redirect(self, path: str, notice: Notice, anchor: str = "") -> Response:
        """Lead to a page and show a notice there. anchor: an id on the page."""
        name = self.context.keep_notice(self.person, notice)
        return redirect(f"{path}{'&' if '?' in path else '?'}told={name}{anchor and f'#{anchor}'}")


def redirect(path: str) -> Response:
    return RedirectResponse(path, 303)


def path_id(request: Request) -> str:
    """Return the verdict id in the path of a request. NotThereError: it is not one."""
    verdict_id = str(request.path_params["name"])
    if not is_id(verdict_id):
        raise NotThereError("there is no message with that verdict id")
    return verdict_id


# ---- notices


class Notice(NamedTuple):
    """What a click has done; `notice.html` says it.

    text: where no receipt tells it. undo: address of the form that takes it back, or "". undo_ids:
    verdict ids of messages, if that form names some. held: verdict id of a held message that was
    just taught as a wanted class, or "". replies: of a next hop that has not taken a message.
    """

    text: str = ""
    receipt: LessonReceipt | None = None
    undo: str = ""
    held: str = ""
    undo_ids: Sequence[str] = ()
    replies: Sequence[RecipientReply] = ()


# ---- addresses

_MAX_LENGTH = 200  # characters of a search
_VERDICT_ID = re.compile(r"(?:.*; id=)?([0-9a-v]{16})(?:;.*)?")


@dataclass(frozen=True)
class SearchQuery:
    """A search as an address or a form has it. q: the text of the search box. before: a verdict id,
    for the next page.
    """

    q: str = ""
    before: str = ""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> SearchQuery:
        q, before = parameters.get("q", ""), parameters.get("before", "")
        return cls(q[:_MAX_LENGTH].strip(), before if is_id(before) else "")

    def to_search(self) -> Search:
        return parse_search(self.q, self.before)

    def term(self, name: str) -> str:
        """Return what stands behind a name of `SEARCH_TERMS`, or "".

        >>> SearchQuery('solar from:"Ann Lee"').term("from")
        'Ann Lee'
        """
        terms = SEARCH_TERM.finditer(self.q)
        return next((term[2] or term[3] or "" for term in terms if term[1] == name), "")

    def narrowed(self, name: str, text: str) -> SearchQuery:
        """Make the search with another text behind a name; "" for none.

        >>> SearchQuery("solar verdict:ham").narrowed("verdict", "spam").q
        'solar verdict:spam'
        """
        terms = [term[0] for term in SEARCH_TERM.finditer(self.q) if term[1] != name]
        return SearchQuery(" ".join([*terms, f"{name}:{text}"] if text else terms))

    @property
    def verdict_id(self) -> str:
        """The verdict id that somebody searches for, alone or in a field X-Spamguard; or ""."""
        match = _VERDICT_ID.fullmatch(self.q)
        return match[1] if match else ""

    def ending(self, **changes: str) -> str:
        """Return the query part of an address with its question mark, or "".

        >>> SearchQuery("verdict:spam").ending(before="06gvk961gretkbe9")
        '?q=verdict%3Aspam&before=06gvk961gretkbe9'
        """
        values = vars(self) | changes
        encoded = urlencode({name: value for name, value in values.items() if value})
        return f"?{encoded}" if encoded else ""


# ---- rendering

NAVIGATION = (
    ("/", "Today"),
    ("/queue", "Unsure"),
    ("/history", "History"),
    ("/teach", "Teach"),
    ("/quarantine", "Quarantine"),
    ("/help", "Help"),
)
"""The links at the top of each page."""
# Browsers are strict about these, so they do not come from this machine's configuration.
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Headings for people. Other statuses have the names that HTTP gives them.
_TITLES = {
    400: "That did not arrive whole",
    401: "You are not logged in",
    403: "That is not allowed",
    404: "Not found",
    410: "Not now",
    413: "That is too large",
    422: "That does not work",
    429: "Too many requests",
    503: "Not now",
}


def render_page(request: Request, name: str, /, status: int, **values: Any) -> HTMLResponse:
    visitor = current_visitor(request)
    common = {
        "person": visitor.person if visitor else None,
        "can_log_out": visitor is not None and bool(visitor.session),
        "root": root_path(request),
        "here": request.url.path,
        "offers_links": request.scope["state"].get("offers_links", False),
        "notice": request.scope["state"].get("notice"),
        "waiting": Waiting(),
    }
    return HTMLResponse(templates().get_template(name).render(common | values), status)


def problem_page(request: Request, problem: HTTPException) -> Response:
    status = problem.status_code
    # Who is logged in already has used a link twice.
    heading = _TITLES.get(422 if status == 401 and current_visitor(request) else status)
    heading = heading or HTTPStatus(status).phrase
    answer = render_page(request, "failed.html", status, problem=problem, heading=heading)
    answer.headers.update(problem.headers or {})
    return answer


async def serve_asset(request: Request) -> Response:
    """Serve style, script or icon. Browsers may keep them: another version has another address."""
    file = request.path_params["file"]
    if file not in _assets():
        raise HTTPException(404)
    fields = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(_assets()[file], headers=fields, media_type=_MEDIA_TYPES[Path(file).suffix])


@lru_cache(1)
def _assets() -> dict[str, bytes]:
    directory = files(__package__).joinpath("static")
    return {file.name: file.read_bytes() for file in directory.iterdir()}


_TEMPLATE_FUNCTIONS = (
    clock,
    count_noun,
    day,
    headers.is_sender,
    headers.split_author,
    label_text,
    moment,
    number,
    percent,
    plural,
    signed,
    tone,
)
_TEMPLATE_VALUES = {
    "explain_text": explain_text,
    "pages": NAVIGATION,
    "UNDECIDED": UNDECIDED,
    "WIDTH": WIDTH,
    "HEIGHT": HEIGHT,
    "LEFT": LEFT,
    "RIGHT": RIGHT,
    "TOP": TOP,
    "BOTTOM": BOTTOM,
    "TONES": TONES,
}
"""What templates may call and use, beside the values of their page."""


@lru_cache(1)
def templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {each.__name__: each for each in _TEMPLATE_FUNCTIONS}
    environment.globals |= _TEMPLATE_VALUES | {
        "version": blake2b(b"".join(sorted(_assets().values())), digest_size=6).hexdigest(),
    }
    for name in environment.list_templates():
        environment.get_template(name)
    return environment
