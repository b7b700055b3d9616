"""The page behind a real nginx with HTTPS, by the snippets of config/nginx: on a host of its own,
below a path, and with single sign-on.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from selenium.webdriver import Chrome

from tests.e2e import daemon
from tests.e2e.moving import sibling
from tests.e2e.ports import free_port, wait_for_port
from tests.e2e.web_site import Site
from tests.support.browser import chromium, complaints, log_in, needs_browser, press, shows, text
from tests.support.certificates import self_signed
from tests.support.waiting import PATIENCE, eventually

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
SNIPPETS = Path(__file__).parents[2] / "config" / "nginx"

pytestmark = [needs_browser, pytest.mark.skipif(not NGINX, reason="no nginx: see .ci/packages")]

_AROUND = """\
daemon off;
{user}
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{}}
http {{
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {inside}
}}
"""
_HOST = """\
server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {pem};
    ssl_certificate_key {pem};
    location / {{ return 200 "another page\\n"; }}
{locations}
}}
"""


@dataclass(frozen=True)
class Behind:
    """The page as people find it."""

    site: Site
    url: str
    root: str
    pem: Path


@pytest.fixture(scope="module", params=["", "/spam"], ids=["own host", "below a path"])
def behind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Behind]:
    directory = tmp_path_factory.mktemp("nginx")
    state = daemon.taught(tmp_path_factory.mktemp("behind") / "state")
    site = Site(
        state,
        web={
            "hosts": ["localhost"],
            "proxy": {"networks": ["127.0.0.1/32"], "path": request.param},
        },
    )
    pem, port = self_signed(directory), free_port()
    snippet = "below.conf" if request.param else "own-host.conf"
    with site.running(), nginx(directory, _configured(snippet, site.port, port, pem)):
        wait_for_port(port)
        yield Behind(site, f"https://localhost:{port}{request.param}", request.param, pem)


def _configured(snippet: str, upstream: int, port: int, pem: Path) -> str:
    """A snippet with its example values replaced."""
    text = (SNIPPETS / snippet).read_text()
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{upstream}").replace(
        "listen 443", f"listen 127.0.0.1:{port}"
    )
    for example in ("/etc/ssl/spam.example.org.pem", "/etc/ssl/private/spam.example.org.key"):
        text = text.replace(example, str(pem))
    return (
        _HOST.format(port=port, pem=pem, locations=text)
        if snippet == "below.conf"
        else text.replace("server_name spam.example.org", "server_name localhost")
    )


@contextmanager
def nginx(directory: Path, inside: str) -> Iterator[None]:
    """An nginx of its own, under the account that runs the tests."""
    file = directory / "nginx.conf"
    user = "" if os.geteuid() else "user root;"  # else its worker could not write here
    file.write_text(_AROUND.format(directory=directory, user=user, inside=inside))
    running = subprocess.Popen([NGINX or "", "-c", str(file), "-e", str(directory / "error.log")])
    try:
        yield
    finally:
        running.terminate()
        running.wait(PATIENCE)


@pytest.fixture
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        driver.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": True})
        yield driver


def link(behind: Behind, *who: str) -> str:
    """As the command prints it: with the path, but for the port, which is nginx's usual one
    elsewhere.
    """
    page, asked, secret = behind.site.command("login-link", *who).strip().partition("/login?")
    assert page == f"https://localhost{behind.root}"
    return f"{behind.url}{asked}{secret}"


def test_people_come_in_teach_take_back_and_release(
    behind: Behind, browser: Chrome, tmp_path: Path
) -> None:
    site = behind.site
    site.send(sibling(1))
    site.send(daemon.unseen("spam", 6)[-1], held=True)
    log_in(browser, link(behind, "--operator"))
    assert browser.current_url == f"{behind.url}/"
    _has_a_safe_cookie(behind, browser)

    press(browser, "History", "header")
    press(browser, "Spam", ".mail li:last-child")
    shows(browser, "Learnt as spam.", "#notice")
    press(browser, "Undo", "#notice")
    shows(browser, "Taken back: you had said spam.", "#notice")
    eventually(lambda: "You said" not in text(browser, ".mail li:last-child"), "undone")

    press(browser, "Teach", "header")
    file = tmp_path / "message.eml"
    file.write_bytes(
        b"Subject: large\r\nFrom: a@b.example\r\n\r\n"
        + b"A long letter, in which nothing stands.\r\n" * 50_000
    )
    browser.find_element("id", "file").send_keys(str(file))
    browser.find_element("css selector", "input[name=class][value=ham]").click()
    press(browser, "Teach")
    shows(browser, "Learnt as ham.", "#notice")

    press(browser, "Quarantine", "header")
    browser.find_element("css selector", ".mail .subject").click()
    press(browser, "Release as ham")
    shows(browser, "Released: 1 message, learnt as ham: 1.", "#notice")
    assert browser.current_url.startswith(f"{behind.url}/quarantine?told=")
    _all_is_ours(behind, browser)

    press(browser, "Log out", "header")
    shows(browser, "You are not logged in")
    assert browser.current_url == f"{behind.url}/login"
    assert browser.get_cookies() == []
    assert complaints(browser) == []


def _has_a_safe_cookie(behind: Behind, browser: Chrome) -> None:
    """Which other pages of the host are not sent."""
    (cookie,) = browser.get_cookies()
    expected = ("__Secure-spamguard", "/spam/") if behind.root else ("__Host-spamguard", "/")
    assert (cookie["name"], cookie["path"]) == expected
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"], cookie["domain"]) == (
        True,
        True,
        "Lax",
        "localhost",
    )


def _all_is_ours(behind: Behind, browser: Chrome) -> None:
    """All links, forms and loaded resources of the page are below its own address."""
    script = """return [...document.querySelectorAll("[href], [action], [src]")]
        .map((one) => one.href || one.action || one.src)
        .concat(performance.getEntriesByType("resource").map((one) => one.name))"""
    addresses = [str(one) for one in browser.execute_script(script)]
    assert len(addresses) > 15
    assert [address for address in addresses if not address.startswith(f"{behind.url}/")] == []


def _client(behind: Behind) -> httpx.Client:
    return httpx.Client(verify=ssl.create_default_context(cafile=behind.pem), timeout=PATIENCE)


def test_forms_of_other_hosts_and_forged_fields(behind: Behind) -> None:
    """The form is refused; X-Forwarded fields of the client change nothing."""
    with _client(behind) as client:
        form = {"link": link(behind, "--user", "ben").partition("link=")[2]}
        client.headers["Origin"] = "https://evil.example"
        assert client.post(f"{behind.url}/login", data=form).status_code == 403
        port = behind.url.partition("localhost:")[2].partition("/")[0]
        client.headers["Origin"] = f"https://localhost:{port}"
        told = {
            "X-Forwarded-Prefix": "/elsewhere",
            "X-Forwarded-Proto": "http",
            "X-Forwarded-Host": "evil.example",
        }
        answer = client.post(f"{behind.url}/login", data=form, headers=told)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{behind.root}/history")
        assert "secure" in answer.headers["set-cookie"].lower()


# ---- single sign-on


class _Provider(BaseHTTPRequestHandler):
    """In the place of oauth2-proxy: its login asks for nothing, and the name is in the cookie."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = self.headers.get("Cookie", "").partition("sso=")[2].partition(";")[0]
        if url.path == "/oauth2/auth":
            self.send_response(202 if name else 401)
            self.send_header("X-Auth-Request-Email", name)
        else:
            self.send_response(302)
            self.send_header("Set-Cookie", "sso=anna@example.net; Path=/; Secure; HttpOnly")
            self.send_header("Location", parse_qs(url.query)["rd"][0])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def signed_on(tmp_path: Path) -> Iterator[Behind]:
    state = daemon.taught(tmp_path / "state")
    proxy = {
        "networks": ["127.0.0.1/32"],
        "user_header": "X-Remote-User",
        "operators": ["postmaster@example.org"],
    }
    site = Site(state, web={"hosts": ["localhost"], "proxy": proxy})
    pem, port = self_signed(tmp_path), free_port()
    provider = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    threading.Thread(target=provider.serve_forever).start()
    text = _configured("single-sign-on.conf", site.port, port, pem)
    text = text.replace("127.0.0.1:4180", f"127.0.0.1:{provider.server_port}")
    try:
        with site.running(), nginx(tmp_path, text):
            wait_for_port(port)
            yield Behind(site, f"https://localhost:{port}", "", pem)
    finally:
        provider.shutdown()
        provider.server_close()


