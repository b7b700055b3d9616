"""Pages from templates, and explanations as rows of tables.

Templates escape each value, and `filters.make_visible` makes each text harmless first. A page must
never contain a script, a style or an address of another host; the security policy of every answer
(`middleware`) forbids browsers to follow any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spamguard.engine import explain_text
from spamguard.engine.explain_text import OTHERS_LABEL
from spamguard.mail import headers
from spamguard.records import Explanation
from spamguard.web import auth
from spamguard.web.models import JudgementDetails
from spamguard.web.pages import charts, filters

NAVIGATION = (
    ("/", "Today"),
    ("/history", "History"),
    ("/teach", "Teach"),
    ("/quarantine", "Quarantine"),
    ("/model", "Model"),
    ("/words", "Words"),
)
"""The links at the top of each page."""
_CSRF_INPUT = Markup('<input type="hidden" name="{}" value="{}">')
# Browsers are strict about these, so they do not come from this machine's configuration.
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def render_page(request: Request, name: str, /, status: int = 200, **values: Any) -> HTMLResponse:
    """Make an answer with a template."""
    visitor = auth.current_visitor(request)
    is_session = visitor is not None and visitor.auth_method is auth.AuthMethod.SESSION
    common = {
        "person": visitor.person if visitor else None,
        "can_log_out": is_session,
        "csrf": _CSRF_INPUT.format(auth.CSRF_FIELD, auth.csrf_token(request)),
        "root": auth.root_path(request),
        "here": request.url.path,
        "notice": request.scope["state"].get("notice"),
    }
    return HTMLResponse(_environment().get_template(name).render(common | values), status)


def redirect(path: str, notice: str = "", anchor: str = "") -> Response:
    """Answer a form by leading to a page (303; RFC 9110, 15.4.4).

    notice: name of the notice to show there. anchor: an id on the page.
    """
    if notice:
        path = f"{path}{'&' if '?' in path else '?'}told={notice}"
    return RedirectResponse(f"{path}#{anchor}" if anchor else path, 303)


def preload() -> None:
    """Read all files now, so that an upgrade does not mix two versions in this process."""
    assets()
    _environment()


@lru_cache(1)
def assets() -> dict[str, Response]:
    """Return the answers for style, script and icon, by name.

    Browsers may keep them for good, because another version has another address.
    """
    fields = {"Cache-Control": "public, max-age=31536000, immutable"}
    return {
        name: Response(content, headers=fields, media_type=_MEDIA_TYPES[Path(name).suffix])
        for name, content in _asset_contents().items()
    }


@lru_cache(1)
def _asset_contents() -> dict[str, bytes]:
    directory = files(__package__).joinpath("static")
    return {
        file.name: file.read_bytes()
        for file in sorted(directory.iterdir(), key=lambda file: file.name)
    }


@lru_cache(1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=filters.make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    functions = {
        name: value
        for name, value in vars(filters).items()
        if getattr(value, "__module__", "") == filters.__name__
    }
    version = blake2b(b"".join(_asset_contents().values()), digest_size=6).hexdigest()
    environment.globals.update(functions, parts=headers.split_author, is_sender=headers.is_sender)
    environment.globals.update(
        charts=charts, undecided=filters.UNDECIDED, pages=NAVIGATION, version=version
    )
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


# ---- explanations

_Part = tuple[str, float, Mapping[str, int], str]  # name, part, counts, remark


@dataclass(frozen=True, slots=True)
class ExplanationRow:
    """One part of the log-odds, rounded so that all parts add up.

    bar: None where it would not fit. then: what the word added when the message passed; None if it
    was not among the strongest words.
    """

    name: str
    part: float
    bar: charts.Mark | None
    counts: Mapping[str, int]
    then: float | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ExplanationView:
    """An explanation as tables.

    question: of what it gives the log-odds. words: strongest first. has_others: whether other
    words add anything. rest: all parts that are not in `words`. experts: the same sum by expert.
    flip: what would change the verdict.
    """

    why: Explanation
    question: str
    words: Sequence[ExplanationRow]
    has_others: bool
    rest: Sequence[ExplanationRow]
    experts: Sequence[ExplanationRow]
    total: float
    flip: str


def build_explanation(
    why: Explanation, then: JudgementDetails | None, max_words: int
) -> ExplanationView:
    """Arrange an explanation in tables.

    Parameters
    ----------
    then
        The verdict when the message passed.
    max_words
        Words for, and words against.
    """
    clues, other = explain_text.strongest_clues(why, max_words)
    prior: _Part = ("prior", why.prior, {}, "before anything was read")
    parts: list[_Part] = [
        *((clue.text, clue.part, clue.counts, "") for clue in clues),
        (OTHERS_LABEL, other, {}, f"{len(why.clues) - len(clues):,} of them"),
        *((name, part, {}, "trait") for name, part in _by_size(why.traits)),
        *((name, part, {}, "number") for name, part in _by_size(why.numbers)),
        ("biases of the experts", why.biases, {}, ""),
        prior,
    ]
    expert_parts: list[_Part] = [
        prior,
        *((name, part, {}, "") for name, part in _by_size(why.shares)),
    ]
    before = {word.text: word.part for word in then.words} if then else {}
    rows = _make_rows(parts, why.log_odds, before)
    flip = explain_text.describe_flip(why)
    return ExplanationView(
        why,
        explain_text.describe_odds(why, filters.label_text),
        [row for row in rows[: len(clues)] if row.part],
        bool(other),
        [row for row in rows[len(clues) :] if row.part],
        [row for row in _make_rows(expert_parts, why.log_odds, {}) if row.part],
        round(why.log_odds, 3),
        f"{flip[0].upper()}{flip[1:]}.",
    )


def _make_rows(
    parts: Sequence[_Part], total: float, before: Mapping[str, float]
) -> list[ExplanationRow]:
    steps = explain_text.round_parts([part for _, part, _, _ in parts], total)
    rounded = [step / explain_text.STEPS_PER_NAT for step in steps]
    rows_with_parts = list(zip(rounded, parts, strict=True))
    longest = max(
        (abs(part) for part, row in rows_with_parts if row[0] != OTHERS_LABEL), default=0.0
    )
    return [
        ExplanationRow(
            name,
            part,
            None if name == OTHERS_LABEL else charts.part_bar(part, longest),
            counts,
            before.get(name),
            remark,
        )
        for part, (name, _, counts, remark) in rows_with_parts
    ]


def _by_size(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda item: -abs(item[1]))
