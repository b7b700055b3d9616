"""Real daemons that share a log: each settles for itself, and the same comes out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.engine.snapshot import SNAPSHOT_KEY, SnapshotStamp
from tests.e2e.daemon import ENVIRONMENT, SETTLE, unseen
from tests.e2e.shared_nodes import SharedNode, SharedSite, shared_site
from tests.support.postgres import (
    TestDatabase,
    needs_postgres,
    postgres_server,
    shared_database,
)
from tests.support.waiting import COMMAND_SECONDS, eventually

pytestmark = needs_postgres
__all__ = ["postgres_server", "shared_database"]
MAIL = unseen("spam", 20)
DIE = """
import os, sys
from pathlib import Path
from spamguard.config.options import Settings
from spamguard.daemon.settle import settle
from spamguard.engine import store
store.build_tables = lambda *values: os.kill(os.getpid(), 9)
settle(Settings(Path(sys.argv[1]), ()))
"""


@pytest.fixture
def site(tmp_path: Path, shared_database: TestDatabase) -> Iterator[SharedSite]:
    with shared_site(tmp_path, shared_database) as opened:
        yield opened


def start_settling(node: SharedNode, line: list[str] = SETTLE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*line, str(node.state)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
    )


def settle(*nodes: SharedNode) -> list[bool]:
    """Start the process that settles on some nodes at once; of each, whether it settled."""
    processes = [start_settling(node) for node in nodes]
    said = [process.communicate(timeout=COMMAND_SECONDS)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(nodes), said
    return ["settled in" in text for text in said]


def lineage(node: SharedNode) -> str:
    """The name of the settled tables that a node judges by."""
    line = node.teacher.ledger.get_meta(SNAPSHOT_KEY)
    return SnapshotStamp.parse(line).lineage if line else ""


def test_a_node_that_joins_is_ready_when_it_has_the_log_and_has_settled(site):
    first = site.join(100)
    eventually(lambda: not first.status().joining, "it has settled alone")
    late = site.join(0)
    status, text = late.ask("/readyz")
    assert status == 200 or "this node joins it" in text
    eventually(lambda: late.ask("/readyz")[0] == 200, "it is ready")
    assert lineage(late) == lineage(first) != ""
    assert late.score(MAIL[0]) == first.score(MAIL[0])


def test_when_the_process_that_settles_is_killed_it_begins_again(site):
    first, second = site.join(100), site.join(100)
    site.converge()
    before = lineage(first)
    for raw in MAIL:
        first.teach(raw)

    def dies() -> bool:
        killed = start_settling(first, [sys.executable, "-c", DIE])
        killed.communicate(timeout=COMMAND_SECONDS)
        return killed.returncode == -9

    eventually(dies, "it settles, as soon as it has the whole log, and is killed")
    assert lineage(first) == before
    eventually(lambda: settle(first, second) == [False, False], "both have settled")
    assert lineage(first) == lineage(second) != before
    site.converge()
    _, metrics = first.ask("/metrics")
    assert "spamguard_shared_alarms 0.0" in metrics
