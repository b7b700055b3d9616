"""The HTTP API of the real daemon: history, lessons, rights; and mail does not depend on it."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.e2e import daemon
from tests.e2e.daemon import COMMAND, ENVIRONMENT, Daemon
from tests.e2e.peers import Hop
from tests.e2e.ports import free_port
from tests.support import certificates
from tests.support.processes import children, started_at
from tests.support.waiting import COMMAND_SECONDS, PATIENCE, eventually

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
        done = subprocess.run(
            [*COMMAND, "--state", str(self.state), *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            env=ENVIRONMENT,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout.strip()

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
    assert ben.get("/history", params={"to": "anna"}).json()["judgements"] == []


def test_users_cannot_teach_mail_of_others(
    anna: httpx.Client, ben: httpx.Client, olga: httpx.Client
) -> None:
    mine = passed(anna, 3)[-1]["id"]
    assert ben.post(f"/history/{mine}/learn", params={"class": "ham"}).status_code == 404
    assert ben.post(f"/history/{mine}/forget").status_code == 404
    assert ben.post("/undo", params={"user": "anna", "since": "2020-01-01"}).status_code == 403
    assert ben.post("/undo", params={"user": "", "since": "2020-01-01"}).status_code == 403
    assert olga.get(f"/history/{mine}").json()["taught"] == ""


def test_history_teaches_and_takes_back(anna: httpx.Client, olga: httpx.Client) -> None:
    name = passed(anna, 3)[-1]["id"]
    receipt = anna.post(f"/history/{name}/learn", params={"class": "ham"}).json()
    assert (receipt["label"], receipt["changed"], receipt["was"]) == ("ham", True, "")
    assert receipt["now"]["label"] != "spam"
    assert anna.post(f"/history/{name}/learn", params={"class": "ham"}).json()["changed"] is False
    known = anna.get(f"/history/{name}").json()
    assert (known["taught"], known["own"], known["label"]) == ("ham", "ham", "spam")
    assert olga.get(f"/history/{name}").json()["own"] == ""
    why = anna.get(f"/history/{name}/why").json()
    shares = sum(expert["share"] for expert in why["now"]["experts"].values()) + why["now"]["prior"]
    assert shares == pytest.approx(why["now"]["sum"])
    assert why["then"]["log_odds"] > why["now"]["log_odds"]
    dry = anna.post(
        "/undo", params={"user": "anna", "since": "2020-01-01", "dry_run": "true"}
    ).json()
    assert (dry["taken_back"], dry["dry_run"]) == (1, True)
    assert anna.post(f"/history/{name}/forget").json()["was"] == "ham"
    assert anna.get(f"/history/{name}").json()["taught"] == ""
    anna.post(f"/history/{name}/learn", params={"class": "ham"})
    assert (
        anna.post("/undo", params={"user": "anna", "since": "2020-01-01"}).json()["taken_back"] == 1
    )
    assert anna.get(f"/history/{name}").json()["own"] == ""


def test_messages_are_judged_taught_and_forgotten(olga: httpx.Client) -> None:
    raw = daemon.unseen("spam", 6)[-1]
    given: dict[str, Any] = {"content": raw, "headers": MESSAGE}
    before = olga.post("/judge", **given).json()
    assert before["label"] == "spam"
    receipt = olga.post("/learn", params={"class": "ham"}, **given).json()
    assert receipt["digest"] == before["digest"]
    after = olga.post("/judge", **given).json()
    assert (after["taught"], after["own"]) == ("ham", "ham")
    assert receipt["now"]["log_odds"] == pytest.approx(after["log_odds"])
    assert after["log_odds"] < before["log_odds"]
    assert olga.post("/explain", **given).json()["now"]["log_odds"] == pytest.approx(
        after["log_odds"]
    )
    assert olga.post("/forget", params={"digest": before["digest"]}).json()["was"] == "ham"
    assert olga.post("/judge", **given).json()["taught"] == ""
    assert olga.post("/learn", params={"class": "nonsense-class"}, **given).status_code == 422


def test_odd_messages_are_judged(olga: httpx.Client) -> None:
    for raw in (
        b"x",
        b"\0" * 5000,
        b"\n\n\n",
        b"Subject: \xff\xfe\r\n" * 900,
        b"Content-Type: multipart/mixed; boundary=a\n\n" + b"--a\n" * 5000,
    ):
        response = olga.post("/judge", content=raw, headers=MESSAGE)
        assert response.status_code in (200, 422), response.text
    assert (
        olga.post("/judge", content=daemon.unseen("ham", 1)[0], headers=MESSAGE).status_code == 200
    )


def test_a_message_is_looked_for(anna: httpx.Client, olga: httpx.Client) -> None:
    everything = passed(olga, 4)
    some = everything[1]
    found = olga.get(
        "/history",
        params={"subject": some["subject"].upper(), "from": "SENDER@", "label": some["label"]},
    ).json()
    assert some["id"] in [judgement["id"] for judgement in found["judgements"]]
    page = olga.get("/history", params={"limit": 3}).json()
    rest = olga.get("/history", params={"limit": 3, "before": page["following"]}).json()
    assert [one["id"] for one in [*page["judgements"], *rest["judgements"]]] == [
        one["id"] for one in everything
    ]
    assert rest["following"] == ""
    assert olga.get("/history", params={"until": "2020-01-01"}).json()["judgements"] == []
    assert len(olga.get("/history", params={"since": "2020-01-01"}).json()["judgements"]) == 4


def test_numbers(anna: httpx.Client, olga: httpx.Client) -> None:
    assert olga.get("/today").json()["passed"] == 4
    assert anna.get("/today").json()["passed"] == 3
    model = olga.get("/model").json()
    assert set(model["classes"]) >= {"ham", "spam"}
    assert model["missing"].startswith("only plain spam is called spam")
    assert anna.get("/classes").json()["classes"] == {"ham": False, "spam": True}
    assert olga.get("/health").json() == {"alive": True, "wrong": []}
    status = olga.get("/status")
    assert status.status_code == 200
    assert json.loads(status.text)


def test_metrics_are_those_of_prometheus(olga: httpx.Client, anna: httpx.Client) -> None:
    families = {family.name: family for family in parsed(olga.get("/metrics").text)}
    assert sum(sample.value for sample in families["spamguard_messages"].samples) == 4
    assert anna.get("/metrics").status_code == 403


def test_users_are_refused_or_see_their_own_mail(site: ApiSite) -> None:
    """To somebody without mail every operation answers with one of the described statuses."""
    dora = site.client("--user", "dora")
    described = dora.get("/openapi.json").json()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            names = [parameter["name"] for parameter in operation.get("parameters", ())]
            message = "requestBody" in operation
            response = dora.request(
                method.upper(),
                path.removeprefix("/api/v1").replace("{id}", "0" * 16),
                params={"class": "spam"} if "class" in names else {},
                content=b"Subject: x\r\n\r\ny\r\n" if message else None,
                headers=MESSAGE if message else {},
            )
            named = operation["operationId"], response.text
            assert str(response.status_code) in operation["responses"], named
            if response.status_code != 200:
                assert response.headers["content-type"] == "application/problem+json"


def test_revoked_is_refused(site: ApiSite) -> None:
    token = site.command("token", "create", "lost", "--user", "anna")
    fields = {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{site.port}/api/v1/classes"
    assert httpx.get(url, headers=fields).status_code == 200
    site.command("token", "revoke", "lost")
    assert httpx.get(url, headers=fields).status_code == 401


def test_a_link_leads_to_the_page(site: ApiSite) -> None:
    link = site.command("login-link", "--user", "anna")
    assert link.startswith(f"http://127.0.0.1:{site.port}/login?link=")
    with httpx.Client(
        base_url=link.partition("/login")[0], headers={"Sec-Fetch-Site": "same-origin"}
    ) as browser:
        assert browser.get("/history").status_code == 401
        assert browser.get(link).status_code == 200
        assert (
            browser.post(
                "/login", data={"link": link.partition("link=")[2], "csrf": ""}
            ).status_code
            == 303
        )
        assert browser.get("/history").status_code == 200
        site.command("login-link", "--user", "anna", "--revoke")
        assert browser.get("/history").status_code == 401


def test_status_names_it(site: ApiSite) -> None:
    assert f"page and API on http://127.0.0.1:{site.port}" in site.command("status")


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


def open_files(pid: int) -> Iterator[str]:
    """The files that a process has open now."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # not any more
            yield str(path.readlink())


