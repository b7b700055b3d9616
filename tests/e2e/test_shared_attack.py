"""Somebody who has the password of the database, or writes into its tables, and not the key."""

from __future__ import annotations

import secrets
import time
from hashlib import blake2b

import httpx

from spamguard.ledger.events import encode_event
from spamguard.ledger.votes import add_version, make_class_vote
from tests.e2e.test_shared_page import SPAM, PageSite, site
from tests.support.postgres import TestDatabase, needs_postgres
from tests.support.waiting import eventually

pytestmark = needs_postgres
__all__ = ["site"]
MAC = b"m" * 16


def make_token(database: TestDatabase) -> str:
    """An operator's token, written into the table; the stranger knows how nodes keep it."""
    secret, identity, now = secrets.token_urlsafe(32), "0" * 16, int(time.time())
    digest = blake2b(secret.encode(), digest_size=32, person=b"access").digest()
    database.query(
        "INSERT INTO spamguard.credentials VALUES "
        "(%s, 'token', %s, 'evil', '', true, %s, 0, %s, 0, spamguard.next_change(), %s)",
        identity, digest, now, now, MAC,
    )  # fmt: skip
    return f"{identity}.{secret}"


def write_rows(database: TestDatabase) -> None:
    """A vote that leaves no clock to others, and a node that asks for questions."""
    vote = add_version(make_class_vote("ham", False, int(time.time())), 2**62 - 1, "evil")
    event = encode_event(vote)
    append = "SELECT * FROM spamguard.append({})".format(", ".join(["ARRAY[%s]"] * 7))
    database.query("UPDATE spamguard.log SET clock = %s", 2**62 - 2)
    database.query(append, *event, MAC)
    columns = "extractor, learner, position, chain, waiting, settings"
    database.query(
        "INSERT INTO spamguard.nodes SELECT 'evil', 'mx9', 'https://evil.example', program, "
        f"{columns}, %s, seen, settled, 'other' FROM spamguard.nodes LIMIT 1",
        MAC,
    )


def test_rows_without_our_mac_are_ignored_counted_and_stop_nobody(site: PageSite) -> None:
    nodes = a, b = site.join(2)
    database = site.site.database
    for node in nodes:
        node.node.settle()
    eventually(lambda: a.node.lineage() == b.node.lineage() != "", "both have the settled tables")
    before = [node.node.score(SPAM[0]) for node in nodes]
    token = make_token(database)
    write_rows(database)
    for node in nodes:
        eventually(lambda node=node: node.node.status().forged >= 3, "all three are counted")
        answer = httpx.get(f"{node.url}/api/v1/model", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401
        status = node.node.status()
        assert "evil" not in {row.node for row in status.nodes}
        (alarm,) = status.alarms
        assert "no node of this key" in alarm
        _, metrics = node.node.ask("/metrics")
        assert "spamguard_shared_forged_rows 3.0" in metrics
    assert [node.node.score(SPAM[0]) for node in nodes] == before
    a.node.teach(SPAM[0], "ham")
    b.node.teach(SPAM[1], "ham")
    site.site.converge()
    eventually(lambda: a.node.events() == b.node.events(), "their logs are equal")
    eventually(lambda: a.node.score(SPAM[0]) < before[0], "it is learnt")
    eventually(lambda: b.node.score(SPAM[0]) == a.node.score(SPAM[0]), "both judge alike")
