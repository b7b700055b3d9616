"""The master and its workers, as processes and sockets."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from spamguard.engine.filter import Filter
from tests.support.processes import alive
from tests.support.waiting import PATIENCE, eventually
from tests.unit.daemon.conftest import Daemon
from tests.unit.filters import READER, mail

pytestmark = pytest.mark.slow


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


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_stopping_ends_workers_that_hang(daemon: Daemon) -> None:
    daemon.start("drain_seconds=1")
    eventually(lambda: len(daemon.workers()) == 2)
    with daemon.client() as client:
        client.say("stop")
        eventually(lambda: is_stopped(client.worker))
        assert daemon.stop() == 0
        assert not alive(client.worker)
    assert "does not stop: killed" in daemon.log()


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


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