def test_uploads_are_spooled_where_messages_are(another: tuple[ApiSite, Daemon]) -> None:
    site, running = another
    with socket.create_connection(("127.0.0.1", site.port), 10) as browser:
        fields = (
            f"Authorization: {site.client('--operator').headers['Authorization']}\r\n"
            "Content-Length: 9999999\r\n"
        )
        browser.sendall(
            (
                "POST /teach HTTP/1.1\r\nHost: localhost\r\n"
                f"{fields}Content-Type: multipart/form-data; boundary=x\r\n\r\n"
            ).encode()
        )
        browser.sendall(
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            + b"x" * 3_000_000
        )
        (pid,) = serving(running)
        eventually(
            lambda: [file for file in open_files(pid) if file.startswith(f"{site.state}/spool/")],
            "it is there",
        )


def test_mail_needs_none_of_it_and_it_comes_back(another: tuple[ApiSite, Daemon]) -> None:
    site, running = another
    begun, ended = map(running.log().count, ("page and API on", "the web process has ended"))
    carla = site.client("--user", "carla")
    for number, how in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
        (pid,) = serving(running)
        os.kill(pid, how)
        site.send(daemon.unseen("ham", 1)[0], "carla@example.net")
        if how == signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)
        running.lines("page and API on", begun + number)
    assert passed(carla, 2)  # the token is good for all of them
    running.lines("the web process has ended", ended + 2)


