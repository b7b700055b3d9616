"""The limit of open files, and mail under way during a stop or a reload."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e import daemon
from tests.e2e.peers import Client, Hop
from tests.e2e.ports import free_port
from tests.support.processes import children
from tests.support.waiting import PATIENCE, eventually

MESSAGE = b"Subject: hello\r\n\r\nsome text\r\n"


def test_a_usual_limit_of_open_files_does_not_limit_connections(tmp_path: Path) -> None:
    """Each has a session with the next hop and perhaps a spool file; service managers and shells
    allow 1,024 in all.
    """
    port, hop = free_port(), Hop()
    few_files = ("bash", "-c", 'ulimit -S -n 64 && exec "$@"', "bash")
    with hop.serving(), ExitStack() as stack:
        state = daemon.taught(tmp_path / "state", messages=10)
        arguments = daemon.one_listener(state, port, f"smtp://127.0.0.1:{hop.port}")
        stack.enter_context(daemon.running(state, *arguments, port=port, before=few_files))
        clients = [stack.enter_context(Client(port)) for _ in range(100)]
        for client in clients:
            client.hello().begin()
        assert clients[-1].data(MESSAGE).startswith(b"250")


def test_stopping_finishes_mail_under_way_and_refuses_other_clients(tmp_path: Path) -> None:
    port, hop = free_port(), Hop({"dot": _slow})
    state = daemon.taught(tmp_path / "state", messages=10)
    arguments = daemon.one_listener(state, port, f"smtp://127.0.0.1:{hop.port}")
    with (
        hop.serving(),
        daemon.running(state, *arguments, port=port) as running,
        ExitStack() as stack,
    ):
        clients = {
            name: stack.enter_context(Client(port))
            for name in ("greeted", "served", "recipients", "data", "dot", "gone")
        }
        for name, client in clients.items():
            if name != "greeted":
                client.hello()
            if name in ("recipients", "data", "dot", "gone"):
                client.begin()
            if name in ("data", "dot", "gone"):
                assert client.ask(b"DATA").startswith(b"354")
                client.send(MESSAGE + (b"" if name == "data" else b".\r\n"))
        clients["greeted"].reply()
        assert clients["served"].begin().data(MESSAGE).startswith(b"250")
        clients["gone"].close()
        running.process.send_signal(signal.SIGTERM)
        assert clients["served"].reply().startswith(b"421")
        clients["data"].send(b".\r\n")
        assert clients["recipients"].data(MESSAGE).startswith(b"250")
        assert [clients[name].reply()[:3] for name in ("data", "dot", "greeted")] == [
            b"250",
            b"250",
            b"421",
        ]
        assert [clients[name].reply()[:3] for name in ("data", "dot", "recipients", "greeted")] == [
            b"421",
            b"421",
            b"421",
            b"",
        ]
        assert running.process.wait(PATIENCE) == 0
    assert len(hop.messages) == 5


def _slow(heard: object, line: bytes) -> bytes:
    time.sleep(0.5)
    return b"250 2.0.0 ok\r\n"


def test_a_reload_with_other_listeners_loses_no_client(tmp_path: Path) -> None:
    ports, hop = [free_port() for _ in range(2)], Hop()
    file = tmp_path / "spamguard.yaml"

    def configure(number: int) -> None:
        lines = [
            f"  - {{listen: 'smtp://127.0.0.1:{port}', position: before-queue, next_hop: 'smtp://127.0.0.1:{hop.port}'}}\n"
            for port in ports
        ]
        file.write_text("workers: 2\nlisteners:\n" + "".join(lines[:number]))

    stop, wrong, sent = threading.Event(), list[str](), list[int]()

    def keep_sending() -> None:
        while not stop.is_set():
            try:
                with Client(ports[0]) as client:
                    assert client.hello().begin().data(MESSAGE).startswith(b"250")
                sent.append(1)
            except (AssertionError, OSError) as error:
                wrong.append(repr(error))

    configure(1)
    with (
        hop.serving(),
        daemon.running(
            daemon.taught(tmp_path / "state", messages=10), "--config", str(file), port=ports[0]
        ) as running,
    ):
        threads = [threading.Thread(target=keep_sending) for _ in range(4)]
        running.lines("serving smtp")
        for thread in threads:
            thread.start()
        try:
            for number in (2, 1):
                configure(number)
                old = set(children(running.process.pid))
                running.process.send_signal(signal.SIGHUP)
                eventually(lambda before=old: not before & set(children(running.process.pid)))
                running.lines("serving smtp", number % 2 + 2)
            with pytest.raises(ConnectionRefusedError):
                Client(ports[1])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert wrong == []
    assert len(hop.messages) == len(sent) > 0
