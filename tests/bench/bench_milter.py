"""The cost of a milter for a Postfix, beside the same Postfix without it, and with mail passing
through our proxy.

    python tests/bench/bench_milter.py [--messages 1000] [--connections 10] [--rounds 3]

Needs Postfix with its smtp-source. Mail is discarded behind the queue. Compare ratios, not rates:
machines are noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.bench_proxy import rate
from tests.e2e import daemon, postfix
from tests.unit.servers.milter.mta import Mta

THROWN_AWAY = "virtual_transport = discard\nvirtual_mailbox_maps = static:all\n"
SIZE = 5000
LARGE = 20_000_000


@contextmanager
def asked(
    place: Path, position: str | None
) -> Iterator[tuple[postfix.Postfix, daemon.Daemon | None]]:
    """A Postfix before the daemon; position None: alone."""
    with ExitStack() as stack:
        server = stack.enter_context(postfix.running(position, main=THROWN_AWAY))
        if position is None:
            yield server, None
            return
        state = daemon.taught(place / position, messages=400)
        file = place / f"{position}.yaml"
        hop = f"127.0.0.1:{server.back_port}"
        listener = (
            f"listeners: [{{listen: 'smtp://127.0.0.1:{server.filter_port}', position: "
            f"{position}, next_hop: 'smtp://{hop}'}}]\n"
        )
        scanner = f"scanners: [{{listen: 'milter://127.0.0.1:{server.filter_port}'}}]\n"
        file.write_text(scanner if position == "milter" else listener)
        yield (
            server,
            stack.enter_context(
                daemon.running(state, "--config", str(file), port=server.filter_port)
            ),
        )


async def by_hand(port: int, messages: int, connections: int, raw: bytes) -> float:
    """Messages per second of mail servers that only ask the milter."""
    left = iter(range(messages))

    async def server() -> None:
        mta = Mta(*await asyncio.open_connection("127.0.0.1", port))
        await mta.agree()
        await mta.client()
        for _ in left:
            answer, _ = await mta.message(raw)
            assert answer.reply == b"c"
        await mta.close()

    start = time.perf_counter()
    await asyncio.gather(*(server() for _ in range(connections)))
    return messages / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        positions = (None, "milter", "before-queue")
        servers = {
            position: stack.enter_context(asked(Path(place), position))[0] for position in positions
        }
        for _ in range(options.rounds):
            rates = {
                position: rate(
                    servers[position].smtp_port, options.messages, SIZE, options.connections
                )
                for position in positions
            }
            told = ", ".join(
                f"{position or 'nobody'} {found:5.0f}/s {found / rates[None]:.2f} x"
                for position, found in rates.items()
            )
            print(f"{SIZE:,} bytes, {options.connections} clients: {told}")
        for position in positions:
            start = time.perf_counter()
            rate(servers[position].smtp_port, 1, LARGE, 1)
            print(
                f"one message of 20 MB: {position or 'nobody'} {time.perf_counter() - start:.2f} s"
            )
        raw = daemon.unseen("ham", 1)[0]
        for _ in range(options.rounds):
            found = asyncio.run(
                by_hand(
                    servers["milter"].filter_port, 3 * options.messages, options.connections, raw
                )
            )
            print(f"the milter door alone, {len(raw):,} bytes: {found:5.0f}/s")


if __name__ == "__main__":
    main()