def test_a_reload_takes_it_away_and_brings_it_back(another: tuple[ApiSite, Daemon]) -> None:
    site, running = another
    olga, web = site.client("--operator"), {"listen": f"127.0.0.1:{site.port}"}
    assert olga.get("/classes").status_code == 200
    begun = running.log().count("page and API on")
    site.configure(None, listener=HOLDING)
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: not serving(running), "it is gone")
    with pytest.raises(httpx.ConnectError):
        olga.get("/classes")
    assert "page and API" not in site.command("status")
    for number, (limits, status) in enumerate((({"message_size": "1000B"}, 413), ({}, 200)), 1):
        site.configure(web | {"limits": limits}, listener=HOLDING)
        running.process.send_signal(signal.SIGHUP)
        running.lines("page and API on", begun + number)
        eventually(lambda: len(serving(running)) == 1, "that of before is gone")
        assert olga.get("/classes").status_code == 200
        assert olga.post("/judge", content=b"x" * 1001, headers=MESSAGE).status_code == status


def test_mail_is_judged_before_the_page_starts(tmp_path: Path) -> None:
    """What the first client waits for has the processor to itself."""
    site = ApiSite(daemon.taught(tmp_path / "state", messages=10))
    with site.running() as running:
        (worker,) = children(running.process.pid, "spamguard.daemon.worker")
        (scorer,) = children(worker, "spamguard.proxy.scorer")
        (page,) = children(running.process.pid, "spamguard.daemon.web")
        assert started_at(worker) <= started_at(scorer) < started_at(page)


def test_a_port_in_use_is_logged_and_mail_flows(tmp_path: Path) -> None:
    site = ApiSite(daemon.taught(tmp_path / "state"))
    with socket.create_server(("127.0.0.1", site.port)), site.running(served=False) as running:
        running.lines("page and API cannot be served")
        site.send(daemon.unseen("ham", 1)[0], "anna@example.net")
        eventually(lambda: "nobody serves them" in site.command("status"), "status tells it")


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
        response = olga.get("/classes")
        assert response.status_code == 200
        assert response.headers["strict-transport-security"]
        assert site.command("login-link", "--operator").startswith(url)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{site.port}/")
        link = site.command("login-link", "--operator").partition("link=")[2]
        entered = olga.post(f"{url}/login", data={"link": link, "csrf": ""})
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
