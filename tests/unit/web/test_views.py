"""Views over a service of fixed values: their texts, the calls they make, and their links."""

from __future__ import annotations

import mimetypes
import re
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from jinja2 import PackageLoader

from spamguard.errors import HistoryError
from spamguard.web import pages
from spamguard.web.views import VIEWS
from tests.unit.web.fixed import (
    ANNA,
    NAME,
    OPERATOR,
    Fixed,
    Gate,
    asking,
    judgement,
)

MAIL = b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe_=3Cb=3E?=\r\nFrom: a@b.example\r\n\r\nSubject: no\r\n"
PAGES = [
    "/", "/?hours=168", "/queue", "/queue?q=solar&all=1", "/history", f"/history/{NAME}",
    f"/history/{NAME}?all=1", "/teach",
    "/quarantine", f"/quarantine/{NAME}", "/login?link=good", "/help",
]  # fmt: skip


@pytest.fixture
def service() -> Fixed:
    return Fixed()


def get(service: Fixed, spool: Path, *paths: str, **more: Any) -> list[httpx.Response]:
    """The responses of these pages."""
    pages: list[httpx.Response] = []

    async def work(client: httpx.AsyncClient) -> None:
        pages.extend([await client.get(path) for path in paths])

    asking(work, service, spool, **more)
    return pages


def post(
    service: Fixed,
    spool: Path,
    path: str,
    data: dict[str, str] | None = None,
    *,
    follow: bool = False,
    **more: Any,
) -> httpx.Response:
    """The response to a form. follow: the page to which it leads."""
    pages: list[httpx.Response] = []

    async def work(client: httpx.AsyncClient) -> None:
        pages.append(await client.post(path, data=data, follow_redirects=follow))

    asking(work, service, spool, **more)
    return pages[0]


