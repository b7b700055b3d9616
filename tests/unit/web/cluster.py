"""Nodes with one ledger and histories of their own, each with a real web server on loopback."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from spamguard.config.options import HostPort, Settings, Web
from spamguard.keys import load_key
from spamguard.proxy.history import HISTORY_FILE
from spamguard.shared.peers import PeerClient, PeerGate, PeerNode, peer_key
from spamguard.storage import KEY_FILE
from spamguard.web.app import create_app
from spamguard.web.auth import CredentialStore
from spamguard.web.nodes import NodeService, PeerDoor
from tests.support.waiting import PATIENCE
from tests.unit.filters import opened
from tests.unit.web import office
from tests.unit.web.fixed import Monitor
from tests.unit.web.served import Served, running


@dataclass
class Cluster:
    """nodes: their servers. peers: what each node knows of all; a test may add to it."""

    nodes: list[Served]
    peers: list[PeerNode]
    key: bytes

    def ids(self, number: int, person: str = "") -> list[str]:
        """The ids of what passed a node, newest first; of one recipient, or of all."""
        return [
            office.name(at)
            for at in range(number, len(office.PASSED), len(self.nodes))
            if not person or any(to.startswith(person) for to in office.TO[at % 3])
        ]


def states(place: Path, template: Path, number: int) -> list[Path]:
    """The state directories of nodes: message n of the usual history passed node n mod number."""
    made = []
    for at in range(number):
        state = Path(shutil.copytree(template, place / f"node{at}"))
        for file in state.glob(f"{HISTORY_FILE}*"):
            file.unlink()
        with opened(state) as spam_filter:
            rows = [
                office.passed(spam_filter, n, office.PASSED[n][1], subject=f"Subject {n}")
                for n in range(at, len(office.PASSED), number)
            ]
        office.remember(state, rows)
        made.append(state)
    return made


@contextmanager
def cluster(
    settings: Sequence[Settings], burn: Callable[[str], bool] = lambda _: True
) -> Iterator[Cluster]:
    """Run a node for each settings. burn: stands for the courier."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in settings]
    key = peer_key(load_key(settings[0].state / KEY_FILE, create=False))
    peers = [
        PeerNode(f"id{at}", f"mx{at}", f"http://127.0.0.1:{one.getsockname()[1]}")
        for at, one in enumerate(listening)
    ]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(_node(one, door, peers, at, key, burn))
            for at, (one, door) in enumerate(zip(settings, listening, strict=True))
        ]
        yield Cluster(nodes, peers, key)


@contextmanager
def _node(
    settings: Settings,
    listening: socket.socket,
    peers: list[PeerNode],
    at: int,
    key: bytes,
    burn: Callable[[str], bool],
) -> Iterator[Served]:
    client = PeerClient(key, peers[at].node, lambda: peers, None)
    served = Served(settings.state, listening.getsockname()[1], None, Monitor())

    @asynccontextmanager
    async def app(store: CredentialStore) -> AsyncIterator[ASGIApp]:
        served.service = service = NodeService(settings, lambda: None, client)
        store.key = bytes(32)
        door = PeerDoor(PeerGate(key, peers[at].node), service, burn)
        try:
            yield create_app(
                Web(HostPort("127.0.0.1", 1)),
                settings.state / "spool",
                service,
                store,
                served.monitor,
                peers=door,
            )
        finally:
            await service.close()

    with running(served, listening, app):
        yield served


@contextmanager
def silent() -> Iterator[tuple[PeerNode, threading.Event]]:
    """A node that takes connections and never answers; and whether one of them was closed."""
    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        held: list[socket.socket] = []

        def work() -> None:
            while True:
                try:
                    connection, _ = door.accept()
                except OSError:
                    return
                held.append(connection)
                while connection.recv(65536):
                    pass
                closed.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        node = PeerNode("silent", "mx-silent", f"http://127.0.0.1:{door.getsockname()[1]}")
        try:
            yield node, closed
        finally:
            door.shutdown(socket.SHUT_RDWR)
            for connection in held:  # a client that gave up while it connected closes late
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
            for connection in held:
                connection.close()
