"""Throughput of the proxy beside a bare pass-through with the same next hop, in one run.

    python tests/bench/bench_proxy.py [--messages 3000] [--connections 10] [--rounds 3]

Needs Postfix's smtp-source and smtp-sink (Debian: postfix). The bare pass-through is aiosmtpd with
a handler that sends every message on over one kept connection for each client, without judging, in
one process. Compare ratios, not rates. On a shared machine the processor time of a message tells
more than either: that of all processes of the server, without smtp-source and smtp-sink.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import smtplib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from aiosmtpd.smtp import SMTP

from tests.e2e import daemon
from tests.e2e.ports import free_port, wait_for_port

SIZES = (5_000, 50_000)
LARGE = 20_000_000
_HISTORY_SECONDS = 0.6  # until it is written, which is beside the mail's way


class PassThrough:
    """A handler of aiosmtpd that returns the replies of the next hop."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd's name
        """Send one message on."""
        reader, writer = session.hop = getattr(session, "hop", None) or await self._open()
        commands = [
            f"MAIL FROM:<{envelope.mail_from}>",
            *(f"RCPT TO:<{to}>" for to in envelope.rcpt_tos),
            "DATA",
        ]
        for command in commands:
            writer.write(command.encode() + b"\r\n")
            await self._reply(reader)
        writer.write(envelope.content.replace(b"\r\n.", b"\r\n..") + b".\r\n")
        await writer.drain()
        return (await self._reply(reader)).decode().strip()

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  aiosmtpd's name
        """Close the connection to the next hop; smtp-sink takes 256 of them at most."""
        if hop := getattr(session, "hop", None):
            hop[1].close()
        return "221 2.0.0 Bye"

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        await self._reply(reader)
        writer.write(b"EHLO bench.example\r\n")
        await self._reply(reader)
        return reader, writer

    async def _reply(self, reader: asyncio.StreamReader) -> bytes:
        while (line := await reader.readline())[3:4] == b"-":
            pass
        return line


async def pass_through(port: int, hop: int) -> None:
    """The bare pass-through, for ever."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(PassThrough(hop), data_size_limit=None, hostname="bench.example"),
        "127.0.0.1",
        port,
    )
    await server.serve_forever()


@contextmanager
def process(line: list[str], port: int, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A server of another project."""
    running = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **settings
    )
    try:
        wait_for_port(port)
        yield running
    finally:
        running.terminate()
        running.wait(20)


def rate(port: int, messages: int, size: int, connections: int) -> float:
    """Messages per second that smtp-source sends."""
    line = [
        "smtp-source",
        "-s",
        str(connections),
        "-m",
        str(messages),
        "-l",
        str(size),
        "-f",
        "a@example.org",
        "-t",
        "b@example.net",
    ]
    start = time.perf_counter()
    subprocess.run([*line, f"127.0.0.1:{port}"], check=True, timeout=600)
    return messages / (time.perf_counter() - start)


def cost(port: int, pid: int, messages: int, size: int, connections: int) -> tuple[float, float]:
    """Mail through one server; also the milliseconds of processor time that a message costs it."""
    before = _processor_seconds(pid)
    found = rate(port, messages, size, connections)
    time.sleep(_HISTORY_SECONDS)
    return found, 1000 * (_processor_seconds(pid) - before) / messages


def _processor_seconds(root: int) -> float:
    """Of a process and all its descendants (proc_pid_schedstat: nanoseconds, of each thread)."""
    tasks = [
        task for pid in [root, *_descendants(root)] for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def latencies(port: int, messages: int, raw: bytes) -> list[float]:
    """Seconds that each of some messages takes, one after another over one connection."""
    found = []
    with smtplib.SMTP("127.0.0.1", port) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(messages):
            start = time.perf_counter()
            client.sendmail("a@example.org", ["b@example.net"], raw)
            found.append(time.perf_counter() - start)
    return sorted(found)


def memory(root: int) -> tuple[float, float]:
    """Resident and proportional megabytes of a process and all its descendants."""
    resident = proportional = 0
    for pid in [root, *_descendants(root)]:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        values = {
            line.split(":")[0]: int(line.split()[1])
            for line in text.splitlines()[1:]
            if line.endswith("kB")
        }
        resident += values["Rss"]
        proportional += values["Pss"]
    return resident / 1024, proportional / 1024


def _descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return children + [below for child in children for below in _descendants(child)]


def large_messages(port: int, pid: int) -> tuple[float, float]:
    """Most memory while ten messages of 20 MB pass at once."""
    line = [
        "smtp-source",
        "-s",
        "10",
        "-m",
        "20",
        "-l",
        str(LARGE),
        "-f",
        "a@example.org",
        "-t",
        "b@example.net",
        f"127.0.0.1:{port}",
    ]
    most = (0.0, 0.0)
    with subprocess.Popen(line) as source:
        while source.poll() is None:
            try:
                now = memory(pid)
            except OSError:  # a process has just ended
                continue
            most = max(most[0], now[0]), max(most[1], now[1])
            time.sleep(0.02)
    return most


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--pass-through", nargs=2, type=int, help=argparse.SUPPRESS
    )  # how this file starts itself
    options = parser.parse_args()
    if options.pass_through:
        asyncio.run(pass_through(*options.pass_through))
        return
    with tempfile.TemporaryDirectory() as place:
        measure(options, Path(place))


def measure(options: argparse.Namespace, place: Path) -> None:
    """Measure all servers side by side."""
    sink, bare, door = free_port(), free_port(), free_port()
    state = daemon.taught(place / "state", messages=400)
    ours = daemon.one_listener(state, door, f"smtp://127.0.0.1:{sink}")
    drop = {"user": "nobody"} if os.getuid() == 0 else {}
    with (
        process(["smtp-sink", f"127.0.0.1:{sink}", "1000"], sink, **drop),
        process(
            [sys.executable, __file__, "--pass-through", str(bare), str(sink)], bare
        ) as passing,
        daemon.running(state, *ours, port=door) as running,
    ):
        rate(door, 200, 5000, options.connections)
        for size in SIZES:
            messages = options.messages if size < 10_000 else options.messages // 3
            ratios = []
            for _ in range(options.rounds):
                servers = (bare, passing.pid), (door, running.process.pid)
                (bare_rate, bare_cost), (our_rate, our_cost) = [
                    cost(*server, messages, size, options.connections) for server in servers
                ]
                ratios.append(our_rate / bare_rate)
                rates = f"bare {bare_rate:6.0f}/s, spamguard {our_rate:6.0f}/s, {ratios[-1]:.2f} x"
                costs = f"processor time bare {bare_cost:.2f} ms, spamguard {our_cost:.2f} ms"
                print(f"{size:6,} bytes, {options.connections} clients: {rates}; {costs}")
            print(f"{size:6,} bytes: median {statistics.median(ratios):.2f} x")
        raw = daemon.unseen("ham", 1)[0]
        for name, port in (("bare", bare), ("spamguard", door)):
            found = latencies(port, 1000, raw)
            print(
                f"one connection, {name:9}: median {1000 * statistics.median(found):.2f} ms, "
                f"99th percentile {1000 * found[990]:.2f} ms"
            )
        print(
            "memory of all processes, at rest: {:.0f} MB resident, {:.0f} MB proportional".format(
                *memory(running.process.pid)
            )
        )
        print(
            (
                "  with ten messages of 20 MB at once: {:.0f} MB resident, {:.0f} MB proportional"
            ).format(*large_messages(door, running.process.pid))
        )


if __name__ == "__main__":
    main()
