"""The cost of delivery: messages of 5 kB over pooled sessions to smtp-sink, in wall-clock time and
in our processor time.

    python -m tests.bench.bench_relay [messages] [connections]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from spamguard.config.options import Endpoint, Hop
from spamguard.delivery.smtp import SmtpNextHop
from spamguard.smtp.envelope import Client, EsmtpParameter, Recipient, Sender
from spamguard.storage import Spool, SpoolView
from tests.support.sinks import smtp_sink

_HEAD = b"X-Spam-Flag: NO\r\nX-Spam-Status: No, score=-1.2 required=5.0 tests=SPAMGUARD_HAM\r\n"
_CLIENT = Client("192.0.2.7", "client.example", "4711", "client.example", "ESMTP", source="REMOTE")


async def hand_on(hop: SmtpNextHop, content: SpoolView, count: int) -> None:
    sender = Sender(
        "from@sender.example", (EsmtpParameter("SIZE", "5000"), EsmtpParameter("BODY", "8BITMIME"))
    )
    for _ in range(count):
        transaction = hop.transaction(_CLIENT)
        assert (await transaction.mail(sender)).is_positive
        assert (await transaction.recipient(Recipient("to@recipient.example"))).is_positive
        assert (await transaction.send(content))[0].is_positive
        await transaction.end()


async def measure(endpoint: Endpoint, messages: int, connections: int) -> tuple[float, float]:
    """Seconds on the wall and of the processor, for each message."""
    hop = SmtpNextHop(Hop(endpoint), "bench.example")
    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(Path(directory))
        spool.write(
            b"Subject: test\r\n\r\n"
            + b"0123456789 and so on until the line is full, as lines are\r\n" * 86
        )
        content = SpoolView(_HEAD, spool, 0)
        await hand_on(hop, content, 10)
        wall, processor = time.perf_counter(), time.process_time()
        await asyncio.gather(
            *[hand_on(hop, content, messages // connections) for _ in range(connections)]
        )
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    await hop.close()
    return wall / messages, processor / messages


def main(messages: int = 5000, connections: int = 1) -> None:
    with smtp_sink() as endpoint:
        wall, processor = asyncio.run(measure(endpoint, messages, connections))
    print(
        f"{messages} messages, {connections} connections: {wall * 1e6:.0f} µs each, "
        f"{processor * 1e6:.0f} µs of our processor"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
