"""The cost of personal verdicts: a scan without users, for users without votes, and for 1 and 50
users with votes. Run as a script.

    python -m tests.bench.bench_personal [--votes N] [--messages N]

On made-up mail. Each vote is on a message of its own; scans of each kind are timed in turns, and
the median counts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from corpora.synthetic import generate
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader

PEOPLE = [f"user{number}" for number in range(50)]
SILENT = [f"nobody{number}" for number in range(50)]
LESSONS = 2000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--votes", type=int, default=50, help="of each user (default: 50)")
    parser.add_argument("--messages", type=int, default=200, help="to judge (default: 200)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        Filter.open(Path(directory) / "state", _durable=False) as spam_filter,
    ):
        teach(spam_filter, options.votes)
        measure(spam_filter, [raw for _, raw in generate(options.messages, 11)])


def teach(spam_filter: Filter, votes: int) -> None:
    """Lessons of all, then every user's votes."""
    preparer = ExampleReader(spam_filter.key)
    mail = list(generate(LESSONS, 3))
    for user, some in (
        ("", mail),
        *(
            (user, mail[number * votes : (number + 1) * votes])
            for number, user in enumerate(PEOPLE)
        ),
    ):
        for wanted in ("ham", "spam"):
            spam_filter.learn_examples(
                preparer.read_examples([raw for label, raw in some if label == wanted]),
                wanted,
                user=user,
            )
    spam_filter.settle()


def measure(spam_filter: Filter, mail: list[bytes]) -> None:
    """The first scan reads the users' votes; later ones have them in memory."""
    kinds = {
        "nobody": [],
        "50 who have said nothing": SILENT,
        "1 user": PEOPLE[:1],
        "10 users": PEOPLE[:10],
        "50 users": PEOPLE,
    }
    for name, users in kinds.items():
        print(f"first scan for {name:26}{seconds(spam_filter, mail[0], users) * 1e3:8.1f} ms")
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for raw in mail:
        for name, users in kinds.items():
            taken[name].append(seconds(spam_filter, raw, users))
    for name, users in kinds.items():
        each = (median(taken[name]) - median(taken["nobody"])) / max(len(users), 1) * 1e6
        print(f"scan for {name:32}{median(taken[name]) * 1e6:8.0f} µs{each:10.1f} µs for each user")


def seconds(spam_filter: Filter, raw: bytes, users: list[str]) -> float:
    """Processor time of one scan."""
    start = time.process_time()
    spam_filter.scan(raw, users=users)
    return time.process_time() - start


if __name__ == "__main__":
    main()
