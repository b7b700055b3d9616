"""One page for several real daemons that share a log in a real PostgreSQL."""

from __future__ import annotations

import os
import signal
import smtplib
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from spamguard.web.auth import CredentialKind, CredentialStore, Person
from tests.e2e.daemon import unseen
from tests.e2e.ports import free_port, wait_for_port
from tests.e2e.shared_nodes import SharedNode, SharedSite, shared_site
from tests.support.postgres import TestDatabase, needs_postgres
from tests.support.processes import children
from tests.support.waiting import PATIENCE, eventually

pytestmark = needs_postgres
OPERATOR = Person("olga", operator=True)
SPAM = unseen("spam", 6)


@dataclass
class PageNode:
    """A node with a page, a listener that passes mail on, and one that holds spam."""

    node: SharedNode
    page: int
    passing: int
    holding: int
    box: Path
    url: str
    authority: ssl.SSLContext
    clients: list[httpx.Client] = field(default_factory=list)

    def secret(self, kind: CredentialKind, person: Person, name: str = "") -> str:
        """A new token or link, made here as the commands make it."""
        now = int(time.time())
        with closing(CredentialStore.open(self.node.state)) as store:
            return store.create(kind, person, now, name=name, expires=now + 600)

    def client(self, token: str = "") -> httpx.Client:
        """A program with a token, or a browser without."""
        fields = (
            {"Authorization": f"Bearer {token}"} if token else {"Sec-Fetch-Site": "same-origin"}
        )
        client = httpx.Client(
            base_url=self.url, headers=fields, timeout=PATIENCE, verify=self.authority
        )
        self.clients.append(client)
        return client

    def send(self, raw: bytes, to: str = "anna@example.net", *, held: bool = False) -> None:
        port = self.holding if held else self.passing
        with smtplib.SMTP("127.0.0.1", port, timeout=PATIENCE) as client:
            client.sendmail("news@offers.example", [to], raw)

    def web_process(self) -> int:
        (process,) = children(self.node.running.process.pid, "spamguard.daemon.web")
        return process


class PageSite:
    """Nodes that know of one another."""

    def __init__(self, site: SharedSite) -> None:
        self.site = site
        self.nodes: list[PageNode] = []

    def join(self, number: int, *, tls: bool = False) -> list[PageNode]:
        """Start so many nodes. tls: their pages show the certificate of the database's server."""
        server = self.site.database.server
        authority = ssl.create_default_context(cafile=server.authority)
        certificate = {
            "hosts": ["localhost"],
            "tls": {
                "certificate": str(server.data / "server.pem"),
                "key": str(server.data / "server.key"),
            },
        }
        for _ in range(number):
            page, passing, holding = free_port(), free_port(), free_port()
            box = self.site.root / f"Maildir{page}"
            usual = {"position": "standalone", "next_hop": f"maildir:{box}"}
            rules = [{"when": "spam", "action": "quarantine"}]
            listeners = [
                {"listen": f"smtp://127.0.0.1:{passing}", **usual},
                {"listen": f"smtp://127.0.0.1:{holding}", **usual, "rules": rules},
            ]
            web = {"listen": f"127.0.0.1:{page}"} | (certificate if tls else {})
            more = yaml.safe_dump({"listeners": listeners, "web": web})
            url = f"https://localhost:{page}" if tls else f"http://127.0.0.1:{page}"
            node = self.site.join(more=more, url=url)
            wait_for_port(page)
            self.nodes.append(PageNode(node, page, passing, holding, box, url, authority))
        for one in self.nodes:
            eventually(
                lambda one=one: sum(bool(row.url) for row in one.node.status().nodes) == number,
                "each node knows all",
            )
        self.site.converge()
        return self.nodes

    def operators(self) -> list[httpx.Client]:
        """A client of each node with the same token, which was made on the first."""
        token = self.nodes[0].secret(CredentialKind.TOKEN, OPERATOR, "everywhere")
        clients = [node.client(token) for node in self.nodes]
        for client in clients:
            eventually(lambda client=client: client.get("/api/v1/model").is_success, "it is known")
        return clients

    def reaches(self, position: int) -> None:
        """Wait until the log of each node ends there."""
        eventually(
            lambda: {one.node.status().position for one in self.nodes} == {position},
            f"all have {position} events",
        )
        self.site.converge()
        for one in self.nodes:
            one.node.settle()


