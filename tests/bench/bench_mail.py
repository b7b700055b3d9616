"""Time per message of reading mail, step by step. Run as a script, not collected.

    python -m tests.bench.bench_mail [--corpus INDEX] [--messages N] [--repeats N]

On made-up mail, and on that of a corpus. Each step is timed alone over all messages, so
its data are warm: the sum of the steps is less than the whole. The least of several runs counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from corpora.synthetic import generate
from spamguard.mail import content, headers
from spamguard.mail.content import compute_numbers, compute_traits
from spamguard.mail.extract import FeatureExtractor, TokenHasher
from spamguard.mail.message import message_digest
from spamguard.mail.mime import DEFAULT_LIMITS, parse_message
from tests.bench.streams import labelled

KEY = b"a key of this installation"


def microseconds(step: Callable[[Any], object], items: Sequence[Any], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        for item in items:
            step(item)
        best = min(best, time.process_time() - start)
    return best / len(items) * 1e6


def measure(title: str, raws: list[bytes], repeats: int) -> None:
    extractor, hasher = FeatureExtractor(KEY), TokenHasher(KEY)
    messages = [parse_message(raw, DEFAULT_LIMITS) for raw in raws]
    contents = [content.read_content(raw, DEFAULT_LIMITS) for raw in raws]
    steps: list[tuple[str, Callable[[Any], object], Sequence[Any]]] = [
        ("split", lambda raw: parse_message(raw, DEFAULT_LIMITS), raws),
        (
            "header fields",
            lambda message: headers.field_sections(headers.evidence_fields(message.fields)),
            messages,
        ),
        (
            "content, everything (with split)",
            lambda raw: content.read_content(raw, DEFAULT_LIMITS),
            raws,
        ),
        ("token hashes", lambda found: hasher.hash_tokens(found.sections), contents),
        ("traits", compute_traits, contents),
        ("numbers", lambda found: compute_numbers(found, 5000), contents),
        ("identity", lambda raw: message_digest(raw, KEY), raws),
        ("features, the whole way", extractor.features, raws),
    ]
    tokens = sum(len(extractor.features(raw).tokens) for raw in raws) / len(raws)
    print(
        f"{title}: {len(raws)} messages, mean {sum(map(len, raws)) / len(raws):,.0f} bytes, "
        f"{tokens:,.0f} tokens; µs per message"
    )
    for name, step, items in steps:
        print(f"  {name:34}{microseconds(step, items, repeats):8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", metavar="INDEX", help="TREC index of prepared mail")
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    measure("made-up mail", [raw for _, raw in generate(options.messages, 1)], options.repeats)
    if options.corpus:
        measure(
            options.corpus,
            [path.read_bytes() for _, path in labelled(options.corpus)[: options.messages]],
            options.repeats,
        )


if __name__ == "__main__":
    main()
