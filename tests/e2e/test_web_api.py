"""The HTTP API of the real daemon: history, lessons, rights; and mail does not depend on it."""

from __future__ import annotations

import os
import signal
import smtplib
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e import daemon
from tests.e2e.daemon import Daemon
from tests.e2e.peers import Hop
from tests.e2e.ports import free_port
from tests.support import certificates
from tests.support.commands import spamguard
from tests.support.processes import children
from tests.support.waiting import PATIENCE, eventually

MESSAGE = {"Content-Type": "message/rfc822"}
HOLDING = {"rules": [{"when": "spam", "action": "quarantine"}]}


class ApiSite:
    """A daemon with page and API, and its clients."""

    def __init__(self, state: Path, **more: Any) -> None:
        self.state = state
        self.hop = Hop()
        self.smtp, self.port = free_port(), free_port()
        self.file = state.with_name(f"{state.name}.yaml")
        self.clients: list[httpx.Client] = []
        self.configure({"listen": f"127.0.0.1:{self.port}"}, **more)

    def configure(self, web: dict[str, Any] | None, **more: Any) -> None:
        listener = {
            "listen": f"smtp://127.0.0.1:{self.smtp}",
            "position": "standalone",
            "next_hop": f"smtp://127.0.0.1:{self.hop.port}",
        }
        listener |= more.pop("listener", {})
        self.file.write_text(
            yaml.safe_dump(
                {
                    "state": str(self.state),
                    "workers": 1,
                    "web": web,
                    "listeners": [listener],
                    **more,
                }
            )
        )

    @contextmanager
    def running(self, *, served: bool = True) -> Iterator[Daemon]:
        try:
            with (
                self.hop.serving(),
                daemon.running(self.state, "--config", str(self.file), port=self.smtp) as running,
            ):
                if served:
                    running.lines("page and API on")
                yield running
        finally:
            for client in self.clients:
                client.close()

    def command(self, *arguments: str, status: int = 0) -> str:
        done = spamguard(self.state, *arguments)
        assert done.returncode == status, done.stderr
        return done.stdout.decode().strip()

    def client(self, *who: str, **more: Any) -> httpx.Client:
        """A client with a token of its own. who: options of `spamguard token create`."""
        token = self.command("token", "create", f"t{time.monotonic_ns()}", *who)
        url = more.pop("url", f"http://127.0.0.1:{self.port}")
        client = httpx.Client(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE,
            **more,
        )
        self.clients.append(client)
        return client

    def send(self, raw: bytes, *recipients: str) -> None:
        with smtplib.SMTP("127.0.0.1", self.smtp, timeout=PATIENCE) as client:
            client.sendmail("sender@example.org", list(recipients), raw)


def passed(client: httpx.Client, number: int) -> list[dict[str, Any]]:
    """The messages that this user sees in the history; waits until there are `count`."""
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        found[:] = client.get("/history").json()["judgements"]
        return len(found) >= number

    eventually(enough, f"{number} messages in the history")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiSite]:
    """With mail for anna (0, 1), for ben (2) and for both (3), the oldest first."""
    site = ApiSite(daemon.taught(tmp_path_factory.mktemp("site") / "state"))
    with site.running():
        letters = [*daemon.unseen("spam", 3), *daemon.unseen("ham", 1)]
        for raw, recipients in zip(
            letters, (["anna"], ["anna"], ["ben"], ["anna", "ben"]), strict=True
        ):
            site.send(raw, *(f"{name}@example.net" for name in recipients))
            time.sleep(0.01)  # ids tell milliseconds
        site.anna, site.ben, site.olga = (
            site.client("--user", "anna"),
            site.client("--user", "ben"),
            site.client("--operator"),
        )
        passed(site.olga, 4)
        yield site


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiSite, Daemon]]:
    """A daemon whose processes a test may end, and whose configuration it may change for a while.
    It quarantines spam.
    """
    site = ApiSite(daemon.taught(tmp_path_factory.mktemp("another") / "state"), listener=HOLDING)
    with site.running() as running:
        yield site, running


@pytest.fixture
def anna(site: Any) -> httpx.Client:
    found: httpx.Client = site.anna
    return found


@pytest.fixture
def ben(site: Any) -> httpx.Client:
    found: httpx.Client = site.ben
    return found


@pytest.fixture
def olga(site: Any) -> httpx.Client:
    found: httpx.Client = site.olga
    return found


