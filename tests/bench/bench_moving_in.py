"""The worth of another filter's word list: 1-ROCA with and without it, after some lessons.

    python tests/bench/bench_moving_in.py CORPUS/index [OTHER/index]

The first half of the corpus is taught to bogofilter, whose list is imported into a new filter; of
the second half the first 0, 10, 30, 100 and 500 messages are taught, and the messages after the
first 500 are judged. OTHER: a corpus whose whole list is imported as well, as one of another site.
Messages should be free of the verdicts of other filters.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from spamguard import keys
from spamguard.engine.filter import Filter
from spamguard.engine.measures import roca
from spamguard.engine.prepare import Example, ExampleReader
from spamguard.learning import importers
from spamguard.learning.importers import WordListFormat

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.rivals import KEY
from tests.bench.streams import Mail, labelled

LESSONS = (0, 10, 30, 100, 500)
KEYS = (KEY, b"another key for the same trials!")


def word_list(messages: list[Mail]) -> bytes:
    """The word list of bogofilter after these lessons."""
    with tempfile.TemporaryDirectory() as place:
        for label, flag in (("spam", "-s"), ("ham", "-n")):
            names = "".join(f"{path}\n" for kind, path in messages if kind == label)
            subprocess.run(
                ["bogofilter", "-d", place, flag, "-b"], input=names, text=True, check=True
            )
        return subprocess.run(
            ["bogoutil", "-d", f"{place}/wordlist.db"], capture_output=True, check=True
        ).stdout


def curve(messages: list[Mail], known: bytes, key: bytes) -> list[float]:
    """1-ROCA in percent after so many LESSONS."""
    with tempfile.TemporaryDirectory() as place:
        keys.store_key(Path(place) / "key", key)
        with Filter.open(place, _durable=False) as subject:
            if known:
                odds = importers.compute_word_odds(
                    importers.read_entries(WordListFormat.BOGOFILTER, None, io.BytesIO(known)),
                    "bogofilter",
                    key,
                )
                importers.import_word_list(subject, "old", *odds)
            preparer = ExampleReader(key)
            ready = [(label, preparer.read_example(path.read_bytes())) for label, path in messages]
            return [
                _after(subject, ready, first, last)
                for first, last in zip((0, *LESSONS), LESSONS, strict=False)
            ]


def _after(subject: Filter, ready: list[tuple[str, Example]], first: int, last: int) -> float:
    for label, teaching in ready[first:last]:
        subject.learn_examples([teaching], label)
        subject.settle_if_due()
    subject.settle()
    test = ready[LESSONS[-1] :]
    return roca(
        [label == "spam" for label, _ in test],
        [subject.judge_features(one.features).log_odds for _, one in test],
    )


def main() -> None:
    """Print one line for each list and key."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("index", type=Path, metavar="CORPUS/index", help="TREC index")
    parser.add_argument(
        "others",
        type=Path,
        nargs="*",
        metavar="OTHER/index",
        help="whose whole lists are imported as well",
    )
    options = parser.parse_args()
    messages = labelled(options.index)
    half = len(messages) // 2
    lists = {"nothing": b"", "own first half": word_list(messages[:half])}
    lists |= {f"somebody else's ({other})": word_list(labelled(other)) for other in options.others}
    print(f"{'imported':40} " + "".join(f"{number:>9}" for number in LESSONS))
    for name, known in lists.items():
        for key in KEYS:
            print(
                f"{name[-40:]:40} "
                + "".join(f"{value:9.3f}" for value in curve(messages[half:], known, key)),
                flush=True,
            )


if __name__ == "__main__":
    main()
