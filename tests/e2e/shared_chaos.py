"""Nodes that share one log, and people who teach them by every way there is, whatever fails.

A teacher goes on until somebody has acknowledged the lesson, as programs and people do; moved mail
is acknowledged by nobody and has to be learnt all the same. Every lesson has a message of its own,
so what must be in the end is known.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import yaml

from spamguard import keys
from spamguard.config.options import SharedSettings
from spamguard.config.schema import to_plain
from spamguard.database import open_database
from spamguard.engine.filter import Filter
from spamguard.engine.snapshot import SNAPSHOT_KEY, write_snapshot
from spamguard.engine.store import is_settler_wanted, parse_if_whole
from spamguard.ledger.events import START, encode_event, next_chain
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.records import Vote
from spamguard.shared.status import SharedStatus, read_status
from tests.e2e import daemon
from tests.e2e.moving import all_seen
from tests.e2e.ports import free_port
from tests.support.partition import Partition
from tests.support.postgres import PostgresServer, TestDatabase
from tests.support.waiting import PATIENCE, eventually
from tests.unit.filters import KEY
from tests.unit.folders.maildirs import deliver, maildir, move

FINGERPRINT = keys.key_fingerprint(KEY)
Lesson = tuple[bytes, str]
"""A message and a user; "": the site."""
_COLUMNS = ", ".join(Vote._fields)
LABELS = ("spam", "ham")
_CONTESTED = 12
_FOLDERS = {"spam": ".Junk", "ham": ".Archive"}


@dataclass
class ChaosNode:
    """A daemon with doors, API and watched mailboxes, which is killed and started again."""

    root: Path
    name: str
    settings: SharedSettings
    proxy: Partition | None = None
    door: int = field(default_factory=free_port)
    api: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    token: str = ""

    @property
    def state(self) -> Path:
        return self.root / self.name

    @property
    def mailbox(self) -> Path:
        """Of the one user whose mail lies here."""
        return self.root / f"{self.name}.mail" / f"user-{self.name}"

    def create(self, messages: int) -> None:
        """Join; before that the filter was taught so much."""
        if messages:
            daemon.taught(self.state, messages)
        keys.store_key(self.root / "key", KEY)
        tls = self.settings.tls
        dsn = f"{self.settings.database} sslmode=verify-full sslrootcert={tls.ca}"
        files = ["--key", str(self.root / "key"), "--password-file", self.settings.password_file]
        self.run("shared", "join", dsn, *map(str, files))
        maildir(self.mailbox, ".Junk", ".Archive")
        (self.root / f"{self.name}.yaml").write_text(
            yaml.safe_dump(
                {
                    "workers": 1,
                    "scanners": [
                        {"listen": f"rspamd://127.0.0.1:{self.door}", "teachers": ["127.0.0.1"]}
                    ],
                    "web": {"listen": f"127.0.0.1:{self.api}"},
                    "watch": [
                        {
                            "maildir": f"{self.mailbox.parent}/*",
                            "lessons_per_day": 0,
                        }
                    ],
                    "teach": {"lessons_per_day": 0},
                    "shared": to_plain(self.settings, SharedSettings),
                }
            )
        )
        self.token = self.run("token", "create", "t", "--operator")

    def run(self, *words: str) -> str:
        """The output of a command."""
        return daemon.command(self.state, *words).strip()

    def start(self) -> None:
        """Start the daemon; it is ready some time later."""
        line = [*daemon.COMMAND, "--state", str(self.state), "run"]
        with self.log_file.open("ab") as stream:
            self.process = subprocess.Popen(
                [*line, "--config", str(self.root / f"{self.name}.yaml")],
                stdout=stream,
                stderr=stream,
                env=daemon.ENVIRONMENT,
            )

    def wait_until_ready(self) -> None:
        """Until it takes lessons."""
        for port in (self.door, self.api):
            eventually(lambda port=port: self._listens(port), f"{self.name} takes lessons")

    def _listens(self, port: int) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()[-4000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    def wait_until_watched(self) -> None:
        """Until the watcher knows all mail of the inbox."""
        all_seen(self.state, self.mailbox, len(list((self.mailbox / "cur").iterdir())))

    def kill(self) -> None:
        """End the daemon as `kill -9` does. Its processes follow it by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(PATIENCE) == 0, self.log()[-4000:]

    @property
    def log_file(self) -> Path:
        return self.root / f"{self.name}.log"

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def status(self) -> SharedStatus:
        """What its courier says."""
        return read_status(self.state)

    # ---- what people and programs do

    def teach_at_door(self, raw: bytes, label: str) -> bool:
        """As `rspamc learn_spam` does; whether it was acknowledged."""
        status, _ = self._post(self.door, f"/learn{label}", raw)
        return status == 200

    def teach_by_api(self, raw: bytes, label: str) -> bool:
        """As the page does; whether it was acknowledged."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "message/rfc822"}
        status, _ = self._post(self.api, f"/api/v1/learn?class={label}", raw, headers)
        return status == 200

    def judge(self, raw: bytes) -> float:
        """What the running daemon says."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "message/rfc822"}
        status, answer = self._post(self.api, "/api/v1/judge", raw, headers)
        assert status == 200, answer
        return float(json.loads(answer)["probability"])

    @staticmethod
    def _post(
        port: int, path: str, raw: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            client.request("POST", path, raw, headers or {})
            answer = client.getresponse()
            text = answer.read()
            assert answer.status == 200 or answer.status >= 500, text
            return answer.status, text
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            client.close()

    # ---- what is there in the end

    def votes(self) -> list[tuple[int, Vote]]:
        """All events of its copy of the log with their positions, and those that have none."""
        with closing(open_database(self.state / "ledger.sqlite", 30.0)) as ledger:
            rows = ledger.execute(f"SELECT seq, {_COLUMNS} FROM events ORDER BY seq").fetchall()
        return [(row[0], Vote(*row[1:])) for row in rows]

    def settled(self) -> tuple[int, str]:
        """The settled state from which it folds: the last event of it, and its name."""
        with SqliteLedger.open(self.state / "ledger.sqlite", FINGERPRINT) as ledger:
            line = ledger.get_meta(SNAPSHOT_KEY)
        stamp = parse_if_whole(line)
        return stamp.settled, stamp.lineage

    def settle_if_due(self) -> bool:
        """Settle as the daemon does now and then; whether nothing is due after that."""
        with SqliteLedger.open(self.state / "ledger.sqlite", FINGERPRINT) as ledger:
            if not is_settler_wanted(ledger):
                return True
        line = [*daemon.SETTLE, str(self.state)]
        subprocess.run(line, env=daemon.ENVIRONMENT, stderr=subprocess.DEVNULL, check=True)
        return False

    def teach_all(self, lessons: Sequence[tuple[str, bytes]]) -> None:
        """Teach as an import does, by a process of its own beside the daemon."""
        with Filter.open(self.state) as spam_filter:
            reader = spam_filter._reader
            for label in LABELS:
                examples = [reader.read_example(raw) for name, raw in lessons if name == label]
                spam_filter.learn_examples(examples, label)

    def count_lessons(self) -> Counter[str]:
        """By class."""
        with Filter.open(self.state) as spam_filter:
            return Counter(spam_filter.status().classes)

    def tables(self) -> str:
        """SHA-256 of the tables that a process folds which starts now."""
        with Filter.open(self.state) as spam_filter:
            file = self.root / f"{self.name}.tables"
            write_snapshot(file, spam_filter._store.tables, durable=False)
            return sha256(file.read_bytes()).hexdigest()

    def verdicts(self, messages: Sequence[bytes]) -> list[object]:
        """The verdicts to the last bit."""
        with Filter.open(self.state) as spam_filter:
            return [repr(spam_filter.judge(raw)) for raw in messages]


class Teachers:
    """The people and programs, a thread for each way at each node.

    taught: what was acknowledged or moved. contested: messages that are taught here and there as
    this and that, so only the order of the log says what they are.
    """

    def __init__(self, nodes: Sequence[ChaosNode], lessons: int, seed: int) -> None:
        self._nodes = nodes
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.taught: dict[Lesson, str] = {}
        self.failure: BaseException | None = None
        ways = [
            *(self._teach_by(ChaosNode.teach_at_door, node) for node in nodes),
            *(self._teach_by(ChaosNode.teach_by_api, node) for node in nodes),
            *(self._move_mail(node) for node in nodes),
        ]
        share = -(-lessons // len(ways))
        self.total = share * len(ways)
        mail = lessons_mail(self.total + _CONTESTED, seed)
        self.contested = mail[self.total :]
        self._threads = [
            threading.Thread(target=self._run, args=(way, mail[at * share : (at + 1) * share]))
            for at, way in enumerate(ways)
        ]
        self._contest = threading.Thread(target=self._teach_contested)
        # The mail that will be moved lies there before the daemons look.
        self._paths = {
            raw: deliver(node.mailbox, raw, "cur", "S")
            for number, node in enumerate(nodes, len(ways) - len(nodes))
            for raw in mail[number * share : (number + 1) * share]
        }

    def start(self) -> None:
        for thread in (*self._threads, self._contest):
            thread.start()

    def progress(self) -> float:
        """How much is done, 0 to 1."""
        if self.failure is not None:
            raise self.failure
        return len(self.taught) / self.total

    def join(self) -> None:
        """Wait for the last lesson."""
        for thread in (*self._threads, self._contest):
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self, way: Callable[[bytes, str], None], mail: Sequence[bytes]) -> None:
        try:
            for number, raw in enumerate(mail):
                way(raw, LABELS[number % 2])
        except BaseException as error:
            self.failure = error
            raise

    def _teach_contested(self) -> None:
        choose = random.Random(len(self.contested))
        while any(thread.is_alive() for thread in self._threads):
            raw, label = choose.choice(self.contested), choose.choice(LABELS)
            choose.choice(self._nodes).teach_by_api(raw, label)
            time.sleep(0.1)

    def _teach_by(
        self, call: Callable[[ChaosNode, bytes, str], bool], node: ChaosNode
    ) -> Callable[[bytes, str], None]:
        def teach(raw: bytes, label: str) -> None:
            at = node
            while not call(at, raw, label):
                time.sleep(0.05)
                at = self._random.choice(self._nodes)  # another one may be there
            with self._lock:
                self.taught[raw, ""] = label

        return teach

    def _move_mail(self, node: ChaosNode) -> Callable[[bytes, str], None]:
        def move_message(raw: bytes, label: str) -> None:
            move(self._paths[raw], node.mailbox / _FOLDERS[label])
            with self._lock:
                self.taught[raw, node.mailbox.name] = label
            time.sleep(0.05)  # a person is not as fast as a program

        return move_message


def lessons_mail(count: int, seed: int) -> list[bytes]:
    """Mail of which no two messages are the same."""
    mail = daemon.unseen("spam", count // 2 + 1) + daemon.unseen("ham", count // 2 + 1)
    random.Random(seed).shuffle(mail)
    return [
        b"Message-ID: <%d.%d@lessons.example>\r\n%b" % (number, seed, raw)
        for number, raw in enumerate(mail[:count])
    ]


class Chaos:
    """What fails: networks of each kind, nodes, and the server."""

    def __init__(self, nodes: Sequence[ChaosNode], server: PostgresServer, seed: int) -> None:
        self._nodes = nodes
        self._server = server
        self._random = random.Random(seed)
        self.faults: list[str] = []

    def cause(
        self, *, partitions: int, kills: int, crashes: int, progress: Callable[[], float]
    ) -> None:
        """Let so much fail, spread over the work. progress: how much of it is done, 0 to 1."""
        faults: list[Callable[[], None]] = [
            *[self._partition] * partitions,
            *[self._kill] * kills,
            *[self._crash] * crashes,
        ]
        self._random.shuffle(faults)
        for number, fault in enumerate(faults):
            while progress() < number / len(faults):
                time.sleep(0.02)
            fault()

    def heal(self) -> None:
        """Let everything work again."""
        for node in self._nodes:
            assert node.proxy is not None
            node.proxy.pass_on()

    def _partition(self) -> None:
        proxy = self._random.choice(self._nodes).proxy
        assert proxy is not None
        kind = self._random.choice(("refuse", "swallow", "cut", "cut after", "delay", "pass on"))
        self.faults.append(kind)
        if kind == "cut after":
            proxy.cut_after(self._random.randrange(5000))
        elif kind == "delay":
            proxy.delay(self._random.random() / 5)
        else:
            getattr(proxy, kind.replace(" ", "_"))()

    def _kill(self) -> None:
        node = self._random.choice(self._nodes)
        node.wait_until_ready()
        node.kill()
        self.faults.append("kill")
        node.start()

    def _crash(self) -> None:
        self._server.stop(self._random.choice((signal.SIGKILL, signal.SIGQUIT)))
        self.faults.append("crash of the server")
        self._server.start()


# ---- what must be in the end


def wait_for_equal_logs(nodes: Sequence[ChaosNode], database: TestDatabase) -> float:
    """Wait until every node has the whole log, and nothing waits; seconds that it took."""
    begin = time.monotonic()

    def are_equal() -> bool:
        ((last,),) = database.query("SELECT last FROM spamguard.log")
        return all(node.status().position == last and not node.status().waiting for node in nodes)

    eventually(are_equal, "all logs are equal")
    return time.monotonic() - begin


def wait_for_equal_tables(nodes: Sequence[ChaosNode]) -> None:
    """Wait until every node folds from the same settled state, and none has to settle."""

    def are_equal() -> bool:
        are_settled = [node.settle_if_due() for node in nodes]
        return all(are_settled) and len({node.settled() for node in nodes}) == 1

    eventually(are_equal, "all have the same snapshot")


def digests_of(node: ChaosNode, taught: Mapping[Lesson, str]) -> dict[tuple[bytes, str], str]:
    """The lessons by digest and user."""
    with Filter.open(node.state) as spam_filter:
        digest = spam_filter._reader.digest
        return {(digest(raw), user): label for (raw, user), label in taught.items()}


def wait_for_lessons(nodes: Sequence[ChaosNode], taught: Mapping[Lesson, str]) -> None:
    """Wait until every node knows every lesson."""
    expected = digests_of(nodes[0], taught)
    for node in nodes:

        def is_there(node: ChaosNode = node) -> bool:
            standing = {(vote.digest, vote.user): vote.label for _, vote in node.votes()}
            return expected.items() <= standing.items()

        eventually(is_there, f"{node.name} has learnt everything")


def check_log(
    nodes: Sequence[ChaosNode], database: TestDatabase, taught: Mapping[Lesson, str]
) -> None:
    """Nothing is lost, doubled or out of order, in the database and in every copy."""
    rows = database.query(
        "SELECT position, clock, node, chain, subject, content FROM spamguard.events ORDER BY 1"
    )
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert len({row[1:3] + row[4:] for row in rows}) == len(rows)
    first, *others = [node.votes() for node in nodes]
    chain = START.chain
    for row, (seq, vote) in zip(rows, first, strict=True):
        event = encode_event(vote)
        chain = next_chain(chain, event)
        assert row == (seq, event.clock, event.node, chain, event.subject, event.content)
    for other in others:
        assert other == first
    expected = digests_of(nodes[0], taught)
    assert len(expected) == len(taught)
    cast = Counter(
        (vote.digest, vote.user, vote.node)
        for _, vote in first
        if (vote.digest, vote.user) in expected
    )
    assert {key for key, times in cast.items() if times > 1} == set()  # no node said it twice
    assert {(digest, user) for digest, user, _ in cast} == set(expected)


def labels_in_force(node: ChaosNode, messages: Sequence[bytes]) -> Counter[str]:
    """How many of these messages the site has taught as what."""
    with Filter.open(node.state) as spam_filter:
        digests = {spam_filter._reader.digest(raw) for raw in messages}
    votes = sorted((vote for _, vote in node.votes()), key=lambda vote: vote.version)
    standing = {vote.digest: vote.label for vote in votes if vote.digest in digests}
    return Counter(label for label in standing.values() if label)


def check_tables(
    nodes: Sequence[ChaosNode], messages: Sequence[bytes], lessons: Counter[str]
) -> None:
    """All nodes have the same tables and give the same verdicts, to the last bit."""
    for node in nodes:
        assert node.count_lessons() == lessons
    assert len({node.tables() for node in nodes}) == 1
    first, *others = [node.verdicts(messages) for node in nodes]
    for other in others:
        assert other == first
