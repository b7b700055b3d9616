"""One daemon with a listener for each position, and scripted next hops, for tests of the proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e import daemon, tuned
from tests.e2e.peers import USUAL, Client, Hop
from tests.e2e.ports import free_port
from tests.support.waiting import PATIENCE

POSITIONS = ("before-queue", "after-queue", "standalone")
MESSAGE = b"Subject: hello\r\n\r\nsome text\r\n"


@dataclass
class ProxySite:
    """The daemon, its ports by name, and the next hops behind them."""

    running: daemon.Daemon
    ports: dict[str, int]
    hop: Hop
    each: Hop

    def client(self, name: str = "before-queue") -> Client:
        """A client past its EHLO."""
        return Client(self.ports[name]).hello(b"LHLO" if name.startswith("lmtp") else b"EHLO")

    def reset(self) -> ProxySite:
        """Let the next hops forget all sessions and give the usual replies."""
        for hop in (self.hop, self.each):
            hop.forget()
            hop.answers = dict(USUAL)
        return self


@contextmanager
def passing(directory: Path) -> Iterator[ProxySite]:
    """The daemon, while it runs."""
    state = daemon.taught(directory / "state", messages=60)
    hop, each = Hop(), Hop(each=True)
    ports = {name: free_port() for name in (*POSITIONS, "lmtp", "smtp-to-lmtp", "lmtp-to-smtp")}
    lines = ["workers: 1", "listeners:"]
    for name, port in ports.items():
        behind = {
            "lmtp": f"lmtp://127.0.0.1:{each.port}",
            "smtp-to-lmtp": f"lmtp://127.0.0.1:{each.port}",
        }
        target = behind.get(name, f"smtp://127.0.0.1:{hop.port}")
        lines += [
            f"  - listen: {'lmtp' if name.startswith('lmtp') else 'smtp'}://127.0.0.1:{port}",
            f"    position: {name if name in POSITIONS else 'before-queue'}",
            f"    next_hop: {target}",
        ]
    command = tuned.command(
        (0, "next_hop", {"command": 5.0, "data": 5.0}),
        (0, "limits", {"idle_commands": 5000}),
    )
    file = directory / "spamguard.yaml"
    file.write_text("\n".join(lines) + "\n")
    with (
        hop.serving(),
        each.serving(),
        daemon.running(
            state, "--config", str(file), port=ports["lmtp"], command=command
        ) as running,
    ):
        yield ProxySite(running, ports, hop, each)


def body(raw: bytes) -> bytes:
    """Of a message."""
    return raw.partition(b"\r\n\r\n")[2]


def heard(hop: Hop, count: int = 1, seconds: float = PATIENCE) -> list[bytes]:
    """The messages of the hop; waits until there are `count`."""
    until = time.monotonic() + seconds
    while len(hop.messages) < count and time.monotonic() < until:
        time.sleep(0.01)
    assert len(hop.messages) == count
    return hop.messages
