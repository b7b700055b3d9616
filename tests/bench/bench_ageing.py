"""Whether `keep` bounds what grows with teaching: ledger, tables, and the time of settling.

    python tests/bench/bench_ageing.py [--lessons N] [--keep N] [--days N]

So many lessons of made-up mail are taught within so many days, by the clock of the votes, to a
filter with `keep`, which ages and settles as the daemon does. Another filter takes all of the same
votes, and is settled once at the end. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from corpora import synthetic
from spamguard import keys
from spamguard.config.values import KeptLessons
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import Example, ExampleReader
from spamguard.learning.undo import age_votes
from spamguard.ledger.votes import NewVote
from spamguard.storage import batches

KEY = b"the key of both of these filters"
START = 1_700_000_000  # seconds since 1970
BATCH = 100
ROWS = 10  # of the table


class Ageing:
    """A filter with `keep`, and what its last ageing and settling took."""

    def __init__(self, place: Path, kept: KeptLessons) -> None:
        self.filter = open_filter(place)
        self._kept = kept
        self.settlings = self.aged = 0
        self.settle_seconds = self.age_seconds = 0.0

    def teach(self, lessons: list[tuple[str, Example]], now: int) -> list[NewVote]:
        votes = [
            vote._replace(time=now)
            for label in ("ham", "spam")
            for vote in self.filter.make_votes(
                [example for each, example in lessons if each == label], label
            )
        ]
        self.filter.cast_votes(votes)
        start = time.process_time()
        if aged := age_votes(self.filter, self._kept, now):
            self.age_seconds = time.process_time() - start
            self.aged += aged
        if self.filter.is_settling_due():
            self.settle_seconds = settle(self.filter)
            self.settlings += 1
        return votes


def open_filter(place: Path) -> Filter:
    place.mkdir()
    keys.store_key(place / "key", KEY)
    return Filter.open(place, _durable=False)


def settle(spam_filter: Filter) -> float:
    """Settle; the seconds it took."""
    start = time.process_time()
    spam_filter.settle()
    return time.process_time() - start


def sizes(spam_filter: Filter) -> list[str]:
    """Events, and MB of ledger and tables."""
    ledger, status = spam_filter.ledger, spam_filter.status()
    events = sum(1 for _ in ledger.all_votes())
    return [
        f"{events:,}",
        *(f"{size / 1e6:.0f}" for size in (ledger.file_bytes(), status.tables_bytes)),
    ]


def main() -> None:
    """Teach, and print a row now and then."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lessons", type=int, default=100_000, metavar="N")
    parser.add_argument("--keep", type=int, default=20_000, metavar="N")
    parser.add_argument("--days", type=int, default=400, metavar="N")
    options = parser.parse_args()
    names = "taught, ledger MB (all), in force, aged (s), settled (s), events, ledger MB, tables MB"
    print(f"| {names.replace(', ', ' | ')} |")
    print(f"|{'---|' * 8}")
    with tempfile.TemporaryDirectory(prefix="ageing-") as place:
        ageing = Ageing(Path(place, "keep"), KeptLessons(number=options.keep))
        everything, reader, taught = open_filter(Path(place, "all")), ExampleReader(KEY), 0
        for batch in batches(synthetic.generate(options.lessons, 1), BATCH):
            taught += len(batch)
            now = START + options.days * 86_400 * taught // options.lessons
            examples = reader.read_examples([raw for _, raw in batch])
            lessons = [(label, one) for (label, _), one in zip(batch, examples, strict=True)]
            everything.ledger.append(ageing.teach(lessons, now))
            if taught * ROWS // options.lessons != (taught - BATCH) * ROWS // options.lessons:
                cells = [
                    f"{taught:,}",
                    f"{everything.ledger.file_bytes() / 1e6:.0f}",
                    f"{sum(ageing.filter.status().classes.values()):,}",
                    f"{ageing.aged:,}, the last in {ageing.age_seconds:.1f}",
                    f"{ageing.settlings}, the last in {ageing.settle_seconds:.1f}",
                    *sizes(ageing.filter),
                ]
                print(f"| {' | '.join(cells)} |", flush=True)
        seconds = settle(everything)
        print(f"all: settled in {seconds:.1f} s: {', '.join(sizes(everything))}")
        everything.close()
        ageing.filter.close()


if __name__ == "__main__":
    main()
