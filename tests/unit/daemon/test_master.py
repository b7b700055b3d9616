"""The master and its workers, as processes and sockets."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from spamguard import __version__, native
from spamguard.daemon import master
from spamguard.daemon.supervisor import WorkerTiming
from spamguard.engine.filter import Filter
from tests.e2e.ports import free_port
from tests.support.processes import alive
from tests.support.taken import taken
from tests.support.waiting import PATIENCE, eventually
from tests.unit.daemon.conftest import Client, Daemon
from tests.unit.filters import READER, mail, teach, upgraded

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (3, 2), (4, 2), (16, 8)])
def test_the_default_number_of_workers(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert master._default_workers() == workers


def test_all_workers_answer_on_one_port_and_stop_on_sigterm(daemon: Daemon) -> None:
    daemon.start()
    eventually(lambda: len(daemon.workers()) == 2)
    workers = set(daemon.workers())
    answered = set()

    def ask() -> bool:
        with daemon.client() as client:
            assert client.ask("hello") == "hello"
            answered.add(client.worker)
        return answered == workers

    eventually(ask, "both workers answer")
    assert daemon.stop() == 0
    assert not any(map(alive, workers))
    assert f"spamguard {__version__} (kernel: {native.implementation()})" in daemon.log()
    assert "stopping" in daemon.log()
    assert "Traceback" not in daemon.log()


def test_the_master_has_neither_numpy_nor_a_database(daemon: Daemon) -> None:
    daemon.start()
    libraries = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "numpy" not in libraries
    assert "_sqlite3" not in libraries
    assert daemon.stop(signal.SIGINT) == 0


def test_outdated_lessons_are_logged_at_the_start(daemon: Daemon) -> None:
    with Filter.open(daemon.place / "state") as spam_filter:
        teach(spam_filter, mail(2))
    upgraded(daemon.place / "state")
    daemon.start()
    eventually(
        lambda: (
            "WARNING: 2 lessons from before an upgrade that reads mail otherwise" in daemon.log()
        )
    )
    assert daemon.stop() == 0


class Load:
    """Threads that connect, ask and leave, one connection after another, and count failures."""

    def __init__(self, port: int, threads: int) -> None:
        self.done = 0
        self.failed: list[str] = []
        self.answered: set[int] = set()
        self._port = port
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with Client(self._port) as client:
                    assert client.ask("one") == "one"
                    self._count(client.worker)
            except (OSError, AssertionError) as error:
                self._count(0, repr(error))

    def _count(self, worker: int, failed: str = "") -> None:
        with self._lock:
            self.done += 1
            self.answered.add(worker)
            self.failed += [failed] if failed else []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_reloads_one_upon_the_other_do_not_pile_up_workers(daemon: Daemon) -> None:
    daemon.start()
    eventually(lambda: len(daemon.workers()) == 2)
    most = 0
    for _ in range(15):
        os.kill(daemon.pid, signal.SIGHUP)
        time.sleep(0.03)
        most = max(most, len(daemon.workers()))
    assert most < 12
    eventually(lambda: len(daemon.workers()) == 2)
    assert "ERROR" not in daemon.log()
    assert daemon.stop() == 0


def test_a_reload_refuses_and_drops_no_connection(daemon: Daemon) -> None:
    daemon.start()
    with daemon.client() as lasting, Load(daemon.ports[0], 4) as load:
        lasting.say("slow 2")
        for number in range(2, 5):
            daemon.reload()
            daemon.logged("serving", number)
        eventually(lambda: load.done >= 400)
        assert lasting.hear() == "slow 2"
        assert lasting.hear() == "421"
    assert load.failed == []
    assert len(load.answered) >= 4
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.log()


def test_a_reload_with_mistakes_changes_nothing(daemon: Daemon) -> None:
    daemon.start()
    before = set(daemon.workers())
    daemon.file.write_text("stat: x\n")
    daemon.reload()
    daemon.logged("the old settings stay in force")
    assert "spamguard.yaml:1:1: unknown key 'stat': did you mean 'state'?" in daemon.log()
    assert set(daemon.workers()) == before
    with daemon.client() as client:
        assert client.worker in before


def test_a_reload_cannot_move_the_state(daemon: Daemon) -> None:
    daemon.start()
    daemon.configure(state=str(daemon.place / "other"))
    daemon.reload()
    daemon.logged("the old settings stay in force")
    assert "restart for that" in daemon.log()
    assert not (daemon.place / "other").exists()


def test_a_reload_opens_new_addresses_and_closes_old_ones(daemon: Daemon) -> None:
    kept, gone, new = free_port(), free_port(), free_port()
    daemon.configure([kept, gone])
    daemon.start()
    with Client(gone) as client:
        assert client.ask("hello") == "hello"
        daemon.configure([kept, new])
        daemon.reload()
        daemon.logged("serving", 2)
        with Client(kept), Client(new):
            pass
        assert client.hear() == "421"
    eventually(lambda: refuses(gone))


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_reload_to_an_address_in_use_changes_nothing(daemon: Daemon) -> None:
    daemon.start()
    (kept,) = daemon.ports
    with socket.create_server(("127.0.0.1", 0)) as other:
        daemon.configure([kept, other.getsockname()[1]])
        daemon.reload()
        daemon.logged("the old settings stay in force")
    assert "stop what listens there" in daemon.log()
    with Client(kept) as client:
        assert client.ask("still here") == "still here"


def test_stopping_lets_a_message_finish(daemon: Daemon) -> None:
    daemon.start()
    with daemon.client() as busy, daemon.client() as idle:
        assert idle.ask("hello") == "hello"
        busy.say("slow 1.5")
        taken(busy.socket)
        os.kill(daemon.pid, signal.SIGTERM)
        assert idle.hear() == "421"
        assert busy.hear() == "slow 1.5"
    assert daemon.process is not None
    assert daemon.process.wait(PATIENCE) == 0
    assert refuses(daemon.ports[0])


def test_stopping_takes_ten_seconds_at_most(daemon: Daemon) -> None:
    daemon.start()
    with daemon.client() as busy:
        busy.say("slow 60")
        taken(busy.socket)
        assert daemon.stop() == 0  # sooner than it would take
        assert busy.hear() == "421"
    assert not any(map(alive, daemon.seen))
    assert WorkerTiming().drain < 9  # and what is left of the ten is for the rest


def test_stopping_ends_workers_that_hang(daemon: Daemon) -> None:
    daemon.start("drain=1")
    eventually(lambda: len(daemon.workers()) == 2)
    with daemon.client() as client:
        client.say("stop")
        eventually(lambda: is_stopped(client.worker))
        assert daemon.stop() == 0
        assert not alive(client.worker)
    assert "does not stop: killed" in daemon.log()


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_worker_that_dies_is_replaced(daemon: Daemon) -> None:
    daemon.start()
    eventually(lambda: len(daemon.workers()) == 2)
    first, second = daemon.workers()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(now := daemon.workers()) == 2 and first not in now)
    assert second in daemon.workers()
    assert f"worker {first} was ended by SIGKILL: replaced" in daemon.log()


def test_workers_that_die_at_once_are_replaced_more_and_more_slowly(daemon: Daemon) -> None:
    daemon.configure(workers=1, listener={"hostname": "broken"})
    daemon.start("longest_pause=0.4", "short_life=60", wait=False)
    daemon.logged("has exited with status 7: replaced in 0.1 s")
    daemon.logged("replaced in 0.2 s")
    daemon.logged("replaced in 0.4 s", 2)
    daemon.configure(workers=1)
    daemon.reload()
    daemon.logged("serving")
    with daemon.client() as client:
        assert client.ask("well again") == "well again"


def test_workers_go_with_a_master_that_was_killed(daemon: Daemon) -> None:
    daemon.start()
    eventually(lambda: len(daemon.workers()) == 2)
    workers = daemon.workers()
    with daemon.client() as busy:
        busy.say("slow 1")
        taken(busy.socket)
        assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL
        daemon.start(wait=False)  # can listen although that one is still busy
        assert busy.hear() == "slow 1"
    eventually(lambda: not any(map(alive, workers)))
    daemon.logged("serving", 2)
    with daemon.client() as client:
        assert client.worker not in workers


def test_a_silent_worker_is_killed_and_replaced(daemon: Daemon) -> None:
    daemon.start("silent=3")
    eventually(lambda: len(daemon.workers()) == 2)
    with daemon.client() as client:
        client.say("stop")
        daemon.logged(f"worker {client.worker} has been silent")
        daemon.logged(f"worker {client.worker} was ended by SIGKILL: replaced")
    eventually(lambda: len(daemon.workers()) == 2)


class Listener:
    """systemd's end of the notification socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read(self) -> list[str]:
        while True:
            try:
                self.messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self.messages

    def heard(self, text: str, times: int = 1) -> bool:
        return sum(text in one for one in self.read()) >= times