def test_single_sign_on(signed_on: Behind, browser: Chrome) -> None:
    """The provider's user teaches without a link, whatever a client says."""
    behind = signed_on
    behind.site.send(sibling(1), to=["anna@example.net"])
    behind.site.send(sibling(2), to=["ben@example.net"])
    browser.get(f"{behind.url}/history")
    shows(browser, "anna@example.net", ".who")
    assert browser.current_url == f"{behind.url}/history"
    eventually(lambda: browser.find_elements("css selector", ".mail li"), "the mail is shown")
    press(browser, "Spam", ".mail li:last-child")
    shows(browser, "Learnt as spam.", "#notice")
    assert complaints(browser) == []
    with _client(behind) as client:
        forged = {"X-Remote-User": "postmaster@example.org"}
        answer = client.get(f"{behind.url}/history?label=spam", headers=forged)
        assert answer.status_code == 302
        assert answer.headers["location"].endswith(
            f"/oauth2/start?rd={behind.url}/history?label=spam"
        )
        assert client.get(f"{behind.url}/oauth2/auth").status_code == 404
        assert client.get(f"{behind.url}/api/v1/history", headers=forged).status_code == 401
        client.cookies.set("sso", "anna@example.net")
        assert "<caption>Lessons in force<" in client.get(behind.url, headers=forged).text
        client.cookies.set("sso", "postmaster@example.org")
        assert "Lessons in force, by person" in client.get(behind.url).text
        token = behind.site.command("token", "create", "program", "--operator").split()[-1]
        bearer = {"Authorization": f"Bearer {token}"}
        answer = client.get(f"{behind.url}/api/v1/history", headers=bearer)
        assert len(answer.json()["judgements"]) == 2
