"""Authentication over HTTP: by which credentials, and for how long."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from contextlib import closing

import httpx
import pytest

from spamguard.config.options import HostPort, Web, WebProxy
from spamguard.errors import LedgerError
from spamguard.web import app
from spamguard.web.auth import CREDENTIALS_FILE, CredentialKind, CredentialStore
from tests.support.waiting import PATIENCE, eventually
from tests.unit.web.served import ANNA, LETTER, MESSAGE, OPERATOR, ROOT, Served, served

CLASSES = f"{ROOT}/classes"
OWN = {"Sec-Fetch-Site": "same-origin"}


def problem(found: httpx.Response) -> int:
    """The status, of an answer that is a whole problem."""
    assert found.headers["content-type"] == "application/problem+json"
    value = found.json()
    assert set(value) == {"type", "title", "status", "detail"}
    assert value["status"] == found.status_code
    return found.status_code


def test_without_credentials_all_is_refused(server: Served) -> None:
    response = server.client().get(CLASSES)
    assert problem(response) == 401
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_token_lets_in(server: Served) -> None:
    assert server.client(ANNA).get(CLASSES).json() == {"classes": {"ham": False, "spam": True}}


@pytest.mark.parametrize(
    "given", ["Bearer x", "bearer " + "0" * 16 + "." + "A" * 43, "Bearer \xff"]
)
def test_a_wrong_token_does_not(server: Served, given: str) -> None:
    browser = server.browser(ANNA)
    for client in (server.client(), browser):  # not even beside a right cookie
        assert (
            problem(client.get(CLASSES, headers={"Authorization": given.encode("latin-1")})) == 401
        )


def test_a_revoked_token_is_refused_at_once(server: Served) -> None:
    client = server.client()
    client.headers["Authorization"] = (
        f"Bearer {server.secret(CredentialKind.TOKEN, ANNA, name='lost')}"
    )
    assert client.get(CLASSES).status_code == 200
    store = CredentialStore.open(server.state)
    store.revoke("lost")
    store.close()
    assert problem(client.get(CLASSES)) == 401


def test_other_words_of_authorization_are_the_proxys(server: Served) -> None:
    browser = server.browser(ANNA)
    assert browser.get(CLASSES, headers={"Authorization": "Basic eDp5"}).status_code == 200
    assert problem(server.client().get(CLASSES, headers={"Authorization": "Basic eDp5"})) == 401


def test_a_link_logs_in_once(server: Served) -> None:
    link = server.secret(CredentialKind.LINK, ANNA)
    client = server.client(**OWN)
    assert client.get(f"/login?link={link}").status_code == 200  # whoever looks at mail fetches it
    response = client.post("/login", data={"link": link, "csrf": ""})
    assert response.status_code == 303
    cookie = response.headers["set-cookie"]
    assert re.fullmatch(
        r"spamguard=[0-9a-v]{16}\.[\w-]{43}; HttpOnly; Max-Age=2592000; Path=/; SameSite=lax",
        cookie,
    )
    assert client.get(CLASSES).status_code == 200
    other = server.client(**OWN)
    assert other.post("/login", data={"link": link, "csrf": ""}).status_code == 401
    assert problem(other.get(CLASSES)) == 401


def test_an_old_link_does_not(server: Served) -> None:
    client = server.client(**OWN)
    link = server.secret(CredentialKind.LINK, ANNA, seconds=0)
    assert client.post("/login", data={"link": link, "csrf": ""}).status_code == 401
    for wrong in ("", "x", link * 99, "\0"):
        assert client.post("/login", data={"link": wrong, "csrf": ""}).status_code == 401


def token_of(page: str) -> str:
    match = re.search(r'name="csrf" value="([0-9a-f]{64})"', page)
    assert match
    return match[1]


def test_logging_out_ends_the_session(server: Served) -> None:
    browser = server.browser(ANNA)
    cookie = dict(browser.cookies)
    token = token_of(browser.get("/teach").text)
    assert browser.post("/logout", data={"csrf": token}).status_code in (200, 303)
    again = server.client()
    again.cookies.update(cookie)
    assert problem(again.get(CLASSES)) == 401


def test_a_new_login_ends_the_old_session(server: Served) -> None:
    """Its cookie is gone, so it could never be logged out."""
    browser = server.browser(ANNA)
    before = dict(browser.cookies)
    link = server.secret(CredentialKind.LINK, OPERATOR)
    token = token_of(browser.get(f"/login?link={link}").text)
    assert browser.post("/login", data={"link": link, "csrf": token}).status_code == 303
    assert browser.get(CLASSES).status_code == 200
    again = server.client()
    again.cookies.update(before)
    assert problem(again.get(CLASSES)) == 401


def test_a_session_outlives_the_process(tmp_path) -> None:
    with served(tmp_path) as first:
        browser = first.browser(ANNA)
        cookie, token = dict(browser.cookies), token_of(browser.get("/teach").text)
    with served(tmp_path) as second:
        client = second.client()
        client.cookies.update(cookie)
        assert token_of(client.get("/teach").text) == token  # what was open stays good


@pytest.mark.parametrize(
    "other",
    [
        'a={"x":1}',
        "a=b c",
        "x",
        '"',
        'a="b',
        "a=b, c=d",
        "\xe9=1",
        "a=;;=;",
        "notspamguard=x",
        "=spamguard",
    ],
)
def test_foreign_cookies_do_not_hide_the_session(server: Served, other: str) -> None:
    """Other services on other ports of the host share its cookies."""
    ((name, value),) = server.browser(ANNA).cookies.items()
    for given in (
        f"{other}; {name}={value}",
        f"{name}={value};{other}",
        f"{other};  {name} = {value} ; {other}",
    ):
        assert (
            server.client().get(CLASSES, headers={"Cookie": given.encode("latin-1")}).status_code
            == 200
        )


@pytest.mark.parametrize(
    "other",
    ['a="' + "\\1" * 7500 + '"', "a=" + "\\" * 15000, "a;" * 7500, "=" * 15000, "spamguard" * 1600],
)
def test_a_cookie_costs_no_time(server: Served, other: str) -> None:
    client = server.client()
    client.get(CLASSES)
    began = time.process_time()
    for _ in range(5):
        assert client.get(CLASSES, headers={"Cookie": other}).status_code == 401
    assert time.process_time() - began < 2.5  # of the processor; of a second each, before


# ---- forged requests


@pytest.mark.parametrize(
    "fields",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},
    ],
)
def test_a_strangers_page_cannot_send_forms(server: Served, fields: dict[str, str]) -> None:
    browser = server.browser(ANNA)
    token = token_of(browser.get("/teach").text)
    del browser.headers["Sec-Fetch-Site"]
    before = len(server.service.calls)
    response = browser.post(
        f"/teach/forget?digest={'00' * 16}", data={"csrf": token}, headers=fields
    )
    assert response.status_code == 403
    assert len(server.service.calls) == before


@pytest.mark.parametrize("token", ["", "0" * 64, "\xff"])
def test_a_form_without_its_token_is_refused(server: Served, token: str) -> None:
    before = len(server.service.calls)
    response = server.browser(ANNA).post(f"/teach/forget?digest={'00' * 16}", data={"csrf": token})
    assert response.status_code == 403
    assert len(server.service.calls) == before


def test_the_form_token_of_another_session_is_refused(server: Served) -> None:
    others = token_of(server.browser(OPERATOR).get("/teach").text)
    assert server.browser(ANNA).post("/logout", data={"csrf": others}).status_code == 403


def test_the_api_takes_cookies_from_our_pages_only(server: Served) -> None:
    browser = server.browser(ANNA)
    given = {"content": LETTER, "headers": MESSAGE}
    assert browser.post(f"{ROOT}/judge", **given).status_code == 200
    given["headers"] = MESSAGE | {"Sec-Fetch-Site": "cross-site"}
    assert problem(browser.post(f"{ROOT}/judge", **given)) == 403
    del browser.headers["Sec-Fetch-Site"]
    assert problem(browser.post(f"{ROOT}/judge", content=LETTER, headers=MESSAGE)) == 403


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_another_site_cannot_load_data_it_does_not_show(
    server: Served, site: str, mode: str, status: int
) -> None:
    """It would learn from the time that a search takes."""
    fields = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    assert (
        server.browser(ANNA).get("/history?subject=private", headers=fields).status_code == status
    )
    assert (
        server.client(ANNA).get(f"{ROOT}/history", headers=fields).status_code == 200
    )  # of programs nothing but their token is known


def test_another_site_cannot_log_a_visitor_in(server: Served) -> None:
    """In the stranger's name, who would then see what the user does."""
    link = server.secret(CredentialKind.LINK, ANNA)
    response = server.client().post(
        "/login", data={"link": link, "csrf": ""}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert response.status_code == 403
    assert "set-cookie" not in response.headers


def test_a_refusal_to_strangers_offers_nothing(server: Served) -> None:
    response = server.client().post("/", headers={"Sec-Fetch-Site": "cross-site"})
    assert response.status_code == 403
    assert "This was not sent by a page of this server." in response.text
    assert "You can still" not in response.text


# ---- a reverse proxy


def test_a_proxy_names_people(tmp_path) -> None:
    web = Web(
        HostPort("127.0.0.1", 1),
        ("localhost",),
        proxy=WebProxy(("127.0.0.1/32",), "X-Remote-User", ("olga",)),
    )
    with served(tmp_path, web) as running:
        client = running.client()
        assert problem(client.get(CLASSES)) == 401
        named = {"X-Remote-User": "anna"}
        assert client.get(CLASSES, headers=named).status_code == 200
        assert problem(client.get(f"{ROOT}/metrics", headers=named)) == 403
        assert client.get(f"{ROOT}/metrics", headers={"X-Remote-User": "olga"}).status_code == 200
        given = named | MESSAGE
        assert (
            problem(client.post(f"{ROOT}/judge", content=LETTER, headers=given)) == 403
        )  # a browser sends the proxy's password by itself
        given |= OWN
        assert client.post(f"{ROOT}/judge", content=LETTER, headers=given).status_code == 200
        link = running.secret(CredentialKind.LINK, ANNA)
        response = client.post(
            "/login", data={"link": link, "csrf": ""}, headers=OWN | {"X-Forwarded-Proto": "https"}
        )
        assert response.headers["set-cookie"].startswith("__Host-spamguard=")
        assert "; Secure" in response.headers["set-cookie"]


# ---- how often


def test_an_address_may_ask_so_often(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(app, "MAX_ADDRESS_REQUESTS_PER_MINUTE", 5)
    with served(tmp_path) as running:
        assert [problem(running.client().get(CLASSES)) for _ in range(6)] == [401] * 5 + [429]


def test_only_a_guessing_client_is_slowed_down(tmp_path) -> None:
    with served(tmp_path) as running:
        client = running.client(Authorization="Bearer x")
        found = [client.get(CLASSES).status_code for _ in range(app.MAX_FAILURES_PER_MINUTE + 5)]
        assert found[-1] == 429
        assert set(found) == {401, 429}
        assert running.client(ANNA).get(CLASSES).status_code == 200


def test_strangers_cannot_upload_much(server: Served) -> None:
    client = server.client(**OWN)
    assert client.post("/login", data={"link": "x" * 20_000, "csrf": ""}).status_code == 413
    assert problem(client.post(f"{ROOT}/judge", content=b"x" * 3_000_000, headers=MESSAGE)) == 401


# ---- what goes out


def test_every_answer_has_fields_for_security(server: Served) -> None:
    client = server.client(ANNA)
    for path in (CLASSES, "/login", "/nothing", f"{ROOT}/nothing", f"{ROOT}/history/x"):
        fields = client.get(path).headers
        assert fields["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in fields["content-security-policy"]
        assert "frame-ancestors 'none'" in fields["content-security-policy"]
        assert "unsafe" not in fields["content-security-policy"]
        assert fields["cache-control"] == "no-store"
        assert fields["referrer-policy"] == "same-origin"
        assert fields["date"]
        assert "server" not in fields
        assert "strict-transport-security" not in fields
        assert "access-control-allow-origin" not in fields
        assert len({name for name, _ in fields.multi_items()}) == len(fields.multi_items())


def test_other_names_of_this_server_are_not_answered(server: Served) -> None:
    response = server.client(ANNA).get(CLASSES, headers={"Host": "evil.example"})
    assert problem(response) == 421
    assert problem(server.client().get("/", headers={"Host": "evil.example"})) == 421


def test_a_line_in_the_log_for_each(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spamguard.web")
    client = server.client(ANNA)
    client.get(f"{ROOT}/history?subject=private")
    client.get("/x" * 500)

    def lines() -> list[str]:
        return [
            line for line in caplog.messages if " anna " in line
        ]  # one of the test before may come as late as now

    until = time.monotonic() + PATIENCE
    while len(lines()) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    first, second = lines()
    assert re.fullmatch(rf"127\.0\.0\.1 anna GET {ROOT}/history 200 \d+ ms", first)
    assert len(second) < 300


def test_faults_of_ours_stay_in_the_log(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(server.service, "history", fails)
    response = server.client(ANNA).get(f"{ROOT}/history")
    assert problem(response) == 500
    assert "secret" not in response.text
    page = server.browser(ANNA).get("/history")
    assert page.status_code == 500
    assert "secret" not in page.text
    assert "secret inside" in caplog.text


def test_trouble_with_the_disk_is_no_fault(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise OSError(28, "No space left on device", "/var/lib/secret")

    monkeypatch.setattr(server.service, "classes", fails)
    response = server.client(ANNA).get(CLASSES)
    assert problem(response) == 503
    assert "retry-after" in response.headers
    assert "secret" not in response.text
    assert "No space left" in caplog.text
    server.service.failure = LedgerError("ledger /var/lib/secret: the disk is full")
    try:
        response = server.client(ANNA).get(f"{ROOT}/history")
    finally:
        server.service.failure = None
    assert problem(response) == 503
    assert "secret" not in response.text
    assert "the disk is full" in caplog.text


def test_a_locked_store_does_not_refuse_valid_credentials(
    server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """As with a full disk, or while a command that writes is stopped."""
    client, browser = server.client(ANNA), server.browser(ANNA)
    with closing(sqlite3.connect(server.state / CREDENTIALS_FILE, isolation_level=None)) as other:
        other.execute("UPDATE credentials SET seen = seen - 1000")
        other.execute("BEGIN IMMEDIATE")
        assert client.get(CLASSES).status_code == 200
        assert browser.get(CLASSES).status_code == 200
        other.execute("ROLLBACK")
    assert "locked" in caplog.text


def test_a_method_is_not_logged_whole(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spamguard.web")
    server.client(ANNA).request("X" * 3000, CLASSES)
    eventually(lambda: caplog.messages, "a line")
    assert len(caplog.messages[0]) < 200
