"""A process that settles for several real daemons dies, and another one settles."""

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


def published(site: SharedSite) -> list[str]:
    rows = site.database.query("SELECT hash FROM spamguard.snapshots")
    return [name.hex() for (name,) in rows]


def test_when_the_process_that_settles_is_killed_another_node_settles(site):
    first, second = site.join(100), site.join(100)
    site.converge()

    def dies() -> bool:
        killed = start_settling(first, [sys.executable, "-c", DIE])
        killed.communicate(timeout=COMMAND_SECONDS)
        return killed.returncode == -9

    for _ in range(2):
        eventually(dies, "it settles, as soon as it has the whole log, and is killed")
    assert published(site) == []
    assert settle(second) == [True]
    (name,) = published(site)
    eventually(lambda: lineage(first) == name, "the others have the tables")
