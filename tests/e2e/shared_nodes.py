"""Daemons that share one log in a real PostgreSQL, each behind a proxy of its own."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from spamguard import keys
from spamguard.config.options import SharedSettings
from spamguard.config.schema import to_plain
from spamguard.engine.filter import Filter
from spamguard.engine.snapshot import SNAPSHOT_KEY
from spamguard.engine.store import parse_if_whole
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.shared.status import SharedStatus, read_status
from tests.e2e import daemon
from tests.e2e.ports import free_port, wait_for_port
from tests.support.partition import Partition, partition
from tests.support.postgres import PostgresServer, TestDatabase
from tests.support.processes import command, descendants
from tests.support.waiting import eventually
from tests.unit.filters import KEY

FINGERPRINT = keys.key_fingerprint(KEY)


@dataclass
class SharedNode:
    """A node: a running daemon with a scanner door and metrics, and its proxies to the servers."""

    running: daemon.Daemon
    state: Path
    port: int
    metrics: int
    proxies: Sequence[Partition]
    teacher: Filter

    @property
    def proxy(self) -> Partition:
        """That to the database's own server, which is asked first."""
        return self.proxies[0]

    def status(self) -> SharedStatus:
        return read_status(self.state)

    def is_equal_to(self, other: SharedNode) -> bool:
        """Whether both have the whole log, and nothing waits."""
        ours, theirs = self.status(), other.status()
        return (
            ours.position == theirs.position > 0
            and not ours.waiting
            and not theirs.waiting
            and not ours.away_since
        )

    def courier_pid(self) -> int:
        """The process id of the courier."""
        (pid,) = (
            pid
            for pid in descendants(self.running.process.pid)
            if "spamguard.daemon.courier" in command(pid)
        )
        return pid

    def teach(self, raw: bytes, label: str = "spam") -> None:
        """Teach as a command does, by a process beside the daemon, which is this one."""
        self.teacher.learn(raw, label)

    def settle(self) -> None:
        """Settle if that is due, as the daemon does within a minute."""
        subprocess.run([*daemon.SETTLE, str(self.state)], env=daemon.ENVIRONMENT, check=True)

    def lineage(self) -> str:
        """The name of the settled tables that it judges by; "": there are none."""
        return parse_if_whole(self.teacher.ledger.get_meta(SNAPSHOT_KEY)).lineage

    def score(self, raw: bytes) -> float:
        """What the daemon says of a message."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            client.request("POST", "/checkv2", raw)
            return float(json.loads(client.getresponse().read())["score"])
        finally:
            client.close()

    def ask(self, path: str) -> tuple[int, str]:
        """What monitors get."""
        client = http.client.HTTPConnection("127.0.0.1", self.metrics, timeout=30)
        try:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def events(self) -> list[tuple[int, bytes, str, str | None]]:
        """The events that have a position."""
        with SqliteLedger.open(self.state / "ledger.sqlite", FINGERPRINT) as ledger:
            assert ledger.shared is not None
            position = ledger.shared.head().position
            return [
                (vote.clock, vote.digest, vote.node, vote.label)
                for vote, _ in zip(ledger.all_votes(), range(position), strict=False)
            ]


@dataclass
class SharedSite:
    """All nodes of a database. standbys: other servers that hold it, or will."""

    root: Path
    database: TestDatabase
    stack: ExitStack
    standbys: Sequence[PostgresServer]
    nodes: list[SharedNode] = field(default_factory=list)

    def join(self, messages: int = 100, more: str = "", url: str = "") -> SharedNode:
        """Start one more node, which was taught so much before it joined. more: configuration. url:
        of its page.
        """
        name = f"node{len(self.nodes)}"
        state = daemon.taught(self.root / name, messages)
        with SqliteLedger.open(state / "ledger.sqlite", FINGERPRINT) as ledger:
            ledger.join()
        return self.start(state, more, url)

    def start(self, state: Path, more: str = "", url: str = "") -> SharedNode:
        """Start the daemon on a state directory that has joined."""
        port, metrics = free_port(), free_port()
        servers = [self.database.server, *self.standbys]
        proxies = [self.stack.enter_context(partition(each.port)) for each in servers]
        settings = self.database.settings(*(each.port for each in proxies))
        shared = to_plain(settings, SharedSettings)
        options = {
            "workers": 1,
            "scanners": [{"listen": f"rspamd://127.0.0.1:{port}"}],
            "metrics": f"127.0.0.1:{metrics}",
            "shared": {**shared, "url": url, "name": state.name},
        }
        file = self.root / f"{state.name}.yaml"
        file.write_text(yaml.safe_dump(options) + more)
        running = self.stack.enter_context(daemon.running(state, "--config", str(file), port=port))
        teacher = self.stack.enter_context(Filter.open(state))
        node = SharedNode(running, state, port, metrics, proxies, teacher)
        self.nodes.append(node)
        wait_for_port(metrics)
        eventually(lambda: node.status().contact, "the node has read the log")
        return node

    def converge(self) -> None:
        """Wait until all logs are equal."""
        first, *others = self.nodes
        for other in others:
            eventually(lambda other=other: first.is_equal_to(other), "the logs are equal")


@contextmanager
def shared_site(
    root: Path, database: TestDatabase, *standbys: PostgresServer
) -> Iterator[SharedSite]:
    """No node yet."""
    adopt(database)
    with ExitStack() as stack:
        yield SharedSite(root, database, stack, standbys)


def adopt(database: TestDatabase) -> None:
    """Make a database that of our nodes' key."""
    statement = "UPDATE spamguard.cluster SET fingerprint = %s, bits = %s"
    database.query(statement, FINGERPRINT, daemon.BITS)
