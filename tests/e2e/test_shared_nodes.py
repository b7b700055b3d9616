"""Three daemons that share one log, while networks, nodes and the server fail: nothing is lost,
nothing is doubled, and all of them end with the same tables and verdicts, to the last bit.

SPAMGUARD_CHAOS_LESSONS says how many lessons there are, and with them how much fails. The full size
is 10,000, which takes four minutes on two cores: 108 faults of networks, 20 nodes and 5 times the
server killed; all logs were equal 3.1 s after the last lesson, 500 verdicts to the last bit.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spamguard.config.options import SharedSettings
from tests.e2e import daemon
from tests.e2e.shared_chaos import (
    FINGERPRINT,
    LABELS,
    Chaos,
    ChaosNode,
    Lesson,
    Teachers,
    check_log,
    check_tables,
    labels_in_force,
    lessons_mail,
    wait_for_equal_logs,
    wait_for_equal_tables,
    wait_for_lessons,
)
from tests.support.partition import partition
from tests.support.postgres import (
    TestDatabase,
    needs_postgres,
    running_server,
    running_standby,
)
from tests.support.waiting import eventually

pytestmark = needs_postgres
LESSONS = int(os.environ.get("SPAMGUARD_CHAOS_LESSONS", "180"))
SEED = int(os.environ.get("SPAMGUARD_CHAOS_SEED", "1"))


def welcome(database: TestDatabase) -> None:
    """Make the database that of the nodes."""
    statement = "UPDATE spamguard.cluster SET fingerprint = %s, bits = %s"
    database.query(statement, FINGERPRINT, daemon.BITS)


def last(database: TestDatabase) -> int:
    """The last position of its log."""
    return int(database.query("SELECT last FROM spamguard.log")[0][0])


@contextmanager
def nodes_of(
    root: Path, database: TestDatabase, settings: SharedSettings | None = None, count: int = 3
) -> Iterator[list[ChaosNode]]:
    """Nodes that are not started yet; the first one was taught before it joined.

    settings: how they connect; None: behind a proxy each.
    """
    welcome(database)
    with ExitStack() as stack:
        nodes = []
        for number in range(count):
            proxy = stack.enter_context(partition(database.server.port))
            own = settings or database.settings(proxy.port)
            node = ChaosNode(root, f"mx{number}", own, proxy)
            node.create(daemon.MESSAGES if number == 0 else 0)
            nodes.append(node)
        try:
            yield nodes
        finally:
            for node in nodes:
                if node.process is not None and node.process.poll() is None:
                    node.process.kill()
                    node.process.wait()


def unseen_mail() -> list[bytes]:
    """Mail that nobody has taught; 500 messages in the full size."""
    count = max(20, LESSONS // 40)
    return daemon.unseen("spam", count, seed=9) + daemon.unseen("ham", count, seed=9)


def start_all(nodes: Sequence[ChaosNode]) -> None:
    """Start all nodes, and wait until they take lessons."""
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait_until_ready()


def test_whatever_fails_all_nodes_learn_the_same(tmp_path: Path) -> None:
    with (
        running_server() as server,
        server.database() as database,
        nodes_of(tmp_path, database) as nodes,
    ):
        before = nodes[0].count_lessons()
        teachers = Teachers(nodes, LESSONS, SEED)
        start_all(nodes)
        for node in nodes:
            node.wait_until_watched()
        chaos = Chaos(nodes, server, SEED)
        teachers.start()
        chaos.cause(
            partitions=8 + LESSONS // 100,
            kills=3 + LESSONS // 580,
            crashes=1 + LESSONS // 2500,
            progress=teachers.progress,
        )
        chaos.heal()
        teachers.join()
        for node in nodes:
            node.wait_until_ready()
        begin = time.monotonic()
        wait_for_lessons(nodes, teachers.taught)
        wait_for_equal_logs(nodes, database)
        seconds = time.monotonic() - begin
        print(
            f"{len(teachers.taught)} lessons; {Counter(chaos.faults)}; equal {seconds:.1f} s later"
        )
        wait_for_equal_tables(nodes)
        messages = unseen_mail()
        answers = [[node.judge(raw) for raw in messages] for node in nodes]
        assert answers[1:] == answers[:1] * 2
        for node in nodes:
            node.stop()
        check_log(nodes, database, teachers.taught)
        lessons = before + Counter(teachers.taught.values())
        check_tables(nodes, messages, lessons + labels_in_force(nodes[0], teachers.contested))
        for node in nodes:
            assert "Traceback" not in node.log()


def taught_at_once(nodes: Sequence[ChaosNode], count: int) -> dict[Lesson, str]:
    """So many lessons, shared by the nodes, each of which imports its part."""
    lessons = [(LABELS[at % 2], raw) for at, raw in enumerate(lessons_mail(count, SEED))]
    with ThreadPoolExecutor(len(nodes)) as pool:
        parts = [lessons[at :: len(nodes)] for at in range(len(nodes))]
        list(pool.map(ChaosNode.teach_all, nodes, parts))
    return {(raw, ""): label for label, raw in lessons}


def check_all(
    nodes: Sequence[ChaosNode], database: TestDatabase, taught: dict[Lesson, str]
) -> None:
    """Wait until all is equal, end the daemons, and look at everything."""
    wait_for_equal_tables(nodes)
    for node in nodes:
        node.stop()
    check_log(nodes, database, taught)
    check_tables(nodes, unseen_mail(), nodes[0].count_lessons())


@pytest.mark.nightly
def test_a_standby_that_lacks_the_end_of_the_log_gets_it_from_the_nodes(tmp_path: Path) -> None:
    lost = max(240, LESSONS // 10)
    with (
        running_server() as primary,
        primary.database() as database,
        partition(primary.port) as replication,
        running_standby(primary, replication.port) as standby,
    ):
        settings = database.settings(primary.port, standby.port)
        with nodes_of(tmp_path, database, settings) as nodes:
            start_all(nodes)
            wait_for_equal_logs(nodes, database)
            copy = TestDatabase(standby, database.name)
            eventually(lambda: last(copy) == last(database), "the standby has everything")
            replication.swallow()
            taught = taught_at_once(nodes, lost)
            wait_for_equal_logs(nodes, database)
            assert last(database) - last(copy) >= lost
            primary.stop(signal.SIGKILL)
            copy.query("SELECT pg_promote()")
            seconds = wait_for_equal_logs(nodes, copy)
            assert last(copy) >= daemon.MESSAGES + lost
            print(f"{lost} positions were lost, and there again after {seconds:.1f} s")
            taught |= {(raw, ""): "spam" for raw in lessons_mail(1, SEED + 1)}
            assert nodes[1].teach_by_api(lessons_mail(1, SEED + 1)[0], "spam")
            wait_for_lessons(nodes, taught)
            wait_for_equal_logs(nodes, copy)
            check_all(nodes, copy, taught)


def test_an_empty_database_is_filled_by_the_nodes(tmp_path: Path) -> None:
    with (
        running_server() as server,
        server.database() as database,
        nodes_of(tmp_path, database) as nodes,
    ):
        start_all(nodes)
        taught = taught_at_once(nodes, LESSONS)
        wait_for_equal_logs(nodes, database)
        before = last(database)
        assert before >= daemon.MESSAGES + LESSONS
        for node in nodes:
            assert node.proxy is not None
            node.proxy.refuse()
        database.recreate()
        welcome(database)
        begun = time.monotonic()
        for node in nodes:
            assert node.proxy is not None
            node.proxy.pass_on()
        eventually(lambda: last(database) == before, "the log is as long as before")
        wait_for_equal_logs(nodes, database)
        print(f"{before} events: refilled and equal {time.monotonic() - begun:.1f} s later")
        wait_for_lessons(nodes, taught)
        check_all(nodes, database, taught)
