"""How a filter copes when the mail changes, beside peers.

    python tests/bench/bench_drift.py --first INDEX --second INDEX --scores DIR
        [--peers NAMES] [--only PART] [--picture FILE.svg]

Parts: `splice`: two thirds of one corpus and then the whole of the other, online and with
corrections, in windows of 500 messages around the splice; and forgetting: the next 1,000 messages
of the first corpus, judged frozen before and after the second is taught. `time`: the first 3,000
messages of a corpus taught, the rest judged frozen, beside the same messages online. `unequal`: one
to twenty of either class, beside the same messages inside the whole stream. `ageing`: our filter
with every lesson but the last N forgotten, as `keep` does it: two thirds of one corpus, the other,
and the rest of the first. Files of scores stay in DIR; scores of peers are read from there the next
time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from spamguard.config.values import KeptLessons
from spamguard.engine.evaluate import ScoredMessage
from spamguard.engine.measures import measures, roca
from spamguard.learning.undo import age_votes

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import courses, pictures, rivals, streams
from tests.bench.contest import Rival
from tests.bench.courses import OURS
from tests.bench.rivals import Spamguard
from tests.bench.streams import Mail

PEERS = "bogofilter,crm114-near"
WINDOW = 500
HELD = 1000
TAUGHT = 3000
OTHERS = 20
AGES = (4000, 2000, 1000)
START = 1_700_000_000  # seconds since 1970: when the first lesson is taught, to grow old


def main() -> None:
    """Run the chosen parts."""
    options = arguments()
    bench = Bench(
        options.scores,
        rivals.available([OURS, *(name for name in options.peers.split(",") if name)]),
    )
    corpora = {
        Path(index).parent.name: streams.labelled(index)
        for index in (options.first, options.second)
    }
    (first, one), (second, other) = corpora.items()
    if options.only in ("", "splice"):
        spliced = {f"{first}+{second}": (one, other), f"{second}+{first}": (other, one)}
        for name, pair in spliced.items():
            bench.splice(name, *pair, options.picture)
    for name, mail in corpora.items():
        if options.only in ("", "time"):
            bench.time(name, mail)
        if options.only in ("", "unequal"):
            bench.unequal(name, mail)
    if options.only in ("", "ageing"):
        bench.ageing(first, one, second, other)


def arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--first", required=True, metavar="INDEX", help="TREC index of prepared mail"
    )
    parser.add_argument("--second", required=True, metavar="INDEX", help="of other mail")
    parser.add_argument(
        "--scores", required=True, type=Path, metavar="DIR", help="where files of scores are kept"
    )
    parser.add_argument(
        "--peers", default=PEERS, metavar="NAMES", help=f"with commas (default: {PEERS})"
    )
    parser.add_argument("--only", default="", choices=("splice", "time", "unequal", "ageing"))
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="of the first splice")
    return parser.parse_args()


class Bench:
    """The parts, each on the same filters."""

    def __init__(self, scores: Path, names: Sequence[str]) -> None:
        self._scores = scores
        self._names = names

    def splice(
        self, stream: str, before: Sequence[Mail], after: Sequence[Mail], picture: Path | None
    ) -> None:
        """Windows around the splice, and forgetting."""
        border = 2 * len(before) // 3
        for corrections in (False, True):
            runs = {
                name: self._spliced(stream, name, before, after, corrections=corrections)
                for name in self._names
            }
            protocol = "corrections" if corrections else "online"
            print(f"\n## {stream}, {protocol}: 1-ROCA % and errors % in windows; splice at 0\n")
            starts = range(-2 * WINDOW, len(after), WINDOW)
            cut = {name: rows[HELD : HELD + border + len(after)] for name, rows in runs.items()}
            head([f"{start}" for start in starts])
            for name, rows in cut.items():
                line(
                    name,
                    [_window(rows[border + start : border + start + WINDOW]) for start in starts],
                )
            head(
                ["before the splice", "all after", "held out, before", "held out, after", "taught"]
            )
            for name, rows in runs.items():
                course = cut[name]
                parts = [
                    course[:border],
                    course[border:],
                    rows[:HELD],
                    rows[HELD + border + len(after) :],
                ]
                line(name, [*map(_window, parts), str(sum(row.trained for row in course))])
            if picture and not corrections:
                points = {
                    name: [
                        (start + WINDOW, _area(rows[border + start : border + start + WINDOW]))
                        for start in starts
                    ]
                    for name, rows in cut.items()
                }
                axes = pictures.Axes(
                    "messages after the splice (end of window)",
                    "1-ROCA % within 500 messages",
                    log_y=True,
                    least=0.01,
                )
                picture.with_name(f"{picture.stem}-{stream}.svg").write_text(
                    pictures.lines(axes, points, marks={0.0: "splice"}), encoding="utf-8"
                )

    def _spliced(
        self,
        stream: str,
        name: str,
        before: Sequence[Mail],
        after: Sequence[Mail],
        *,
        corrections: bool,
    ) -> list[ScoredMessage]:
        """Held-out mail before, the course, held-out mail after, as one list."""
        border = 2 * len(before) // 3
        held = before[border : border + HELD]

        def run(rival: Rival) -> list[ScoredMessage]:
            first = list(courses.online(rival, before[:border], corrections=corrections))
            earlier = courses.frozen(rival, held)
            second = list(courses.online(rival, after, corrections=corrections, first=border + 1))
            return [*earlier, *first, *second, *courses.frozen(rival, held)]

        return courses.kept(
            self._scores, f"{stream}-spliced", name, "corrections" if corrections else "online", run
        )

    def time(self, stream: str, mail: Sequence[Mail]) -> None:
        """How fast lessons grow old."""

        def run(rival: Rival) -> list[ScoredMessage]:
            for label, path in mail[:TAUGHT]:
                rival.teach(path, label)
            rival.bulk_taught()
            return courses.frozen(rival, mail[TAUGHT:])

        starts = range(TAUGHT, len(mail), 2 * WINDOW)
        print(
            f"\n## {stream}: the first {TAUGHT} taught, then frozen or online: 1-ROCA % and "
            f"errors % in windows of {2 * WINDOW}\n"
        )
        head([f"{start}" for start in starts] + ["all"])
        for name in self._names:
            frozen = courses.kept(self._scores, f"{stream}-after-{TAUGHT}", name, "frozen", run)
            whole = courses.course(self._scores, stream, name, mail)[TAUGHT:]
            for kind, rows in (("frozen", frozen), ("online", whole)):
                line(
                    f"{name}, {kind}",
                    [_window(rows[start - TAUGHT :][: 2 * WINDOW]) for start in starts]
                    + [_window(rows)],
                )

    def unequal(self, stream: str, mail: Sequence[Mail]) -> None:
        """One class rare."""
        for rare in ("spam", "ham"):
            thin = streams.thinned(mail, rare, OTHERS)
            chosen = {path for _, path in thin}
            print(
                f"\n## {stream}: {sum(one.label == rare for one in thin)} {rare} of "
                f"{len(thin)}, online\n"
            )
            head(
                [
                    "1-ROCA %, errors %",
                    "the same messages inside the whole stream",
                    "ratio of 1-ROCA",
                ]
            )
            for name in self._names:
                alone = courses.course(self._scores, f"{stream}-rare-{rare}", name, thin)
                whole = courses.course(self._scores, stream, name, mail)
                inside = [row for row, (_, path) in zip(whole, mail, strict=True) if path in chosen]
                line(
                    name,
                    [
                        _window(alone),
                        _window(inside),
                        f"{_area(alone) / max(_area(inside), 1e-9):.1f}",
                    ],
                )

    def ageing(self, first: str, one: Sequence[Mail], second: str, other: Sequence[Mail]) -> None:
        """Our filter with only the last lessons in force, on mail that changes and comes back."""
        border = 2 * len(one) // 3
        back = border + len(other)
        mail = [*one[:border], *other, *one[border:]]
        parts = {
            "whole": slice(None),
            f"{first}": slice(border),
            f"{second}": slice(border, back),
            f"{first} again": slice(back, None),
            "first 500 of it": slice(back, back + WINDOW),
        }
        print(
            f"\n## ageing: {border} messages of {first}, {second}, the rest of {first}, online: "
            "1-ROCA % (95 %), ham called spam and spam missed in %, spam missed at 0.5 %, unsure %"
        )
        head([*parts, "tables MB", "ledger MB"])
        for lessons in (0, *AGES):
            with rivals.trial(partial(_ours, lessons=lessons)) as rival:
                rows = list(courses.online(rival, mail))
                assert isinstance(rival, Spamguard)
                status = rival.filter.status()
            cells = [_measured(rows[part]) for part in parts.values()]
            sizes = [f"{size / 1e6:.0f}" for size in (status.tables_bytes, status.ledger_bytes)]
            line(f"the last {lessons:,}" if lessons else "all", [*cells, *sizes])


class Forgetful(Spamguard):
    """Our filter with the option `keep`, as in the daemon; an hour passes between two lessons."""

    def __init__(self, place: Path, lessons: int) -> None:
        super().__init__(place)
        self._kept = KeptLessons(number=lessons)
        self._number = 0

    def teach(self, path: Path, label: str) -> None:
        self._number += 1
        now = START + self._number * 3600
        (vote,) = self.filter.make_votes([self.ready(path)], label)
        self.filter.cast_votes([vote._replace(time=now)])
        if self._number % max(1, self._kept.number // 40) == 0:  # twice in what it may exceed
            age_votes(self.filter, self._kept, now)
        self.filter.settle_if_due()


def _ours(place: Path, lessons: int) -> Spamguard:
    return Forgetful(place, lessons) if lessons else Spamguard(place)


def _measured(rows: Sequence[ScoredMessage]) -> str:
    run = measures(
        [row.gold == "spam" for row in rows],
        [row.score for row in rows],
        [row.label for row in rows],
    )
    unsure = 100 * (run.unsure_ham + run.unsure_spam) / run.messages
    return (
        f"{run.roca:.3g} ({run.roca_low:.3f}–{run.roca_high:.3f}), {run.hm:.2f}, {run.sm:.1f}, "
        f"{run.sm_at_hm_05:.1f}, {unsure:.1f}"
    )


def _area(rows: Sequence[ScoredMessage]) -> float:
    return roca([row.gold == "spam" for row in rows], [row.score for row in rows])


def _window(rows: Sequence[ScoredMessage]) -> str:
    """1-ROCA, and the share of ham called spam and spam not called so."""
    wrong = np.mean([(row.label == "spam") != (row.gold == "spam") for row in rows])
    return f"{_area(rows):.3g}, {100 * wrong:.1f}"


def head(cells: Sequence[str]) -> None:
    """Two lines of a table."""
    print(f"\n| filter | {' | '.join(cells)} |\n|---|{'---|' * len(cells)}")


def line(name: str, cells: Sequence[str]) -> None:
    """A row."""
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
