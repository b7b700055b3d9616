"""Accuracy beside every peer on the same mail, and what their probabilities are worth.

    python tests/bench/bench_peers.py --corpus INDEX --scores DIR
        [--peers NAMES] [--protocol corrections]
    python tests/bench/bench_peers.py --corpus INDEX --corpus OTHER --scores DIR --together

Online: every message is judged and then taught; with --protocol corrections only mistakes and
doubtful messages are taught. Files of scores stay in DIR; scores of peers are read from there the
next time, ours are always made again. Tables: measures; paired bootstrap of 1-ROCA, ours minus
theirs (below zero ours is better; only an interval without zero is evidence); calibration after the
first 1,000 messages, where scores of peers become probabilities by the best constant recalibration,
found with hindsight on the very messages that are measured. --together: the corpora as one stream,
side by side.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spamguard.engine import measures, policy
from spamguard.engine.evaluate import ScoredMessage

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import courses, recalibration, rivals, streams
from tests.bench.courses import OURS, roca_difference
from tests.bench.streams import Mail

START = 1000  # messages before calibration counts
Runs = dict[str, list[ScoredMessage]]


def main() -> None:
    """Run the filters and print the tables."""
    options = arguments()
    names = rivals.available([OURS, *(name for name in options.peers.split(",") if name)])
    for stream, mail in asked(options):
        corrections = options.protocol == "corrections"
        runs = {
            name: courses.course(options.scores, stream, name, mail, corrections=corrections)
            for name in names
        }
        print(f"\n# {stream}, {options.protocol}\n")
        areas(runs)
        beliefs({name: run[START:] for name, run in runs.items()})


def asked(options: argparse.Namespace) -> list[tuple[str, list[Mail]]]:
    """The streams by name."""
    corpora = [(Path(index).parent.name, streams.labelled(index)) for index in options.corpus]
    if options.together:
        corpora = [
            ("+".join(name for name, _ in corpora), streams.in_turns([mail for _, mail in corpora]))
        ]
    return corpora


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        required=True,
        action="append",
        metavar="INDEX",
        help="TREC index of prepared mail (may be given again)",
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
    parser.add_argument("--protocol", choices=("online", "corrections"), default="online")
    parser.add_argument("--together", action="store_true", help="the corpora as one stream")
    return parser.parse_args()


def columns(
    run: Sequence[ScoredMessage],
) -> tuple[NDArray[np.bool_], NDArray[np.float64], list[str]]:
    """Truth, scores and labels."""
    return (
        np.array([row.gold == "spam" for row in run]),
        np.array([row.score for row in run]),
        [row.label for row in run],
    )


def areas(runs: Runs) -> None:
    """Measures, and the gain of our filter."""
    print(
        "| filter | 1-ROCA % (95 %) | hm | sm | sm at hm 0.5 % | taught | ours minus theirs "
        "(95 %) |\n|---|---|---|---|---|---|---|"
    )
    for name, run in runs.items():
        measured = measures.measures(*columns(run))
        cells = [
            f"{measured.roca:.3f} ({measured.roca_low:.3f}–{measured.roca_high:.3f})",
            f"{measured.hm:.2f}",
            f"{measured.sm:.2f}",
        ]
        cells += [f"{measured.sm_at_hm_05:.2f}", f"{sum(row.trained for row in run):,}"]
        gain = roca_difference(runs[OURS], run)
        cells.append(
            "" if name == OURS else f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
        )
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def beliefs(runs: Runs) -> None:
    """Log-loss of ours as it is, and of all at their best recalibration; then the worth of the
    three labels.
    """
    print(
        f"\nafter the first {START:,}:\n\n| filter | log-loss | ECE | log-loss recalibrated "
        "| slope, offset, clip |\n|---|---|---|---|---|"
    )
    for name, run in runs.items():
        gold, score, _ = columns(run)
        best = recalibration.best_recalibration(gold, score)
        chance = 1 / (1 + np.exp(-score)) if name == OURS else None
        own = (
            ["–", "–"]
            if chance is None
            else [
                f"{measures.log_loss(gold, chance):.4f}",
                f"{measures.calibration_error(gold, chance):.4f}",
            ]
        )
        print(
            (
                f"| {name} | {' | '.join(own)} | {best.log_loss:.4f} | {best.slope:.3f}, "
                f"{best.offset:.2f}, {best.clip:g} |"
            ),
            flush=True,
        )
    print(
        "\n| filter | decided ham called spam | decided spam called ham | unsure |\n"
        "|---|---|---|---|"
    )
    for name, run in runs.items():
        parts = []
        for truth, wrong in (("ham", "spam"), ("spam", "ham")):
            decided = [row.label for row in run if row.gold == truth and row.label != policy.UNSURE]
            parts.append(_share(sum(label == wrong for label in decided), len(decided)))
        parts.append(_share(sum(row.label == policy.UNSURE for row in run), len(run)))
        print(f"| {name} | {' | '.join(parts)} |")


def _share(part: int, whole: int) -> str:
    interval = recalibration.share_interval(part, whole)
    return (
        f"{100 * interval.value:.2f} % ({part} of {whole:,}; "
        f"{100 * interval.low:.2f}–{100 * interval.high:.2f})"
    )


if __name__ == "__main__":
    main()
