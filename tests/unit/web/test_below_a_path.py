"""Pages below a path of a reverse proxy: every address and the cookie have that path."""

from __future__ import annotations

from pathlib import Path

from spamguard.config.options import HostPort, Web, WebProxy
from spamguard.web.auth import CredentialKind
from tests.unit.web.fixed import NAME
from tests.unit.web.served import OPERATOR, served

SECURE = {"X-Forwarded-Proto": "https", "Sec-Fetch-Site": "same-origin"}


def behind(root: str) -> Web:
    return Web(HostPort("127.0.0.1", 1), proxy=WebProxy(("127.0.0.1/32",), path=root))


def test_results_and_undo_stay_below_the_path(tmp_path: Path) -> None:
    with served(tmp_path, behind("/spam")) as running:
        browser = running.client(**SECURE)
        entered = browser.post(
            "/login", data={"link": running.secret(CredentialKind.LINK, OPERATOR)}
        )
        browser.headers["Cookie"] = entered.headers["set-cookie"].partition(";")[0]
        taught = browser.post(f"/history/{NAME}/teach?label=spam", data={"class": "spam"})
        place = taught.headers["location"]
        assert place.startswith("/spam/history?label=spam&told=")
        page = browser.get(place.removeprefix("/spam")).text
        assert (
            f'action="/spam/history/{NAME}/forget?label=spam"'
            in page.partition('id="notice"')[2].partition("</form>")[0]
        )
        left = browser.post("/logout")
        assert left.headers["location"] == "/spam/login"
        assert "; Path=/spam/;" in left.headers["set-cookie"]
