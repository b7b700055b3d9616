"""Pages from templates, and explanations as rows of tables.

Templates escape each value, and `filters.make_visible` makes each text harmless first. A page must
never contain a script, a style or an address of another host; the security policy of every answer
(`middleware`) forbids browsers to follow any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spamguard.engine import explain_groups, explain_text
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
    environment.globals["kinds"] = explain_groups.KINDS
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


# ---- explanations

_PAGE_FEATURES = 100  # on every page of features but the first


@dataclass(frozen=True, slots=True)
class ExplanationRow:
    """One part of the log-odds, rounded so that all parts add up.

    kind: a key of `explain_groups.KINDS`, or "". bar: None where it would not fit. counts: as of
    `ExplainedFeature`. then: what the word added when the message passed; None if it was not among
    the strongest words.
    """

    name: str
    part: float
    bar: charts.Mark | None
    kind: str = ""
    remark: str = ""
    counts: Mapping[str, int] | None = None
    then: float | None = None


@dataclass(frozen=True, slots=True)
class ExplanationView:
    """An explanation as a sentence and tables, each of which sums to the total.

    question: of what it gives the log-odds. features: one page of them, strongest first, and a row
    for those on other pages. kinds: of these features, each with its sentence. unkept: words whose
    text is no longer known. has_words: whether any word adds anything. flip: what would change the
    verdict.
    """

    why: Explanation
    sentence: str
    question: str
    groups: Sequence[ExplanationRow]
    features: Sequence[ExplanationRow]
    kinds: Sequence[tuple[str, str]]
    unkept: int
    has_words: bool
    page: int
    pages: int
    experts: Sequence[ExplanationRow]
    total: float
    flip: str


def build_explanation(
    why: Explanation, then: JudgementDetails | None, page: int = 1
) -> ExplanationView:
    """Arrange an explanation in tables.

    Parameters
    ----------
    then
        The verdict when the message passed.
    page
        Of the features. What the first page leaves out holds a third of the log-odds at most.
    """
    features = explain_groups.list_features(why)
    groups = explain_groups.sum_groups(features)
    shown, page, pages = _page_of(features, why.log_odds, page)
    before = {word.text: word.part for word in then.words} if then else {}
    others = ExplanationRow(
        "all other features",
        why.log_odds - sum(feature.part for feature in shown),
        None,
        remark=filters.count_noun(len(features) - len(shown), "feature"),
    )
    shares = sorted(why.shares.items(), key=lambda item: -abs(item[1]))
    flip = explain_text.describe_flip(why)
    return ExplanationView(
        why,
        explain_groups.describe_verdict(why, groups, filters.label_text),
        explain_text.describe_odds(why, filters.label_text),
        _make_rows(
            [
                ExplanationRow(group.title, group.part, None, remark=f"{group.features:,}")
                for group in groups
            ],
            why.log_odds,
        ),
        _make_rows(
            [*(_feature_row(feature, before) for feature in shown), others],
            why.log_odds,
            unbarred=[feature.tokens > 1 for feature in shown] + [True],
        ),
        [
            (kind, about.about)
            for kind, about in explain_groups.KINDS.items()
            if any(feature.kind == kind for feature in shown)
        ],
        sum(1 for clue in why.clues if not clue.text),
        any(clue.part for clue in why.clues),
        page,
        pages,
        _make_rows(
            [ExplanationRow(name, part, None) for name, part in (("prior", why.prior), *shares)],
            why.log_odds,
        ),
        round(why.log_odds, 3),
        f"{flip[0].upper()}{flip[1:]}.",
    )


def _page_of(
    features: Sequence[explain_groups.ExplainedFeature], log_odds: float, page: int
) -> tuple[Sequence[explain_groups.ExplainedFeature], int, int]:
    """The features of a page, its number if there is such a page, and the number of pages.

    What rounds to nothing is on no page.
    """
    listed = [feature for feature in features if round(feature.part * explain_text.STEPS_PER_NAT)]
    first = explain_groups.count_first([feature.part for feature in features], log_odds)
    first = min(first, len(listed))
    pages = 1 + -(-(len(listed) - first) // _PAGE_FEATURES)
    page = min(max(page, 1), pages)
    start = first + (page - 2) * _PAGE_FEATURES
    return (listed[start : start + _PAGE_FEATURES] if page > 1 else listed[:first]), page, pages


def _feature_row(
    feature: explain_groups.ExplainedFeature, before: Mapping[str, float]
) -> ExplanationRow:
    remark = filters.count_noun(feature.tokens, "feature") if feature.tokens > 1 else ""
    then = before.get(feature.text) if feature.text else None
    return ExplanationRow(
        feature.name, feature.part, None, feature.kind, remark, feature.counts, then
    )


def _make_rows(
    rows: Sequence[ExplanationRow], total: float, unbarred: Sequence[bool] = ()
) -> list[ExplanationRow]:
    """Round the parts so that they add up, and draw bars; rows that round to nothing go.

    unbarred: rows that are sums themselves, which would dwarf every bar.
    """
    steps = explain_text.round_parts([row.part for row in rows], total)
    parts = [step / explain_text.STEPS_PER_NAT for step in steps]
    has_bar = [not flag for flag in unbarred] or [True] * len(rows)
    longest = max((abs(part) for part, bar in zip(parts, has_bar, strict=True) if bar), default=0.0)
    return [
        replace(row, part=part, bar=charts.part_bar(part, longest) if bar else None)
        for row, part, bar in zip(rows, parts, has_bar, strict=True)
        if part
    ]
