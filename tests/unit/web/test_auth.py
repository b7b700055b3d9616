"""Authentication over HTTP: by which credentials, and for how long."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import httpx
import pytest

from spamguard.config.options import HostPort, Web, WebProxy
from spamguard.errors import LedgerError
from spamguard.web import requests
from spamguard.web.auth import CREDENTIALS_FILE, CredentialKind
from tests.unit.web.fixed import NAME
from tests.unit.web.served import ANNA, LETTER, MESSAGE, ROOT, Served, served

CLASSES = f"{ROOT}/model"
HELD = f"{ROOT}/quarantine/{NAME}"
OWN = {"Sec-Fetch-Site": "same-origin"}


def problem(found: httpx.Response) -> int:
    """The status, of an answer that is a whole problem."""
    assert found.headers["content-type"] == "application/problem+json"
    value = found.json()
    assert set(value) == {"type", "title", "status", "detail"}
    assert value["status"] == found.status_code
    return found.status_code


@pytest.mark.parametrize(
    "given", ["Bearer x", "bearer " + "0" * 16 + "." + "A" * 43, "Bearer \xff"]
)
def test_a_wrong_token_does_not(server: Served, given: str) -> None:
    browser = server.browser(ANNA)
    for client in (server.client(), browser):  # not even beside a right cookie
        assert (
            problem(client.get(CLASSES, headers={"Authorization": given.encode("latin-1")})) == 401
        )


def test_an_old_link_does_not(server: Served) -> None:
    client = server.client(**OWN)
    link = server.secret(CredentialKind.LINK, ANNA, seconds=0)
    assert client.post("/login", data={"link": link}).status_code == 401
    for wrong in ("", "x", link * 99, "\0"):
        assert client.post("/login", data={"link": wrong}).status_code == 401


# ---- forged requests


@pytest.mark.parametrize(
    ("fields", "with_cookie", "at_login"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 200, 401),
        ({"Sec-Fetch-Site": "none"}, 200, 401),  # no page made the browser send it
        ({"Sec-Fetch-Site": "same-site"}, 403, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403, 403),
        ({"Origin": "http://localhost:{port}"}, 200, 401),
        ({"Origin": "http://localhost:1"}, 403, 403),
        ({"Origin": "null"}, 403, 403),
        ({}, 403, 401),  # a program may log in, and has no cookie
    ],
)
def test_only_our_pages_change_anything(
    server: Served, fields: dict[str, str], with_cookie: int, at_login: int
) -> None:
    """No form of another site acts in anybody's name, or logs anybody in under another name."""
    fields = {name: text.format(port=server.port) for name, text in fields.items()}
    browser = server.browser(ANNA)
    browser.headers.pop("Sec-Fetch-Site")
    given = {"content": LETTER, "headers": MESSAGE | fields}
    assert browser.post(f"{ROOT}/judge", **given).status_code == with_cookie
    logged_in = server.client().post("/login", data={"link": "wrong"}, headers=fields)
    assert logged_in.status_code == at_login
    assert server.client(ANNA).post(f"{ROOT}/judge", **given).status_code == 200  # by its token


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
    assert server.browser(ANNA).get("/history?q=private", headers=fields).status_code == status
    assert (
        server.client(ANNA).get(f"{ROOT}/history", headers=fields).status_code == 200
    )  # of programs nothing but their token is known


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
        assert problem(client.delete(HELD, headers=named | OWN)) == 403
        assert client.delete(HELD, headers={"X-Remote-User": "olga"} | OWN).status_code == 200
        given = named | MESSAGE
        assert (
            problem(client.post(f"{ROOT}/judge", content=LETTER, headers=given)) == 403
        )  # a browser sends the proxy's password by itself
        given |= OWN
        assert client.post(f"{ROOT}/judge", content=LETTER, headers=given).status_code == 200
        link = running.secret(CredentialKind.LINK, ANNA)
        response = client.post(
            "/login", data={"link": link}, headers=OWN | {"X-Forwarded-Proto": "https"}
        )
        assert response.headers["set-cookie"].startswith("__Host-spamguard=")
        assert "; Secure" in response.headers["set-cookie"]


# ---- how often


def test_only_a_guessing_client_is_slowed_down(tmp_path) -> None:
    with served(tmp_path) as running:
        client = running.client(Authorization="Bearer x")
        found = [
            client.get(CLASSES).status_code for _ in range(requests.MAX_FAILURES_PER_MINUTE + 5)
        ]
        assert found[-1] == 429
        assert set(found) == {401, 429}
        assert running.client(ANNA).get(CLASSES).status_code == 200


# ---- what goes out


def test_other_names_of_this_server_are_not_answered(server: Served) -> None:
    response = server.client(ANNA).get(CLASSES, headers={"Host": "evil.example"})
    assert problem(response) == 421
    assert problem(server.client().get("/", headers={"Host": "evil.example"})) == 421


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

    monkeypatch.setattr(server.service, "model", fails)
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
