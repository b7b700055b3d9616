"""Faults of next hops, of clients and of our own processes: no acknowledged message is lost,
nothing is sent twice, and nothing waits for ever.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e import daemon, tuned
from tests.e2e.peers import USUAL, Client, Hop
from tests.e2e.ports import free_port
from tests.support.processes import children
from tests.support.taken import taken
from tests.support.waiting import eventually

MESSAGE = b"Subject: hello\r\n\r\nsome text %d\r\n"


@dataclass
class TroubleSite:
    """The daemon, its ports by name, and the next hop behind it."""

    running: daemon.Daemon
    ports: dict[str, int]
    hop: Hop

    def client(self, name: str = "pass") -> Client:
        """A client past its EHLO."""
        return Client(self.ports[name]).hello()

    def children(self, module: str, of: int | None = None) -> list[int]:
        """Numbers of the processes that run a module: workers, or the scorers of one."""
        return children(of or self.running.process.pid, module)

    @property
    def worker(self) -> int:
        """The only worker."""
        (worker,) = self.children("spamguard.daemon.worker")
        return worker

    @property
    def scorer(self) -> int:
        """Its only scorer."""
        (scorer,) = self.children("spamguard.proxy.scorer", self.worker)
        return scorer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubleSite]:
    directory = tmp_path_factory.mktemp("trouble")
    state = daemon.taught(directory / "state", messages=60)
    hop = Hop()
    ports = {name: free_port() for name in ("pass", "defer", "held")}
    extra = {
        "defer": "    on_error: defer\n",
        "held": "    rules: [{when: unsure, action: quarantine}]\n",
    }
    command = tuned.command((0, "next_hop", {"command": 2.0, "data": 3.0, "connect": 1.0}))
    text = "workers: 1\nscoring: {deadline: 3s}\nlisteners:\n" + "".join(
        f"  - listen: smtp://127.0.0.1:{port}\n    position: before-queue\n"
        f"    next_hop: smtp://127.0.0.1:{hop.port}\n{extra.get(name, '')}"
        for name, port in ports.items()
    )
    file = directory / "spamguard.yaml"
    file.write_text(text)
    with (
        hop.serving(),
        daemon.running(
            state, "--config", str(file), port=ports["pass"], command=command
        ) as running,
    ):
        yield TroubleSite(running, ports, hop)


@pytest.fixture
def place(shared: TroubleSite) -> TroubleSite:
    """The daemon as it was at the beginning, with sessions to the next hop that are new."""
    shared.hop.answers = {**USUAL, "dot": b"450 4.0.0 this session is not kept\r\n"}
    for _ in range(3):
        with shared.client() as client:
            client.begin().data(MESSAGE)
    shared.hop.answers = dict(USUAL)
    shared.hop.forget()
    return shared


# ---- the next hop


@pytest.mark.parametrize(
    "said", [None, b"", b"nonsense\r\n", b"354 again\r\n", b"421 4.0.0 gone\r\n"], ids=str
)
def test_after_the_final_dot_there_is_one_attempt(place: TroubleSite, said: bytes | None) -> None:
    place.hop.answers["dot"] = said
    with place.client() as client:
        assert client.begin().data(MESSAGE).startswith(b"451 4.")
        assert len(place.hop.messages) == 1
        place.hop.answers["dot"] = b"250 2.0.0 ok\r\n"
        assert client.begin().data(MESSAGE).startswith(b"250")


# ---- our own parts


def judged(place: TroubleSite) -> None:
    """Send until a scorer works again."""

    def once() -> bool:
        with place.client() as client:
            assert client.begin().data(MESSAGE).startswith(b"250")
        return b"\r\nX-Spam-Status: " in b"\r\n" + place.hop.messages[-1]

    eventually(once)


@pytest.mark.parametrize(("name", "wanted"), [("pass", b"250"), ("defer", b"451 4.3.0")])
def test_a_scorer_that_hangs(place: TroubleSite, name: str, wanted: bytes) -> None:
    os.kill(place.scorer, signal.SIGSTOP)
    with place.client(name) as client:
        assert (
            client.begin().data(MESSAGE % os.getpid() + name.encode() + b"\r\n").startswith(wanted)
        )
    if name == "pass":
        assert b"X-Spamguard: not-scanned; reason=timeout\r\n" in place.hop.messages[0]
    else:
        assert place.hop.messages == []
    judged(place)


def test_a_message_that_kills_scorers_passes_unjudged_from_then_on(place: TroubleSite) -> None:
    killer = MESSAGE % 666
    reasons = []
    for _ in range(3):
        judged(place)
        with place.client() as client:
            client.begin()
            scorer = place.scorer
            os.kill(scorer, signal.SIGSTOP)
            assert client.ask(b"DATA").startswith(b"354")
            client.send(killer + b".\r\n")
            taken(client.socket)
            time.sleep(0.8)  # until the scorer has been at it for so long that no other is to try
            os.kill(scorer, signal.SIGKILL)
            assert client.reply().startswith(b"250")
        reasons.append(
            re.findall(rb"X-Spamguard: not-scanned; reason=(\S+)", place.hop.messages[-1])
        )
    assert reasons == [[b"crashed"], [b"crashed"], [b"poison"]]
    judged(place)


def test_a_worker_that_is_killed_is_replaced_and_its_mail_comes_again(place: TroubleSite) -> None:
    with place.client() as client:
        client.begin()
        worker = place.worker
        os.kill(worker, signal.SIGKILL)
        assert client.reply() == b""
    eventually(lambda: place.children("spamguard.daemon.worker") not in ([], [worker]))
    with place.client() as client:
        assert client.begin().data(MESSAGE).startswith(b"250")
    place.running.lines(f"worker {worker} was ended by SIGKILL: replaced")
    judged(place)
    assert not list((place.running.state / "spool").iterdir())


# ---- what is left behind


def test_the_state_directory_is_private(place: TroubleSite) -> None:
    judged(place)
    with place.client("held") as client:
        assert client.begin().data(MESSAGE).startswith(b"250 2.0.0 Held as ")
        assert client.begin().data(MESSAGE + b"0123456789\r\n" * 90_000).startswith(b"250")
    eventually((place.running.state / "history.sqlite").exists)
    found = {
        path: path.stat().st_mode & 0o777
        for path in [place.running.state, *place.running.state.rglob("*")]
    }
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert [path for path in found if path.suffix == ".eml"]
