"""One page for all nodes: real servers with histories and quarantines of their own."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spamguard.errors import UnavailableError
from spamguard.shared import peers
from spamguard.shared.peers import PEER_FIELD, PeerNode
from spamguard.shared.status import NodeStatus, SharedStatus
from spamguard.web.auth import CREDENTIALS_FILE, CredentialKind
from spamguard.web.models import HeldMessage, QuarantinePage
from spamguard.web.nodes import known_nodes, merge_pages
from tests.support.waiting import PATIENCE
from tests.unit.web import office
from tests.unit.web.cluster import Cluster, cluster, silent, states
from tests.unit.web.office import ANNA, OPERATOR, PASSED, name

API = "/api/v1"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, made_office: Path) -> Iterator[Cluster]:
    made = states(tmp_path_factory.mktemp("three"), made_office, 3)
    with cluster([office.settings(state) for state in made]) as running:
        yield running


@pytest.fixture
def two(tmp_path: Path, made_office: Path) -> Iterator[Cluster]:
    """Two nodes that deliver released mail to a Maildir."""
    made = states(tmp_path, made_office, 2)
    hops = (f"maildir:{tmp_path / 'Maildir'}",)
    with cluster([office.settings(state, hops=hops) for state in made]) as running:
        yield running


def pages(client: httpx.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    """All rows, page by page."""
    rows: list[dict[str, Any]] = []
    while True:
        answer = client.get(f"{API}/{path}", params=query).json()
        assert answer["absent"] == []
        rows += answer["judgements" if path == "history" else "messages"]
        if not answer["following"]:
            return rows
        query["before"] = answer["following"]


# ---- history


def test_search_of_all_nodes(three: Cluster) -> None:
    client = three.nodes[1].client(OPERATOR)
    rows = pages(client, "history", q='subject:"Subject 2"', limit=2)
    wanted = [at for at in range(len(PASSED)) if f"Subject {at}".startswith("Subject 2")]
    assert [row["id"] for row in rows] == [name(at) for at in wanted]
    query = {"q": 'from:"sender29" subject:"Subject 29"'}
    page = three.nodes[1].browser(OPERATOR).get("/history", params=query).text
    assert f'id="m-{name(29)}"' in page


# ---- teaching


def test_nobody_teaches_mail_of_others_on_another_node(two: Cluster) -> None:
    before = office.votes(two.nodes[0].state)
    answer = (
        two.nodes[0].client(ANNA).post(f"{API}/history/{name(5)}/learn", params={"class": "spam"})
    )
    assert answer.status_code == 404
    assert office.votes(two.nodes[0].state) == before


# ---- nodes that do not answer


@pytest.mark.slow
def test_a_node_that_is_silent_is_named(three: Cluster) -> None:
    client, browser = three.nodes[0].client(OPERATOR), three.nodes[0].browser(OPERATOR)
    with silent() as (node, closed):
        three.peers.append(node)
        try:
            answer = client.get(f"{API}/history", params={"limit": 500}).json()
            assert answer["absent"] == ["mx-silent"]
            assert [row["id"] for row in answer["judgements"]] == [
                name(at) for at in range(len(PASSED))
            ]
            assert closed.wait(PATIENCE)  # the connection is not kept
            for path in ("/history", "/quarantine", "/queue"):
                assert "<bdi>mx-silent</bdi> did not answer" in browser.get(path).text
            assert client.get(f"{API}/quarantine").json()["absent"] == ["mx-silent"]
            # What a node has is shown at once; what no node has may be on the silent one.
            assert client.get(f"{API}/history/{name(1)}").status_code == 200
            missing = client.get(f"{API}/history/{name(99)}")
            assert missing.status_code == 503
            assert "mx-silent did not answer" in missing.json()["detail"]
        finally:
            three.peers.remove(node)
    assert "did not answer" not in browser.get("/history").text


def check_named(three: Cluster, url: str) -> None:
    """A node at this address is named, and the others answer."""
    three.peers.append(PeerNode("gone", "mx-gone", url))
    try:
        answer = three.nodes[0].client(OPERATOR).get(f"{API}/history").json()
    finally:
        three.peers.pop()
    assert answer["absent"] == ["mx-gone"]
    assert answer["judgements"]


@pytest.mark.parametrize("url", ["http://192.0.2.1:8080", "file:///etc/passwd", "x:[", "http://"])
def test_a_node_without_a_usable_address(three: Cluster, url: str) -> None:
    check_named(three, url)


# ---- login links


def test_a_link_works_once_on_all_nodes(tmp_path: Path, made_office: Path) -> None:
    """Both have it; the courier of either says who was first, or that nobody can tell."""
    burnt: list[str] = []
    away = True

    def burn(link: str) -> bool:
        if away:
            raise UnavailableError("the database is away")
        burnt.append(link)
        return len(burnt) == 1

    made = states(tmp_path, made_office, 2)
    with cluster([office.settings(state) for state in made], burn) as two:
        first, second = two.nodes
        link = first.secret(CredentialKind.LINK, ANNA)
        shutil.copy(first.state / CREDENTIALS_FILE, second.state)
        client = first.client(**{"Sec-Fetch-Site": "same-origin"})
        other = second.client(**{"Sec-Fetch-Site": "same-origin"})
        form = {"link": link}
        for answer in (client.post("/login", data=form), other.post("/login", data=form)):
            assert answer.status_code == 410
            assert "try again" in answer.text
            assert "set-cookie" not in answer.headers
        wrong = link[:-1] + ("A" if link[-1] != "A" else "B")
        assert client.post("/login", data={"link": wrong}).status_code == 401
        away = False
        assert client.post("/login", data=form).status_code == 303
        assert client.get("/history").status_code == 200
        assert other.post("/login", data=form).status_code == 401
        again = first.client(**{"Sec-Fetch-Site": "same-origin"})
        assert again.post("/login", data=form).status_code == 401
        assert burnt == [link.partition(".")[0]] * 2


# ---- which nodes are asked


def test_nodes_without_page_and_nodes_that_are_gone_are_not_asked() -> None:
    now = 1_790_000_000.0
    nodes = [
        NodeStatus(node, f"mx-{node}", url, "1.0.0", 7, 0, seen, "")
        for node, url, seen in (
            ("a", "https://a", now),
            ("b", "", now),
            ("c", "https://c", now - 86_399),
            ("d", "https://d", now - 86_401),
        )
    ]
    asked = known_nodes(SharedStatus(nodes=tuple(nodes)))
    assert asked == [PeerNode("a", "mx-a", "https://a"), PeerNode("c", "mx-c", "https://c")]
    assert known_nodes(SharedStatus()) == []


# ---- merging


def held(at: int) -> HeldMessage:
    return HeldMessage(name(at), 0.0, "", "", (), (), "", 1, "spam", False, None)


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=4), st.integers(1, 8), st.data())
def test_pages_of_nodes_become_one_list(
    nodes: list[set[int]], limit: int, data: st.DataObject
) -> None:
    """Each node stops where it likes, and nothing is lost or there twice."""
    seen: list[str] = []
    before = "~"
    for _ in range(200):
        answers = []
        for ids in nodes:
            rows = [held(at) for at in sorted(ids) if name(at) < before]
            cut = data.draw(st.integers(1, limit))
            end = rows[cut - 1].id if len(rows) > cut else ""
            answers.append(QuarantinePage(rows[:cut], end))
        found, before = merge_pages(answers, limit)
        assert len(found) <= limit
        seen += [row.id for row in found]
        if not before:
            break
    assert seen == [name(at) for at in sorted(set(chain(*nodes)))]


# ---- quarantine


def test_held_mail_of_another_node(two: Cluster, tmp_path: Path) -> None:
    here, there = (node.client(OPERATOR) for node in two.nodes)
    for number in range(6):
        state = two.nodes[number % 2].state
        office.hold(state, number, PASSED[number][1], f"{'ben' if number == 3 else 'anna'}@x.org")
    rows = pages(here, "quarantine", limit=2)
    assert [row["id"] for row in rows] == [name(at) for at in range(6)]
    annas = pages(two.nodes[0].client(ANNA), "quarantine", limit=2)
    assert [row["id"] for row in annas] == [name(at) for at in range(6) if at != 3]
    path = f"{API}/quarantine/{name(1)}"
    assert here.get(path).json() == there.get(path).json()
    browser = two.nodes[0].browser(OPERATOR)
    page = browser.get(f"/quarantine/{name(1)}").text
    assert "There is no text" not in page
    assert '<h2 id="head">Header</h2>' in page
    assert two.nodes[0].client(ANNA).post(f"{API}/quarantine/{name(3)}/release").status_code == 404
    released = two.nodes[0].client(ANNA).post(f"{path}/release").json()
    assert (released["released"], released["taught"]) == (True, True)
    (delivered,) = (tmp_path / "Maildir").glob("new/*")
    assert PASSED[1][1] in delivered.read_bytes()
    vote = {(office.digest(PASSED[1][1]), "anna"): "ham"}
    assert vote.items() <= office.votes(two.nodes[1].state).items()
    assert not vote.items() <= office.votes(two.nodes[0].state).items()
    assert there.get(path).json()["released"]
    assert two.nodes[0].client(ANNA).delete(path).status_code == 403
    assert here.delete(path).json() == {"id": name(1), "deleted": True}
    assert there.get(path).status_code == here.get(path).status_code == 404


# ---- attacks


def signed(
    cluster: Cluster, method: str, path: str, moment: int = 0, node: str = "id0", **query: str
) -> tuple[str, dict[str, str]]:
    """Path and field of a request to the second node as `node` signs it for an operator."""
    query = {"person": "root", "operator": "1", "to": "id1", **query}
    target, moment = f"{path}?{urlencode(query)}", moment or time.time_ns()
    mac = peers.sign(cluster.key, method, target, moment, node)
    return target, {PEER_FIELD: f"{moment} {node} {mac}"}


def test_only_what_a_node_has_signed_is_answered(
    two: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Other path, person, method, key, node, time; a body; nothing at all; a token instead."""
    client, path = two.nodes[1].client(), f"/peer/history/{name(1)}"
    target, field = signed(two, "GET", path)
    assert client.get(target, headers=field).json()["row"]["id"] == name(1)
    moment, node, mac = field[PEER_FIELD].split()
    later, old = int(time.time_ns() + 31e9), int(time.time_ns() - 31e9)
    other = Cluster(two.nodes, two.peers, peers.peer_key(bytes(32)))
    attacks = [
        (target.replace(name(1), name(3)), field),
        (target.replace("person=root", "person=anna"), field),
        (target.replace("operator=1", "operator=0"), field),
        (f"{target}&person=anna", field),
        (target, {PEER_FIELD: f"{int(moment) + 1} {node} {mac}"}),
        (target, {PEER_FIELD: f"{moment} id2 {mac}"}),
        (target, {PEER_FIELD: f"{moment} {node} {mac[:-1]}"}),
        (target, {PEER_FIELD: f"{moment} {node} {'0' * 64}"}),
        (target, {PEER_FIELD: "x" * 4000}),
        (target, {}),
        (target, {"Authorization": two.nodes[1].client(OPERATOR).headers["Authorization"]}),
        signed(other, "GET", path),
        signed(two, "POST", path),
        signed(two, "GET", path, moment=old),
        signed(two, "GET", path, moment=later),
        signed(two, "GET", path, to="id2"),
    ]
    for address, fields in attacks:
        answer = client.get(address, headers=fields)
        assert answer.status_code == 401, (address, fields)
        assert answer.headers["content-type"] == "application/problem+json"
    answer = client.request("GET", target, headers=field, content=b"body")
    assert answer.status_code == 401
    refusals = [line for line in caplog.messages if "in the name of a node is refused" in line]
    assert len(refusals) == 1
    assert client.get(target, headers=field).status_code == 200  # reading twice does no harm


def test_a_request_that_changes_something_counts_once(two: Cluster) -> None:
    state = two.nodes[1].state
    office.hold(state, 1, PASSED[1][1], "anna@x.org")
    client, path = two.nodes[1].client(), f"/peer/quarantine/{name(1)}/release"
    target, field = signed(two, "POST", path)
    assert client.post(target, headers=field).json()["released"]
    assert client.post(target, headers=field).status_code == 401
    target, field = signed(two, "POST", path)
    assert client.post(target, headers=field).json()["recipients"] == []
