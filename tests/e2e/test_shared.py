"""Several real daemons that share one log in a real PostgreSQL, which is sometimes away."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.e2e.daemon import COMMAND, ENVIRONMENT, unseen
from tests.e2e.shared_nodes import SharedNode, SharedSite, shared_site
from tests.support.postgres import (
    TestDatabase,
    needs_postgres,
)
from tests.support.processes import descendants
from tests.support.waiting import eventually

pytestmark = needs_postgres
MAIL = unseen("spam", 40)


@pytest.fixture
def site(tmp_path: Path, shared_database: TestDatabase) -> Iterator[SharedSite]:
    with shared_site(tmp_path, shared_database) as opened:
        yield opened


def scores(node: SharedNode) -> list[float]:
    return [node.score(raw) for raw in MAIL]


def seconds_to_force(taught: SharedNode, judging: SharedNode, raw: bytes, before: float) -> float:
    """From the beginning of a lesson at one node to its effect on a verdict of the other."""
    begin = time.monotonic()
    taught.teach(raw, "ham")
    while judging.score(raw) == before:
        assert time.monotonic() < begin + 60
    return time.monotonic() - begin


def test_a_lesson_on_one_node_counts_on_the_other_at_once(site):
    a, b = site.join(), site.join()
    site.converge()
    times = sorted(seconds_to_force(a, b, raw, b.score(raw)) for raw in MAIL[:20])
    assert times[10] < 1
    site.converge()
    assert a.events() == b.events()
    a.settle()
    b.settle()
    eventually(lambda: scores(a) == scores(b), "both judge alike")
    _, metrics = a.ask("/metrics")
    assert "spamguard_shared_pending 0.0" in metrics
    assert "spamguard_shared_alarms 0.0" in metrics
    eventually(lambda: len(a.status().nodes) == 2, "the nodes know of each other")


def test_a_node_that_joins_is_ready_when_it_has_the_log_and_has_settled(site):
    first = site.join(100)
    eventually(lambda: not first.status().joining, "it has settled alone")
    late = site.join(0)
    status, text = late.ask("/readyz")
    assert status == 200 or "this node joins it" in text
    eventually(lambda: late.ask("/readyz")[0] == 200, "it is ready")
    assert late.lineage() == first.lineage() != ""
    assert late.score(MAIL[0]) == first.score(MAIL[0])


def test_while_the_database_is_away_mail_and_lessons_go_on(site):
    a, b = site.join(), site.join()
    site.converge()
    before, last = a.score(MAIL[0]), a.status().last
    a.proxy.swallow()
    eventually(lambda: a.status().away_since, "it notices")
    for raw in MAIL[:5]:
        a.teach(raw, "ham")
    assert a.score(MAIL[0]) < before  # in force here
    assert b.status().last == last
    eventually(lambda: a.status().waiting == 5, "its status says what waits")
    eventually(lambda: "lessons waiting here: 5" in a.ask("/readyz")[1], "readiness tells of it")
    assert a.ask("/readyz")[0] == 200
    assert "spamguard_shared_pending 5.0" in a.ask("/metrics")[1]
    a.proxy.pass_on()
    site.converge()
    assert a.events() == b.events()
    assert len(a.events()) == last + 5


def command(*words: str) -> tuple[int, str]:
    """Exit status of a command, and what it says."""
    done = subprocess.run(
        [*COMMAND, *words], env=ENVIRONMENT, capture_output=True, check=False, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_a_node_that_does_not_come_back_is_told_and_forgotten(site):
    a, b, gone = site.join(), site.join(), site.join()
    site.converge()
    eventually(lambda: len(a.status().nodes) == 3, "the nodes know of each other")
    forget = ["--state", str(a.state), "shared", "forget"]
    assert command(*forget, "node1") == (2, ANY)
    gone.running.stop()
    site.database.query(
        "UPDATE spamguard.nodes SET seen = seen - interval '1 hour' WHERE name = 'node2'"
    )
    eventually(lambda: a.status().absent == b.status().absent == ("node2",), "it is missed")
    assert "spamguard_shared_absent_nodes 1.0" in a.ask("/metrics")[1]
    assert "spamguard_shared_alarms 1.0" in a.ask("/metrics")[1]
    assert "node2 was not seen" in command(*forget[:-1], "status")[1]
    assert command(*forget, "nobody") == (2, ANY)
    assert command(*forget, "node2") == (0, ANY)
    eventually(lambda: not a.status().alarms and len(a.status().nodes) == 2, "it is forgotten")
    eventually(lambda: not b.status().alarms, "on the other node too")


def test_two_machines_with_one_id_are_told(site):
    a = site.join()
    a.teach(MAIL[0], "ham")
    eventually(lambda: not a.status().waiting and not a.status().alarms, "all is well")
    sockets = shutil.ignore_patterns("*.sock")
    copy = shutil.copytree(a.state, site.root / "copy", ignore=sockets)
    b = site.start(copy)
    for node in (a, b):
        eventually(lambda node=node: "127.0.0.1 has the id of" in " ".join(node.status().alarms))
    b.running.stop()
    state = ["--state", str(copy), "shared"]
    assert command(*state, "leave")[0] == 0
    dsn = f"{site.database.settings().database} sslmode=disable"
    secrets = ["--password-file", str(site.database.server.password_file)]
    assert command(*state, "join", dsn, *secrets)[0] == 0
    b = site.start(copy)
    site.nodes = [a, b]
    site.converge()
    eventually(lambda: a.status().node != b.status().node, "they have two ids")
    eventually(lambda: not a.status().alarms and not b.status().alarms, "all is well again")
    eventually(lambda: a.events() == b.events(), "their logs are equal")


@contextmanager
def traced(processes: list[int], calls: Path) -> Iterator[None]:
    """Write down all connections that these processes, and those that they start, open."""
    line = ["strace", "-f", "-qq", "-e", "trace=connect", "-o", str(calls)]
    for pid in processes:
        line += ["-p", str(pid)]
    tracer = subprocess.Popen(line)
    try:
        for pid in processes:
            status = Path(f"/proc/{pid}/status")
            eventually(lambda status=status: "TracerPid:\t0\n" not in status.read_text(), "traced")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()


def test_only_the_courier_connects_to_the_database(site, tmp_path):
    a, calls = site.join(), tmp_path / "calls"
    with traced(descendants(a.running.process.pid), calls):
        a.proxy.refuse()
        eventually(lambda: a.status().away_since, "it notices")
        for raw in MAIL[:5]:
            a.score(raw)
            a.teach(raw, "ham")
            a.score(raw)
        a.proxy.pass_on()
        eventually(lambda: not a.status().away_since and not a.status().waiting, "it is back")
        for raw in MAIL[5:10]:
            a.teach(raw, "ham")
            a.score(raw)
        courier = {int(task.name) for task in Path(f"/proc/{a.courier_pid()}/task").iterdir()}
    lines = calls.read_text().splitlines()
    connecting = {int(line.split()[0]) for line in lines if f"htons({a.proxy.port})" in line}
    assert connecting
    assert connecting <= courier
