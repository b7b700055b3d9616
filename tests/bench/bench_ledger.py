"""Rates of the ledger: appending, folding, rebuilding; sizes and rates of the codec. Run as a
script, not collected.

python tests/bench/bench_ledger.py [--directory DIR] [--events N]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from spamguard.ledger import codec
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.ledger.votes import NewVote
from spamguard.records import Features


def features(rng: np.random.Generator, tokens: int) -> Features:
    hashes = np.unique(rng.integers(0, 2**32, tokens, dtype=np.uint32))
    return Features(
        hashes, rng.integers(0, 9, 12, dtype=np.uint8), rng.integers(-999, 999, 10, dtype=np.int16)
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def entropy_bytes(tokens: int) -> float:
    """log2 of "2**32 choose tokens", in bytes."""
    return (
        (math.lgamma(2**32 + 1) - math.lgamma(tokens + 1) - math.lgamma(2**32 - tokens + 1))
        / math.log(2)
        / 8
    )


def bench_codec(rng: np.random.Generator) -> None:
    print("tokens   bytes  /entropy  zlib-6   pack µs  unpack µs (in a batch of 256)  check µs")
    for tokens in (300, 600, 1200, 2500):
        samples = [features(rng, tokens) for _ in range(256)]
        packed = [codec.pack(sample) for sample in samples]
        deltas = zlib.compress(np.diff(samples[0].tokens, prepend=np.uint32(0)).tobytes())
        rates = [
            min(seconds(work) for _ in range(5)) / 256 * 1e6
            for work in (
                lambda samples=samples: [codec.pack(sample) for sample in samples],
                lambda packed=packed: codec.unpack_tokens(packed),
                lambda packed=packed: [codec.check_receipt(one) for one in packed],
            )
        ]
        size = len(packed[0])
        print(
            (
                f"{tokens:6} {size:7} {size / entropy_bytes(tokens):9.3f} {len(deltas):7} "
                f"{rates[0]:9.1f} {rates[1]:10.1f} {rates[2]:29.1f}"
            ),
            flush=True,
        )


def new_votes(count: int, packed: bytes) -> list[NewVote]:
    order = np.random.default_rng(1).permutation(count).tolist()  # digests come in no order
    return [
        NewVote(index.to_bytes(4) * 8, "", ("spam", "ham")[index % 2], packed, b"", "bench", 0, 1)
        for index in order
    ]


def bench_append(directory: Path, votes: list[NewVote], batch: int, *, durable: bool) -> Path:
    path = directory / f"append-{batch}-{durable}.ledger"
    with SqliteLedger.open(path, "key", durable=durable) as ledger:
        took = seconds(
            lambda: [ledger.append(votes[at : at + batch]) for at in range(0, len(votes), batch)]
        )
    size = path.stat().st_size / len(votes)
    print(
        (
            f"append, {batch:3} per transaction, durable={durable}: {len(votes) / took:9,.0f} "
            f"receipts/s, {size:,.0f} bytes each"
        ),
        flush=True,
    )
    return path


def bench_reading(path: Path) -> None:
    with SqliteLedger.open(path, "key", durable=False) as ledger:
        events = ledger.last_seq()
        walks = {
            "changes_after": lambda: sum(1 for _ in ledger.changes_after(0)),
            "changes_after, extractor": lambda: sum(
                1 for _ in ledger.changes_after(0, extractor=1)
            ),
            "lessons": lambda: sum(1 for _ in ledger.lessons()),
            "lesson_counts": ledger.lesson_counts,
            "votes": lambda: sum(1 for _ in ledger.all_votes()),
            "compact": lambda: ledger.compact(events),
        }
        for name, walk in walks.items():
            print(f"{name:26} {seconds(walk) / events * 1e6:6.2f} µs/event", flush=True)
        print(
            f"{'grown':26} "
            f"{seconds(lambda: [ledger.has_grown() for _ in range(10_000)]) / 10_000 * 1e6:6.2f} "
            "µs/call"
        )


def bench_crowd(directory: Path, packed: bytes, mails: int = 200, crowd: int = 300) -> None:
    """Mail that reaches many users who all vote, one after the other."""
    digests = [index.to_bytes(4) * 4 for index in range(mails)]
    with SqliteLedger.open(directory / "crowd.ledger", "key", durable=False) as ledger:
        for user in range(crowd):
            label = ("spam", "ham")[user % 3 == 0]
            ledger.append(
                [
                    NewVote(digest, str(user), label, packed, b"", "bench", 0, 1)
                    for digest in digests
                ]
            )
        events = ledger.last_seq()
        took = seconds(lambda: sum(1 for _ in ledger.changes_after(0)))
        last = seconds(lambda: list(ledger.changes_after(events - 1)))
    print(
        f"{mails} messages, {crowd} voters on each: {took / events * 1e6:.1f} µs/event, the "
        f"last alone {last * 1e6:.0f} µs"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--directory",
        type=Path,
        help="where the ledgers are made (default: the system's temporary directory)",
    )
    parser.add_argument("--events", type=int, default=20_000)
    arguments = parser.parse_args()
    rng = np.random.default_rng(1)
    bench_codec(rng)
    packed = codec.pack(features(rng, 1290))
    print(f"receipts of {len(packed)} bytes")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        bench_append(directory, new_votes(1000, packed), 1, durable=True)
        bench_append(directory, new_votes(arguments.events // 4, packed), 1, durable=False)
        bench_reading(
            bench_append(directory, new_votes(arguments.events, packed), 64, durable=False)
        )
        bench_crowd(directory, packed)


if __name__ == "__main__":
    main()