def test_another_version_that_is_installed_meanwhile_changes_no_page(
    tmp_path: Path, service: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New templates with old views would be answered with 500 until the daemon is restarted."""
    pages.templates.cache_clear()
    pages.PageContext(service, service.monitor, Gate())
    monkeypatch.setattr(
        PackageLoader, "get_source", lambda *_: pytest.fail("a template is read late")
    )
    for path, page in zip(PAGES, get(service, tmp_path, *PAGES, person=OPERATOR), strict=True):
        assert page.status_code == 200, path


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"), ("de-AT,de;q=0.8,en;q=0.5", "de"), ("en-GB, de;q=0.3", "en"), ("fr", "en"),
        (";q=,de;q=x,,*", "en"), ("../x", "en"),
    ],
)  # fmt: skip
def test_help_in_the_language_of_the_browser(
    tmp_path: Path, service: Fixed, accepted: str, language: str
) -> None:
    pages: list[httpx.Response] = []

    async def work(client: httpx.AsyncClient) -> None:
        pages.append(await client.get("/help", headers={"accept-language": accepted}))

    asking(work, service, tmp_path)
    (page,) = pages
    assert f'<html lang="{language}">' in page.text
    assert ("<h1>Hilfe</h1>" in page.text) is (language == "de")


def test_without_login_no_page_is_shown(tmp_path: Path, service: Fixed) -> None:
    for method, path, _ in VIEWS:
        if path in ("/login", "/login/mail", "/logout"):
            continue
        real = path.replace("{name}", NAME)
        page = (
            get(service, tmp_path, real, person=None)[0]
            if method == "GET"
            else post(service, tmp_path, real, person=None)
        )
        assert page.status_code == 401, path
        assert "spamguard login-link" in page.text, path
    assert service.calls == service.searches == []


@pytest.mark.parametrize("path", [path for method, path, _ in VIEWS if method == "POST"])
def test_no_change_by_get(tmp_path: Path, service: Fixed, path: str) -> None:
    real = path.replace("{name}", NAME)
    get(service, tmp_path, real)
    assert service.calls == []


# ---- history


def shown(page: httpx.Response) -> str:
    """The text of it that a reader sees."""
    return unescape(" ".join(re.sub("<[^>]*>", " ", page.text.partition("<main")[2]).split()))


@pytest.mark.parametrize(
    ("label", "held", "there"), [("ham", True, True), ("spam", True, False), ("ham", False, False)]
)
def test_quarantined_mail_called_good_can_be_released(
    tmp_path: Path, service: Fixed, label: str, held: bool, there: bool
) -> None:
    """A user who calls it good waits for it, and teaching delivers nothing."""
    service.judgements = [judgement(action="quarantine", held=held, own=label)]
    page = post(service, tmp_path, "/history", {"class": f"{label} {NAME}"}, follow=True)
    beside = page.text.partition(f'<li id="m-{NAME}">')[2]  # the notice may be far above
    assert ("Release it</a>" in beside) == there


def test_a_lesson_is_confirmed_although_the_list_fails(tmp_path: Path, service: Fixed) -> None:
    """Else it would look as if nothing had been taught, and would be taught again."""
    service.failure = HistoryError("/var/lib/secret: damaged")
    page = post(service, tmp_path, "/history", {"class": f"spam {NAME}"}, follow=True)
    assert page.status_code == 503
    assert "Learnt as spam." in page.text
    assert "Only the page that follows cannot be shown" in page.text
    assert "Wait a moment, then load the page again." in page.text
    assert "has been done" not in page.text  # a release may have failed: the notice says what was
    assert f'name="class" value=" {NAME}"' in page.text
    assert service.calls == [("learn_passed", "anna", NAME, "spam")]
    assert "only this page" not in get(service, tmp_path, "/history")[0].text


def test_the_script_gets_new_rows_only(tmp_path: Path, service: Fixed) -> None:
    (page,) = get(service, tmp_path, "/history?q=verdict%3Aspam")
    seen = page.text.split('data-seen="')[1].split('"')[0]
    assert 'data-live="/history?q=verdict%3Aspam"' in page.text
    (same,) = get(service, tmp_path, f"/history?q=verdict%3Aspam&seen={seen}")
    assert (same.status_code, same.content) == (204, b"")
    for change, shown in ({"taught": "ham"}, "people say: ham"), ({"held": True}, "held back"):
        service.judgements[1] = judgement(**change)
        (other,) = get(service, tmp_path, f"/history?q=verdict%3Aspam&seen={seen}")
        assert (other.status_code, shown in other.text) == (200, True)


# ---- teach


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"class": "spam"}, "choose a file"),
        ({"class": "spam", "source": "hello"}, "it has no header"),
    ],
)
def test_an_upload_that_is_no_message_gets_an_error(
    tmp_path: Path, service: Fixed, form: dict[str, str], words: str
) -> None:
    answer = post(service, tmp_path, "/teach", form)
    assert answer.status_code == 422
    assert words in answer.text.lower()
    assert service.calls == []


# ---- quarantine


def test_deleting_asks_first_and_is_for_operators(tmp_path: Path, service: Fixed) -> None:
    (page,) = get(service, tmp_path, "/quarantine", person=ANNA)
    assert "Delete" not in page.text
    for path in ("/quarantine", f"/quarantine/{NAME}"):
        (page,) = get(service, tmp_path, path, person=OPERATOR)
        assert 'name="do" value="ask"' in page.text
    chosen = {NAME: NAME, "do": "ask"}
    sure = post(service, tmp_path, "/quarantine", chosen, person=OPERATOR)
    assert "Delete 1 message for good?" in sure.text
    assert "It has not been delivered to anna@example.net" in shown(sure)
    assert service.calls == []
    post(service, tmp_path, "/quarantine", {NAME: NAME, "do": "delete"}, person=OPERATOR)
    assert service.calls == [("delete", "", NAME)]


# ---- the rest


def test_assets_are_small_and_may_be_kept(
    tmp_path: Path, service: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        mimetypes.types_map, ".js", "text/plain"
    )  # as /etc/mime.types may say; browsers would not run it then
    pages = get(
        service,
        tmp_path,
        "/static/style.css",
        "/static/script.js",
        "/static/icon.svg",
        "/static/nothing",
        "/static/..%2fhouse.py",
    )
    assert [page.status_code for page in pages] == [200, 200, 200, 404, 404]
    assert sum(len(page.content) for page in pages[:3]) < 60_000
    assert [page.headers["content-type"].split(";")[0] for page in pages[:3]] == [
        "text/css",
        "text/javascript",
        "image/svg+xml",
    ]
    assert "immutable" in pages[0].headers["cache-control"]


def test_a_message_says_what_would_change_its_label(service: Fixed, tmp_path: Path) -> None:
    (page,) = get(service, tmp_path, f"/history/{NAME}")
    assert "Without its 4 strongest words for spam it would be unsure." in page.text
