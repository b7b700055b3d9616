"""How much a few lessons are worth, beside every peer.

    python tests/bench/bench_learning.py --corpus INDEX --scores DIR
        [--peers NAMES] [--natural] [--picture FILE.svg]

A filter is taught 10, 20, 50, 100, 200 and 500 messages of each class, and after each of these
judges, frozen, messages that came after all taught ones. There are several draws: the stream is
split at places between the one where 500 of each class have arrived and the one where enough are
left; lessons are drawn from before the place, and the messages after it are judged. With --natural
the lessons are the first 20, 40 and so on as they come, where ham and spam of the corpus are laid
side by side so that both run out together. Figures are means over the draws, which overlap: they
say less than as many independent ones would. Files of scores stay in DIR; scores of peers are read
from there the next time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spamguard.engine.evaluate import ScoredMessage
from spamguard.engine.measures import roca, sm_at

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import courses, pictures, rivals, streams
from tests.bench.contest import Rival
from tests.bench.courses import OURS
from tests.bench.streams import Draw, Mail

SIZES = (10, 20, 50, 100, 200, 500)  # of each class
DRAWS = 6
JUDGED = 2000
Measure = Callable[[NDArray[np.bool_], NDArray[np.float64]], float]
Run = tuple[NDArray[np.bool_], NDArray[np.float64]]
Curves = dict[str, NDArray[np.float64]]


def main() -> None:
    """Run the draws and print the tables."""
    options = arguments()
    mail = streams.labelled(options.corpus)
    draws = natural_draws(mail) if options.natural else balanced_draws(mail)
    stream = f"{Path(options.corpus).parent.name}-{'natural' if options.natural else 'balanced'}"
    for number, draw in enumerate(draws):
        print(
            f"draw {number}: {sum(message.label == 'spam' for message in draw.judged)} spam of "
            f"{len(draw.judged)} judged"
        )
    names = rivals.available([OURS, *(name for name in options.peers.split(",") if name)])
    runs = {name: runs_of(options.scores, stream, name, draws) for name in names}
    areas = {name: measured(some, roca) for name, some in runs.items()}
    table("1-ROCA %, mean of the draws (draws of which ours is the better one)", areas, 2)
    table(
        "sm % at hm 0.5 %, mean of the draws (ours the better one)",
        {name: measured(some, missed) for name, some in runs.items()},
        1,
    )
    if options.picture:
        lines = {
            name: list(zip(SIZES, curve.mean(axis=0).tolist(), strict=True))
            for name, curve in areas.items()
        }
        axes = pictures.Axes(
            "lessons of each class" if not options.natural else "half of the lessons",
            "1-ROCA %",
            log_x=True,
            log_y=True,
        )
        options.picture.write_text(pictures.lines(axes, lines), encoding="utf-8")


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", required=True, metavar="INDEX", help="TREC index of prepared mail"
    )
    parser.add_argument(
        "--scores", required=True, type=Path, metavar="DIR", help="where files of scores are kept"
    )
    parser.add_argument(
        "--peers",
        default=",".join(name for name in rivals.RIVALS if name != OURS),
        metavar="NAMES",
        help="with commas",
    )
    parser.add_argument("--natural", action="store_true", help="lessons as they come")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    return parser.parse_args()


def balanced_draws(mail: Sequence[Mail]) -> list[Draw]:
    """Lessons of each class in turns, from before each split."""
    places = streams.splits(mail, SIZES[-1], JUDGED, DRAWS)
    return [
        streams.balanced(mail, place, SIZES[-1], JUDGED, seed) for seed, place in enumerate(places)
    ]


def natural_draws(mail: Sequence[Mail]) -> list[Draw]:
    """Lessons as they come, from starts at equal distances."""
    mixed, needed = streams.side_by_side(mail), 2 * SIZES[-1] + JUDGED
    if len(mixed) < needed:
        raise SystemExit(f"too little mail: {needed} messages are needed")
    starts = [(len(mixed) - needed) * number // (DRAWS - 1) for number in range(DRAWS)]
    return [streams.natural(mixed, start, 2 * SIZES[-1], JUDGED) for start in starts]


def taught_by_and_by(rival: Rival, draw: Draw) -> list[ScoredMessage]:
    """Scores of all judged messages after each of the SIZES, one after the other."""
    rows: list[ScoredMessage] = []
    taught = 0
    for size in SIZES:
        for label, path in draw.lessons[taught : 2 * size]:
            rival.teach(path, label)
        taught = 2 * size
        rival.bulk_taught()
        rows += courses.frozen(rival, draw.judged)
    return rows


def runs_of(directory: Path, stream: str, name: str, draws: Sequence[Draw]) -> list[Run]:
    """Truth and scores in each draw, each of shape (sizes, judged)."""
    found = []
    for number, draw in enumerate(draws):
        rows = courses.kept(
            directory,
            f"{stream}-{number}",
            name,
            "learning",
            lambda rival, draw=draw: taught_by_and_by(rival, draw),
        )
        gold, score = (
            np.array([row.gold == "spam" for row in rows]),
            np.array([row.score for row in rows]),
        )
        found.append((gold.reshape(len(SIZES), -1), score.reshape(len(SIZES), -1)))
    return found


def measured(runs: Sequence[Run], measure: Measure) -> NDArray[np.float64]:
    """A measure of each draw after each size, shape (draws, sizes)."""
    return np.array(
        [[measure(*pair) for pair in zip(gold, score, strict=True)] for gold, score in runs]
    )


def missed(gold: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """sm % at hm 0.5 %."""
    return sm_at(gold, score, 0.005)


def table(title: str, found: Curves, digits: int) -> None:
    """A line for each filter, a column for each size."""
    print(f"\n{title}\n\n| filter | {' | '.join(map(str, SIZES))} |\n|---|{'---|' * len(SIZES)}")
    for name, curve in found.items():
        better = (found[OURS] < curve).sum(axis=0)
        cells = [
            f"{value:.{digits}f}" + ("" if name == OURS else f" ({won})")
            for value, won in zip(curve.mean(axis=0), better, strict=True)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