def test_everybody_sees_their_own_mail(
    anna: httpx.Client, ben: httpx.Client, olga: httpx.Client
) -> None:
    everything = passed(olga, 4)
    both, bens, *annas = everything
    assert [message["id"] for message in passed(anna, 3)] == [
        both["id"],
        *(judgement["id"] for judgement in annas),
    ]
    assert [message["id"] for message in passed(ben, 2)] == [both["id"], bens["id"]]
    assert both["to"] == ["anna@example.net", "ben@example.net"]
    assert anna.get(f"/history/{both['id']}").json()["to"] == ["anna@example.net"]
    for path in ("", "/why"):
        assert ben.get(f"/history/{annas[0]['id']}{path}").status_code == 404
    assert ben.get("/history", params={"q": "to:anna"}).json()["judgements"] == []


# ---- quarantine


def test_quarantined_mail_is_released_or_deleted(another: tuple[ApiSite, Daemon]) -> None:
    site, _ = another
    anna, ben, olga = (
        site.client("--user", "anna"),
        site.client("--user", "ben"),
        site.client("--operator"),
    )
    came = len(site.hop.messages)
    first, second = daemon.unseen("spam", 6)[-2:]  # spam beyond doubt
    site.send(first, "anna@example.net")
    site.send(second, "anna@example.net", "ben@example.net")
    eventually(lambda: len(olga.get("/quarantine").json()["messages"]) == 2, "two are held")
    both, one = olga.get("/quarantine").json()["messages"]
    assert [held["id"] for held in anna.get("/quarantine").json()["messages"]] == [
        both["id"],
        one["id"],
    ]
    assert [held["id"] for held in ben.get("/quarantine").json()["messages"]] == [both["id"]]
    assert ben.get(f"/quarantine/{one['id']}").status_code == 404
    assert ben.post(f"/quarantine/{one['id']}/release").status_code == 404
    assert anna.post(f"/quarantine/{both['id']}/release").status_code == 403  # it waits for ben too
    assert "Subject:" in anna.get(f"/quarantine/{one['id']}").json()["header"]
    released = anna.post(f"/quarantine/{one['id']}/release").json()
    assert (released["released"], released["taught"]) == (True, True)
    assert len(site.hop.messages) == came + 1
    assert anna.delete(f"/quarantine/{both['id']}").status_code == 403
    assert olga.delete(f"/quarantine/{both['id']}").json() == {"id": both["id"], "deleted": True}
    assert olga.get(f"/quarantine/{both['id']}").status_code == 404


# ---- the process


def serving(running: Daemon) -> list[int]:
    """Numbers of the processes that serve page and API."""
    return children(running.process.pid, "spamguard.daemon.web")


def test_mail_needs_none_of_it_and_it_comes_back(another: tuple[ApiSite, Daemon]) -> None:
    site, running = another
    begun, ended = map(running.log().count, ("page and API on", "SIGKILL: replaced"))
    carla = site.client("--user", "carla")
    for number, how in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        (pid,) = serving(running)
        os.kill(pid, how)
        site.send(daemon.unseen("ham", 1)[0], "carla@example.net")
        if how == signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)
        running.lines("page and API on", begun + number)
    assert passed(carla, 2)  # the token is good for all of them
    running.lines("SIGKILL: replaced", ended + 2)


def test_https_and_a_new_certificate(tmp_path: Path) -> None:
    site = ApiSite(daemon.taught(tmp_path / "state"))
    pem = certificates.self_signed(tmp_path)
    site.configure(
        {
            "listen": f"127.0.0.1:{site.port}",
            "hosts": ["localhost"],
            "tls": {"certificate": str(pem), "key": str(pem)},
        }
    )
    with site.running() as running:
        url = f"https://localhost:{site.port}"
        olga = site.client(
            "--operator", url=url, verify=ssl.create_default_context(cafile=str(pem))
        )
        response = olga.get("/model")
        assert response.status_code == 200
        assert response.headers["strict-transport-security"]
        assert site.command("login-link", "--operator").startswith(url)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{site.port}/")
        link = site.command("login-link", "--operator").partition("link=")[2]
        entered = olga.post(f"{url}/login", data={"link": link})
        assert entered.headers["set-cookie"].startswith("__Host-spamguard=")
        assert "; Secure" in entered.headers["set-cookie"]
        certificates.self_signed(tmp_path)  # in the same place
        running.lines("use the new certificate")
        assert (
            httpx.get(
                f"{url}/login", verify=ssl.create_default_context(cafile=str(pem))
            ).status_code
            == 200
        )
