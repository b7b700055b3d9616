"""Views over a service of fixed values: their texts, the calls they make, and their links."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from jinja2 import PackageLoader

from spamguard.engine.policy import missing_lessons
from spamguard.errors import HistoryError
from spamguard.web import context
from spamguard.web.auth import Person
from spamguard.web.context import VIEWS
from spamguard.web.models import Model
from tests.unit.web.fixed import (
    ANNA,
    NAME,
    OPERATOR,
    OTHER,
    Fixed,
    Gate,
    asking,
    judgement,
)

MAIL = b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe_=3Cb=3E?=\r\nFrom: a@b.example\r\n\r\nSubject: no\r\n"
PAGES = [
    "/", "/?hours=168", "/queue", "/queue?q=solar&all=1", "/history", f"/history/{NAME}",
    f"/history/{NAME}?page=2", "/teach",
    "/quarantine", f"/quarantine/{NAME}", f"/quarantine/{NAME}/delete", "/login?link=good", "/help",
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


def followed(
    service: Fixed,
    spool: Path,
    steps: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]],
    **more: Any,
) -> httpx.Response:
    """The page after several steps of one person, redirects followed."""
    found: list[httpx.Response] = []

    async def work(client: httpx.AsyncClient) -> None:
        client.follow_redirects = True
        found.append(await steps(client))

    asking(work, service, spool, **more)
    return found[0]


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("person", [ANNA, OPERATOR])
def test_every_page_is_there(tmp_path: Path, person: Any, empty: bool) -> None:
    service = Fixed(empty=empty)
    if empty:
        service.judgements, service.held_back = [], []
    wanted = [path for path in PAGES if not empty or NAME not in path]
    for path, page in zip(wanted, get(service, tmp_path, *wanted, person=person), strict=True):
        assert page.status_code == 200, path
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.text.count("<h1") == page.text.count("<main") == 1
        assert '<html lang="en">' in page.text
    assert service.calls == []  # no page changes anything


def test_another_version_that_is_installed_meanwhile_changes_no_page(
    tmp_path: Path, service: Fixed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New templates with old views would be answered with 500 until the daemon is restarted."""
    context.templates.cache_clear()
    context.PageContext(service, service.monitor, Gate())
    monkeypatch.setattr(
        PackageLoader, "get_source", lambda *_: pytest.fail("a template is read late")
    )
    for path, page in zip(PAGES, get(service, tmp_path, *PAGES, person=OPERATOR), strict=True):
        assert page.status_code == 200, path


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


def test_counts_that_are_hidden_are_called_few(tmp_path: Path, service: Fixed) -> None:
    assert "few" not in get(service, tmp_path, f"/history/{NAME}")[0].text
    service.reasons = replace(
        service.reasons, clues=[replace(clue, counts={}) for clue in service.reasons.clues]
    )
    page = get(service, tmp_path, f"/history/{NAME}")[0].text
    assert page.count('<td class="n">few</td>') == 4
    assert "fewer than five" in page


# ---- history


def shown(page: httpx.Response) -> str:
    """The text of it that a reader sees."""
    return unescape(" ".join(re.sub("<[^>]*>", " ", page.text.partition("<main")[2]).split()))


@pytest.mark.parametrize(
    ("author", "sender", "told", "facts"),
    [
        (
            "Ann <a@b>",
            "c@d",
            "From Ann <a@b> envelope sender c@d →",
            "From Ann <a@b> Envelope sender c@d To",
        ),
        ("Ann <A@b>", "a@B", "From Ann <A@b> →", "From Ann <A@b> To"),
        ("a@b", "a@b", "From a@b →", "From a@b To"),
        ("", "c@d", "From c@d →", "From c@d To"),
        (
            "p@p.example <x@y>",
            "p@p.example",
            "From p@p.example <x@y> envelope sender p@p.example →",
            "Envelope sender p@p.example To",
        ),
        (
            "Ann <a@b>",
            "",
            "From Ann <a@b> →",
            "From Ann <a@b> Envelope sender (no sender known) To",
        ),
        ("", "", "From (no sender known) →", "From (no sender known) To"),
    ],
)
def test_the_author_is_shown_beside_the_sender(
    tmp_path: Path, author: str, sender: str, told: str, facts: str
) -> None:
    service = Fixed([judgement(author=author, sender=sender)])
    service.held_back = [replace(service.held_back[0], author=author, sender=sender)]
    paths = ("/history", f"/history/{NAME}", "/quarantine", f"/quarantine/{NAME}")
    for number, page in enumerate(get(service, tmp_path, *paths)):
        wanted = facts if number % 2 else told
        assert (wanted.replace(" known", "") if number > 1 else wanted) in shown(page)


@pytest.mark.parametrize(
    ("label", "held", "there"), [("ham", True, True), ("spam", True, False), ("ham", False, False)]
)
def test_quarantined_mail_called_good_can_be_released(
    tmp_path: Path, service: Fixed, label: str, held: bool, there: bool
) -> None:
    """A user who calls it good waits for it, and teaching delivers nothing."""
    service.judgements = [judgement(action="quarantine", held=held, own=label)]
    page = post(service, tmp_path, f"/history/{NAME}/teach", {"class": label}, follow=True)
    beside = page.text.partition(f'<li id="m-{NAME}">')[2]  # the notice may be far above
    assert ("Release it</a>" in beside) == there


@pytest.mark.parametrize("held", [True, False])
def test_a_message_that_was_held_back_leads_to_the_quarantine_while_it_waits(
    tmp_path: Path, service: Fixed, held: bool
) -> None:
    service.judgements = [judgement(action="quarantine", held=held)]
    rows, page = get(service, tmp_path, "/history", f"/history/{NAME}")
    link = f'href="/quarantine/{NAME}"'
    assert (link in rows.text, link in page.text) == (held, held)
    assert ("held back, then released or deleted" in page.text) == (not held)


