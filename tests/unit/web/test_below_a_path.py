"""Pages below a path of a reverse proxy: every address and the cookie have that path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spamguard.config.options import HostPort, Web, WebProxy
from spamguard.web.auth import CredentialKind
from tests.unit.web.fixed import NAME
from tests.unit.web.served import OPERATOR, served
from tests.unit.web.test_views import PAGES

SECURE = {"X-Forwarded-Proto": "https", "Sec-Fetch-Site": "same-origin"}
ADDRESS = re.compile(r"\b(?:href|action|src|data-live)=\"(/[^\"]*)")


def behind(root: str) -> Web:
    return Web(HostPort("127.0.0.1", 1), proxy=WebProxy(("127.0.0.1/32",), path=root))


@pytest.mark.parametrize("root", ["/spam", ""], ids=["below", "own host"])
def test_every_address_is_where_the_proxy_has_put_us(tmp_path: Path, root: str) -> None:
    with served(tmp_path, behind(root)) as running:
        browser = running.client(**SECURE)
        entered = browser.post(
            "/login", data={"link": running.secret(CredentialKind.LINK, OPERATOR), "csrf": ""}
        )
        assert (entered.status_code, entered.headers["location"]) == (303, f"{root}/")
        cookie = entered.headers["set-cookie"]
        name, path = ("__Secure-spamguard", "/spam/") if root else ("__Host-spamguard", "/")
        assert (
            cookie.startswith(f"{name}="),
            f"; Path={path};" in cookie,
            "; Secure" in cookie,
        ) == (True, True, True)
        browser.headers["Cookie"] = cookie.partition(";")[0]
        for page in [*PAGES, "/history?told=x&sender=a", "/nowhere"]:
            found = ADDRESS.findall(browser.get(page).text)
            assert len(found) > 10
            assert [one for one in found if not one.startswith(f"{root}/")] == [], page
            assert not [one for one in found if one.startswith("/spam/spam")]


def test_results_and_undo_stay_below_the_path(tmp_path: Path) -> None:
    with served(tmp_path, behind("/spam")) as running:
        browser = running.client(**SECURE)
        entered = browser.post(
            "/login", data={"link": running.secret(CredentialKind.LINK, OPERATOR), "csrf": ""}
        )
        browser.headers["Cookie"] = entered.headers["set-cookie"].partition(";")[0]
        (token,) = set(re.findall(r'name="csrf" value="(\w+)"', browser.get("/history").text))
        taught = browser.post(
            f"/history/{NAME}/teach?label=spam", data={"csrf": token, "class": "spam"}
        )
        place = taught.headers["location"]
        assert place.startswith("/spam/history?label=spam&told=")
        page = browser.get(place.removeprefix("/spam")).text
        assert (
            f'action="/spam/history/{NAME}/forget?label=spam"'
            in page.partition('id="notice"')[2].partition("</form>")[0]
        )
        left = browser.post("/logout", data={"csrf": token})
        assert left.headers["location"] == "/spam/login"
        assert "; Path=/spam/;" in left.headers["set-cookie"]
