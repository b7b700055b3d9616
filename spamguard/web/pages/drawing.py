"""Pages out of templates: every value escaped, every text made harmless first (`texts.shown`), nothing from anywhere else.

Must never put out a script, a style or an address of another host: the policy on every answer (`access.fields`) forbids browsers to
follow any.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from spamguard.mail import author
from spamguard.web.access import contract as access
from spamguard.web.pages import charts, texts

PAGES = (
    ("/", "Today"),
    ("/history", "History"),
    ("/teach", "Teach"),
    ("/quarantine", "Quarantine"),
    ("/model", "Model"),
    ("/words", "Words"),
)
"""What the line at the top of every page leads to."""
_FORGERY = Markup('<input type="hidden" name="{}" value="{}">')  # in every form with method=post
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}  # not what this machine calls them: browsers are strict


def page(request: Request, name: str, /, status: int = 200, **values: Any) -> HTMLResponse:
    """An answer, by the template of that name."""
    found = access.visitor(request)
    known = {
        "person": found.person if found else None,
        "leaves": found is not None and found.way is access.Way.SESSION,
        "csrf": _FORGERY.format(access.FORGERY, access.form_token(request)),
        "root": access.root(request),
        "here": request.url.path,
        "notice": request.scope["state"].get("notice"),
    }
    text = _environment().get_template(name).render(known | values)
    return HTMLResponse(text, status)


def see(path: str, told: str = "", place: str = "") -> Response:
    """After a form was taken: go and look there (RFC 9110, 15.4.4). told: name of a notice to be shown there. place: an id on the page."""
    if told:
        path = f"{path}{'&' if '?' in path else '?'}told={told}"
    return RedirectResponse(f"{path}#{place}" if place else path, 303)


def prepare() -> None:
    """Read all of it: a version that is installed while this one runs must not mix with it."""
    assets()
    _environment()


# ---- what browsers load beside pages


@lru_cache(1)
def assets() -> dict[str, Response]:
    """Answers for style, script and icon, by name; an address with another version is another address, so they may be kept for good."""
    header = {"Cache-Control": "public, max-age=31536000, immutable"}
    return {name: Response(content, headers=header, media_type=_KINDS[Path(name).suffix]) for name, content in _contents().items()}


@lru_cache(1)
def version() -> str:
    """Changes with any of them."""
    return blake2b(b"".join(_contents().values()), digest_size=6).hexdigest()


@lru_cache(1)
def _contents() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(files(__package__).joinpath("static").iterdir(), key=lambda file: file.name)}


@lru_cache(1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=texts.shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    told = {name: value for name, value in vars(texts).items() if getattr(value, "__module__", "") == texts.__name__}
    environment.globals.update(told, parts=author.parts, is_sender=author.is_sender)
    environment.globals.update(charts=charts, undecided=texts.UNDECIDED, pages=PAGES, version=version())
    for name in environment.list_templates():
        environment.get_template(name)
    return environment