def test_a_lesson_that_fails_gets_an_error(tmp_path: Path, service: Fixed) -> None:
    assert post(service, tmp_path, "/history/xx/teach", {"class": "spam"}).status_code == 404
    assert service.calls == []
    service.changed = False
    page = post(service, tmp_path, f"/history/{NAME}/teach", {"class": "spam"}, follow=True)
    assert "You had already said spam" in page.text


def test_a_lesson_is_confirmed_although_the_list_fails(tmp_path: Path, service: Fixed) -> None:
    """Else it would look as if nothing had been taught, and would be taught again."""
    service.failure = HistoryError("/var/lib/secret: damaged")
    page = post(service, tmp_path, f"/history/{NAME}/teach", {"class": "spam"}, follow=True)
    assert page.status_code == 503
    assert "Learnt as spam." in page.text
    assert "Only the page that follows cannot be shown" in page.text
    assert "Wait a moment, then load the page again." in page.text
    assert "has been done" not in page.text  # a release may have failed: the notice says what was
    assert f'action="/history/{NAME}/forget"' in page.text
    assert service.calls == [("learn_passed", "anna", NAME, "spam")]
    assert "only this page" not in get(service, tmp_path, "/history")[0].text


def test_after_an_error_nothing_was_taught(tmp_path: Path, service: Fixed) -> None:
    """That a message is held back is looked up beside the lesson."""
    service.judgements = []
    assert post(service, tmp_path, f"/history/{NAME}/teach", {"class": "ham"}).status_code == 404
    assert service.calls == []


def test_the_script_gets_new_rows_only(tmp_path: Path, service: Fixed) -> None:
    (page,) = get(service, tmp_path, "/history?label=spam")
    seen = page.text.split('data-seen="')[1].split('"')[0]
    assert 'data-live="/history?label=spam"' in page.text
    (same,) = get(service, tmp_path, f"/history?label=spam&seen={seen}")
    assert (same.status_code, same.content) == (204, b"")
    for change, shown in ({"taught": "ham"}, "people say: ham"), ({"held": True}, "held back"):
        service.judgements[1] = judgement(**change)
        (other,) = get(service, tmp_path, f"/history?label=spam&seen={seen}")
        assert (other.status_code, shown in other.text) == (200, True)


def test_a_message_that_was_not_scanned_has_its_page(tmp_path: Path, service: Fixed) -> None:
    service.judgements = [judgement(label="not-scanned", can_teach=False)]
    (page,) = get(service, tmp_path, f"/history/{NAME}")
    assert page.status_code == 200
    assert "cannot be shown: this message was not scanned" in page.text
    assert "Its strongest words at the time" in page.text
    assert "<bdi>solar</bdi>" in page.text


# ---- teach


def handed(
    client: httpx.AsyncClient, label: str = "spam", raw: bytes = MAIL
) -> Awaitable[httpx.Response]:
    return client.post("/teach", data={"class": label}, files={"file": ("a.eml", raw)})


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"class": "spam"}, "there is no message"),
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
    (page, sure) = get(
        service, tmp_path, "/quarantine", f"/quarantine/{NAME}/delete", person=OPERATOR
    )
    assert f'href="/quarantine/{NAME}/delete"' in page.text
    assert "Delete this message for good?" in sure.text
    post(service, tmp_path, f"/quarantine/{NAME}/delete", person=OPERATOR)
    assert service.calls == [("delete", "", NAME)]


def test_an_incomplete_search_links_to_the_rest(tmp_path: Path, service: Fixed) -> None:
    service.following = OTHER
    (page,) = get(service, tmp_path, f"/quarantine?before={NAME}")
    assert f'href="/quarantine?before={OTHER}"' in page.text
    service.held_back = []
    (page,) = get(service, tmp_path, "/quarantine")
    assert f'href="/quarantine?before={OTHER}"' in page.text
    assert "None of your messages is among the newest" in page.text
    assert "Nothing is held back" not in page.text


# ---- the rest


@pytest.mark.parametrize("path", ["/queue", "/history", f"/history/{NAME}", "/teach"])
def test_ham_stands_before_spam(tmp_path: Path, path: str) -> None:
    row = judgement(label="unsure", authenticated=True)
    (page,) = get(Fixed([row]), tmp_path, path)
    choices = re.findall(r'name="class" value="(ham|spam)"|name="(ham|spam)" value', page.text)
    assert choices
    assert ["".join(names) for names in choices] == ["ham", "spam"] * (len(choices) // 2)


def test_today_names_missing_lessons(service: Fixed, tmp_path: Path) -> None:
    async def lopsided(_person: Person) -> Model:
        return replace(
            await Fixed().model(OPERATOR),
            missing=missing_lessons({"ham": 20, "spam": 300}, frozenset(("spam",))),
        )

    service.model = lopsided
    (page,) = get(service, tmp_path, "/", person=OPERATOR)
    lead = "Much good mail is unsure: 20 good messages have been taught beside 300 unwanted ones.<"
    assert lead in page.text
    assert "Say in the" in page.text.partition(lead)[2]


def test_a_link_used_twice_keeps_the_session(tmp_path: Path, service: Fixed) -> None:
    refused = post(service, tmp_path, "/login", {"link": "old"})
    assert (refused.status_code, "You are not logged in" in refused.text) == (401, False)
    assert "This link was used before, or is too old." in refused.text
    assert "You are still logged in" in refused.text


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