def test_systemd_is_notified(daemon: Daemon) -> None:
    with Listener(str(daemon.place / "notify")) as systemd:
        daemon.start(NOTIFY_SOCKET=systemd.address)
        eventually(lambda: systemd.heard("READY=1\nSTATUS=serving smtp on 127.0.0.1:"))
        daemon.reload()
        eventually(lambda: systemd.heard("READY=1", 2))
        reloading = next(message for message in systemd.messages if "RELOADING=1" in message)
        assert (
            int(reloading.partition("MONOTONIC_USEC=")[2].split()[0]) <= time.monotonic_ns() // 1000
        )
        daemon.file.write_text("")
        daemon.reload()
        eventually(lambda: systemd.heard("READY=1", 3))
        assert "is not in force" in systemd.messages[-1]
        assert daemon.stop() == 0
        assert systemd.heard("STOPPING=1")
        assert not systemd.heard("WATCHDOG")


def test_the_watchdog_is_fed_only_while_all_workers_are_heard(daemon: Daemon) -> None:
    address = f"@spamguard-test-{os.getpid()}"
    with Listener(address) as systemd:
        daemon.start("fresh=2.5", NOTIFY_SOCKET=address, WATCHDOG_USEC="600000")
        eventually(lambda: systemd.heard("WATCHDOG=1", 3))
        # systemd counts from the first word on, and a start may take longer
        assert systemd.messages[0].startswith("READY=1")
        eventually(lambda: len(daemon.workers()) == 2)
        with daemon.client() as client:
            client.say("stop")
            eventually(lambda: is_stopped(client.worker))
            time.sleep(3.5)
            systemd.read()
            systemd.messages.clear()
            time.sleep(2)
            assert systemd.read() == []
            os.kill(client.worker, signal.SIGCONT)
            eventually(lambda: systemd.heard("WATCHDOG=1", 3))