@pytest.fixture
def site(tmp_path: Path, shared_database: TestDatabase) -> Iterator[PageSite]:
    with shared_site(tmp_path, shared_database) as opened:
        site = PageSite(opened)
        try:
            yield site
        finally:
            for node in site.nodes:
                for client in node.clients:
                    client.close()


def rows(client: httpx.Client, number: int, path: str = "history") -> dict[str, Any]:
    """A page of history or quarantine, once it has so many rows."""
    found: dict[str, Any] = {}

    def are_there() -> bool:
        found.update(client.get(f"/api/v1/{path}").json())
        return len(found["judgements" if path == "history" else "messages"]) == number

    eventually(are_there, f"{number} messages")
    return found


def test_history_lessons_and_held_mail_of_three_machines(site: PageSite) -> None:
    a, b, c = site.join(3, tls=True)
    at_a, at_b, at_c = site.operators()
    for number, node in enumerate((a, b, c)):
        node.send(SPAM[number])
        node.send(SPAM[3 + number], held=True)
    pages = [rows(client, 6) for client in (at_a, at_b, at_c)]
    assert pages[0] == pages[1] == pages[2]
    assert pages[0]["absent"] == []
    held = rows(at_a, 3, "quarantine")["messages"]
    held_ids = [row["id"] for row in pages[0]["judgements"] if row["held"]]
    assert [row["id"] for row in held] == held_ids

    # A message that passed b is taught at a, once, and everybody knows it.
    name = pages[0]["judgements"][3]["id"]
    before = a.node.status().position
    receipt = at_a.post(f"/api/v1/history/{name}/learn", params={"class": "ham"}).json()
    assert receipt["changed"]
    site.reaches(before + 1)
    for client in (at_a, at_b, at_c):
        assert client.get(f"/api/v1/history/{name}").json()["own"] == "ham"

    def explanations() -> list[dict[str, Any]]:
        path = f"/api/v1/history/{name}/why"
        return [client.get(path).json() for client in (at_a, at_b, at_c)]

    why = explanations()
    assert why[0]["then"] == why[1]["then"] == why[2]["then"]
    eventually(lambda: (why := explanations()) == [why[0]] * 3, "all have the same tables")
    assert not at_c.post(f"/api/v1/history/{name}/learn", params={"class": "ham"}).json()["changed"]
    assert at_c.post(f"/api/v1/history/{name}/forget").json()["was"] == "ham"
    site.reaches(before + 2)

    # What c holds is released at a: c delivers and learns it.
    name = held[0]["id"]  # the newest
    released = at_a.post(f"/api/v1/quarantine/{name}/release").json()
    assert (released["released"], released["taught"]) == (True, True)
    assert len(list(c.box.glob("**/new/*"))) == 2
    site.reaches(before + 3)
    assert at_b.delete(f"/api/v1/quarantine/{held[1]['id']}").json()["deleted"]
    assert len(rows(at_c, 2, "quarantine")["messages"]) == 2

    # One machine's page hangs, then the whole machine is gone: both are named, and nothing waits.
    process = c.web_process()
    os.kill(process, signal.SIGSTOP)
    try:
        page = rows(at_a, 4)
        assert page["absent"] == [c.node.state.name]
    finally:
        os.kill(process, signal.SIGCONT)
    assert rows(at_a, 6)["absent"] == []
    assert c.node.running.stop() == 0
    assert len(rows(at_a, 4)["absent"]) == 1
    a.node.running.lines("did not answer: ", 1)
    assert at_a.get("/peer/history").status_code == 401
