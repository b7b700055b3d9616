"""A standby is promoted while the old primary still takes writes: both nodes say so, nobody goes
back to the old one, and nothing is lost.
"""

from __future__ import annotations

import signal
from pathlib import Path

from tests.e2e.daemon import unseen
from tests.e2e.shared_nodes import SharedNode, shared_site
from tests.support.postgres import (
    TestDatabase,
    needs_postgres,
    running_server,
    running_standby,
)
from tests.support.waiting import eventually

pytestmark = needs_postgres
MAIL = unseen("spam", 4)


def last(database: TestDatabase) -> int:
    return int(database.query("SELECT last FROM spamguard.log")[0][0])


def nodes(database: TestDatabase) -> int:
    return int(database.query("SELECT count(*) FROM spamguard.nodes")[0][0])


def says(node: SharedNode, text: str) -> bool:
    """Whether monitors hear this from a node, as an alarm."""
    return text in node.ask("/readyz")[1] and text in " ".join(node.status().alarms)


def test_two_primaries_are_noticed_and_the_old_one_is_left(tmp_path: Path) -> None:
    with (
        running_server() as primary,
        primary.database() as old,
        running_standby(primary, primary.port) as standby,
        shared_site(tmp_path, old, standby) as site,
    ):
        new = TestDatabase(standby, old.name)
        a, b = site.join(), site.join()
        site.converge()
        eventually(lambda: last(new) == last(old) and nodes(new) == 2, "the standby has all")
        before = last(old)

        b.proxy.refuse()
        eventually(lambda: b.status().away_since, "b has lost the primary")
        new.query("SELECT pg_promote()")
        a.teach(MAIL[0], "ham")
        b.teach(MAIL[1], "ham")
        eventually(lambda: last(old) == last(new) == before + 1, "each writes to another one")
        hour_ago = "UPDATE spamguard.nodes SET seen = seen - interval '1 hour' WHERE node = %s"
        old.query(hour_ago, b.status().node)  # as if that lasted
        new.query(hour_ago, a.status().node)
        eventually(lambda: says(a, "node1 was not seen"), "a misses b")
        eventually(lambda: says(b, "node0 was not seen"), "b misses a")
        assert "spamguard_shared_absent_nodes 1.0" in a.ask("/metrics")[1]
        assert a.ask("/readyz")[0] == 200

        b.proxy.pass_on()  # and the old primary is the first in its list
        b.proxies[1].cut()
        eventually(lambda: says(b, "an old primary: stop it"), "b refuses the old primary")
        b.teach(MAIL[2], "ham")
        eventually(lambda: last(new) == before + 2, "b writes to the new one")
        assert last(old) == before + 1

        primary.stop(signal.SIGINT)
        eventually(lambda: last(new) == before + 3, "what only the old one had is put back")
        site.converge()
        primary.start()
        a.proxies[1].cut()
        eventually(lambda: says(a, "an old primary: stop it"), "a refuses it too")
        a.teach(MAIL[3], "ham")
        eventually(lambda: last(new) == before + 4, "a writes to the new one")
        site.converge()
        eventually(lambda: a.events() == b.events(), "their logs are equal")
        assert len(a.events()) == before + 4
        assert last(old) == before + 1