def test_the_watchdog_is_fed_while_a_worker_takes_its_time_to_begin(daemon: Daemon) -> None:
    """Else a slow machine would have the whole daemon killed after each reload, and after each
    worker that is replaced.
    """
    with Listener(str(daemon.place / "notify")) as systemd:
        daemon.start("fresh=2.5", NOTIFY_SOCKET=systemd.address, WATCHDOG_USEC="600000")
        daemon.configure(listener={"hostname": "slow-600"})
        daemon.reload()
        daemon.logged("reading the configuration anew")
        time.sleep(3.5)
        systemd.read()
        systemd.messages.clear()
        eventually(lambda: systemd.heard("WATCHDOG=1", 3))


def test_a_socket_of_systemd_is_used(daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        daemon.configure([ours.getsockname()[1]])
        start_with_socket(daemon, ours.fileno())
        daemon.logged("serving")
    with daemon.client() as client:  # while nobody else holds it
        assert client.ask("through it") == "through it"
    daemon.reload()
    daemon.logged("serving", 2)
    with daemon.client() as client:
        assert client.ask("still") == "still"
    assert daemon.stop() == 0


def start_with_socket(daemon: Daemon, *descriptors: int) -> None:
    """Started as systemd would, with the sockets as files 3 and on: a shell puts them there."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in descriptors]
    places = " ".join(f"{3 + place}<&{one} {one}<&-" for place, one in enumerate(high))
    before = ("bash", "-c", f'exec {places}; exec "$@"', "bash")
    try:
        daemon.start(
            wait=False,
            pass_fds=tuple(high),
            before=before,
            LISTEN="yes",
            LISTEN_FDS=str(len(high)),
            LISTEN_FDNAMES="smtp",
        )
    finally:
        for one in high:
            os.close(one)


def test_settling_is_done_by_one_process_at_a_time(daemon: Daemon) -> None:
    with Filter.open(daemon.place / "state") as spam_filter:
        for label, raw in mail(40)[:30]:
            spam_filter.learn_examples([READER.read_example(raw)], label)
        assert spam_filter.status().unsettled == 30
    daemon.start()
    with daemon.client() as client:
        for _ in range(3):
            assert client.ask("settle") == "settle"
        daemon.logged("settled in")
    with Filter.open(daemon.place / "state") as spam_filter:
        assert spam_filter.status().unsettled == 0
    assert daemon.stop() == 0
    assert daemon.log().count("settled in") == 1
