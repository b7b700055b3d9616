"""Verdicts per second of the doors for rspamd's and SpamAssassin's clients, beside the SMTP door of
the same worker, which judges too, and beside a ping of the doors, which does not. One worker, real
processes, messages of about 5 kB.

    python tests/bench/bench_scanners.py [--requests 2000] [--connections 8] [--rounds 3]

Compare ratios, not rates: machines are noisy. The clients run in this process and take their share
of the machine. Postfix's smtp-source asks the SMTP door, with its smtp-sink behind (Debian:
postfix).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import bench_proxy
from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.support.sinks import smtp_sink

SIZE = 5_000


def messages() -> list[bytes]:
    """Messages of about that size."""
    padded = []
    for raw in daemon.unseen("ham", 30) + daemon.unseen("spam", 30):
        padded.append(
            raw + b"These are some more words of it.\r\n" * max(0, (SIZE - len(raw)) // 34)
        )
    return padded


async def _http(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> bytes:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def kept(port: int, requests: Iterator[bytes]) -> None:
    """One connection for all requests."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for request in requests:
        assert b" 200 " in (await _http(reader, writer, request))[:20]
    writer.close()


async def anew(port: int, requests: Iterator[bytes]) -> None:
    """A new connection for each request."""
    for request in requests:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        assert b" 200 " in answer[:20] or b" 0 " in answer[:20], answer
        writer.close()


async def rate(
    client: Callable[[int, Iterator[bytes]], Awaitable[None]],
    port: int,
    requests: list[bytes],
    clients: int,
) -> float:
    """Requests each second."""
    shared = iter(requests)
    begun = time.perf_counter()
    await asyncio.gather(*(client(port, shared) for _ in range(clients)))
    return len(requests) / (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    mail = messages()

    def of(form: Callable[[bytes], bytes]) -> list[bytes]:
        return [form(raw) for raw in itertools.islice(itertools.cycle(mail), options.requests)]

    check = of(
        lambda raw: (
            b"POST /checkv2 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
        )
    )
    spamc = of(lambda raw: b"CHECK SPAMC/1.5\r\nContent-length: %d\r\n\r\n" % len(raw) + raw)
    with tempfile.TemporaryDirectory() as place, smtp_sink() as hop:
        root, http, spamd, smtp = Path(place), free_port(), free_port(), free_port()
        file = root / "spamguard.yaml"
        scanners = (
            f"scanners:\n  - listen: rspamd://127.0.0.1:{http}\n"
            f"  - listen: spamd://127.0.0.1:{spamd}\n"
        )
        listener = (
            f"  - {{listen: 'smtp://127.0.0.1:{smtp}', position: before-queue, next_hop: "
            f"'smtp://127.0.0.1:{hop.port}'}}\n"
        )
        file.write_text(f"workers: 1\n{scanners}listeners:\n{listener}")
        with daemon.running(daemon.taught(root / "state"), "--config", str(file), port=http):
            cases = {
                "rspamd /checkv2, connections kept": (kept, http, check),
                "rspamd /checkv2, a connection each": (anew, http, check),
                "rspamd /ping, connections kept": (
                    kept,
                    http,
                    [b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"] * options.requests,
                ),
                "spamd CHECK": (anew, spamd, spamc),
                "spamd PING": (anew, spamd, [b"PING SPAMC/1.5\r\n\r\n"] * options.requests),
            }
            rates: dict[str, list[float]] = {
                name: [] for name in (*cases, "SMTP, judged and handed on")
            }
            for _ in range(options.rounds):
                rates["SMTP, judged and handed on"].append(
                    bench_proxy.rate(smtp, options.requests, SIZE, options.connections)
                )
                for name, (client, port, requests) in cases.items():
                    rates[name].append(
                        asyncio.run(rate(client, port, requests, options.connections))
                    )
    print(
        f"messages of {statistics.mean(map(len, mail)):,.0f} bytes, one worker, "
        f"{options.connections} clients; requests each second:"
    )
    for name, some in rates.items():
        print(f"  {name:<36} {statistics.median(some):>7,.0f}  ({min(some):,.0f}–{max(some):,.0f})")


if __name__ == "__main__":
    main()
