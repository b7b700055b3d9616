"""How fast: judging, teaching, settling, opening. Ratios are against Debian's bogofilter, run
beside it on the same mail.

    python tests/bench/bench_speed.py [--corpus INDEX] [--large N]

Without --corpus, mail from the generator. Needs the command `bogofilter` (Debian package);
everything runs on one core at a time. Figures of one run belong together; those of different
machines or days do not. Judging and classifying are measured in turns and in processor time,
settling in both times: on a shared machine the clock says little about a program.
SPAMGUARD_KERNEL=numpy in the environment leaves the compiled kernel out.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from spamguard import native, sources
from spamguard.engine.filter import Filter
from spamguard.engine.prepare import ExampleReader

sys.path.insert(0, str(Path(__file__).parents[2]))

from corpora.synthetic import generate

ROUNDS = 3
BATCH = 64
Labelled = list[tuple[str, bytes]]


def main() -> None:
    """Run all parts and print a line each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", metavar="INDEX", help="TREC index of prepared mail")
    parser.add_argument(
        "--large",
        type=int,
        default=100_000,
        help="messages of the large model (default: 100000; 0: leave it out)",
    )
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    mail = _corpus(options.corpus) if options.corpus else list(generate(5000, 1))
    print(
        f"{len(mail)} messages, {sum(len(raw) for _, raw in mail) / len(mail):.0f} bytes "
        f"mean; one core; kernel: {native.implementation()}"
    )
    with tempfile.TemporaryDirectory() as place:
        _judging(Path(place), mail)
        if options.large:
            _growth(Path(place), options.large)


def _corpus(index: str) -> Labelled:
    return [(str(message.label), message.raw) for message in sources.read_messages(index)]


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some rounds."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def _busy() -> float:
    """Processor time of this process and of those it has waited for, in seconds."""
    spent = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _in_turns(*works: Callable[[], object]) -> list[float]:
    """Processor time of each, in seconds: of the fastest of some rounds, in each of which all had
    their turn.
    """
    rounds = []
    for _ in range(ROUNDS):
        borders = [_busy()]
        for work in works:
            work()
            borders.append(_busy())
        rounds.append([end - start for start, end in pairwise(borders)])
    return [min(times) for times in zip(*rounds, strict=True)]


def _report(name: str, count: int, seconds: float, beside: float | None = None) -> None:
    ratio = f"  {beside / seconds:5.2f} × bogofilter" if beside else ""
    print(f"{name:44s}{count / seconds:9.0f} /s  {seconds / count * 1e6:8.1f} µs{ratio}")


def _judging(place: Path, mail: Labelled) -> None:
    state = place / "state"
    with Filter.open(state, _durable=False) as spam_filter:
        _teaching(spam_filter, mail)
        _settling("settle (all receipts, tables written)", spam_filter, len(mail))
        _report("settle again (fastest, processor time)", len(mail), *_in_turns(spam_filter.settle))
    classify, learn = _bogofilter(place, mail)
    _report("bogofilter -b (learn)", len(mail), learn)
    _report("bogofilter -b (classify, processor time)", len(mail), *_in_turns(classify))
    for profile in ("default", "multinomial", "bernoulli"):
        with Filter.open(state, profile=profile) as spam_filter:
            _judge(spam_filter, profile, [raw for _, raw in mail], classify)


def _settling(name: str, spam_filter: Filter, count: int) -> None:
    """Processor time beside wall-clock time, which says little on a shared machine."""
    start, busy = time.perf_counter(), time.process_time()
    spam_filter.settle()
    _report(name, count, time.perf_counter() - start)
    _report("  the same, processor time", count, time.process_time() - busy)


def _judge(
    spam_filter: Filter, profile: str, mail: list[bytes], classify: Callable[[], object]
) -> None:
    for way, work in (
        ("one by one", lambda: [spam_filter.judge(raw) for raw in mail]),
        ("in bulk", lambda: list(spam_filter.judge_all(mail))),
    ):
        beside, own = _in_turns(classify, work)
        _report(f"judge, {way}, profile {profile}", len(mail), own, beside)


def _teaching(spam_filter: Filter, mail: Labelled) -> None:
    """Teach as the bulk command does, in this process: extraction, scores, receipts, folding."""
    preparer = ExampleReader(spam_filter.key)
    start = time.perf_counter()
    for label, batch in _batches(mail):
        spam_filter.learn_examples(list(map(preparer.read_example, batch)), label)
    _report("learn (receipts and tables, not settled)", len(mail), time.perf_counter() - start)


def _batches(mail: Labelled) -> Iterator[tuple[str, list[bytes]]]:
    """Runs of one class, as `learn --as` has them."""
    for wanted in ("ham", "spam"):
        chosen = [raw for label, raw in mail if label == wanted]
        for at in range(0, len(chosen), BATCH):
            yield wanted, chosen[at : at + BATCH]


def _bogofilter(place: Path, mail: Labelled) -> tuple[Callable[[], object], float]:
    """A function that classifies everything with bogofilter's bulk mode and its Berkeley DB, and
    the seconds of learning everything.
    """
    if shutil.which("bogofilter") is None:
        raise SystemExit("bench_speed: needs bogofilter beside it: apt-get install bogofilter")
    files = place / "mail"
    files.mkdir()
    lists: dict[str, list[str]] = {"spam": [], "ham": []}
    for number, (label, raw) in enumerate(mail):
        (files / f"{number:06d}").write_bytes(raw)
        lists["spam" if label == "spam" else "ham"].append(str(files / f"{number:06d}"))
    (place / "bogo").mkdir()
    start = time.perf_counter()
    for label, option in (("spam", "-s"), ("ham", "-n")):
        _bulk(place, [option], lists[label])
    learn = time.perf_counter() - start
    names = [str(files / f"{number:06d}") for number in range(len(mail))]
    return partial(_bulk, place, ["-T"], names), learn


def _bulk(place: Path, options: list[str], names: list[str]) -> None:
    text = "".join(f"{name}\n" for name in names).encode()
    done = subprocess.run(
        ["bogofilter", "-C", "-d", str(place / "bogo"), *options, "-b"],
        input=text,
        capture_output=True,
        check=False,
    )
    if done.returncode > 2:
        raise SystemExit(f"bench_speed: bogofilter failed: {done.stderr.decode()}")


def _growth(place: Path, large: int) -> None:
    """Judging and opening do not grow with the model."""
    probe = [raw for _, raw in generate(2000, 7)]
    small_state, large_state = place / "small", place / "large"
    cost = {}
    for state, count in ((small_state, 1000), (large_state, large)):
        with Filter.open(state, _durable=False) as spam_filter:
            _taught(spam_filter, count)
        opening = _best(partial(_open, state))
        cost[count] = _cost(state, probe)
        print(
            f"{count} lessons: open {opening * 1000:.0f} ms, judge "
            f"{cost[count] / len(probe) * 1e6:.0f} µs"
        )
    print(f"judge after {large} lessons: {cost[large] / cost[1000]:.2f} × after 1000")
    _process(large_state, place, probe[0])


def _open(state: Path) -> None:
    Filter.open(state).close()


def _cost(state: Path, mail: list[bytes]) -> float:
    with Filter.open(state) as spam_filter:
        return _best(lambda: [spam_filter.judge(raw) for raw in mail])


def _taught(spam_filter: Filter, count: int) -> None:
    preparer = ExampleReader(spam_filter.key)
    batch: dict[str, list[bytes]] = {"ham": [], "spam": []}
    for label, raw in generate(count, 3):
        batch[label].append(raw)
        if len(batch[label]) == BATCH:
            spam_filter.learn_examples(list(map(preparer.read_example, batch.pop(label))), label)
            batch[label] = []
    for label, rest in batch.items():
        spam_filter.learn_examples(list(map(preparer.read_example, rest)), label)
    _settling(f"settle {count} receipts", spam_filter, count)


_ONE = """
import sys
from spamguard import Filter
with Filter.open(sys.argv[1]) as spam_filter:
    spam_filter.judge(open(sys.argv[2], "rb").read())
    if len(sys.argv) > 3:
        for raw in open(sys.argv[3], "rb").read().split(b"\\0\\n\\0"):
            spam_filter.judge(raw)
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(status["VmRSS"].split()[0])
"""


def _process(state: Path, place: Path, raw: bytes) -> None:
    """A process that starts, opens, judges one message; and one that stays and judges many."""
    single, many = place / "one", place / "many"
    single.write_bytes(raw)
    many.write_bytes(b"\0\n\0".join(raw for _, raw in generate(5000, 11)))
    command = [sys.executable, "-c", _ONE, str(state), str(single)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    seconds = _best(lambda: subprocess.run(command, env=environment, check=True))
    print(f"process: import, open, judge one: {seconds * 1000:.0f} ms")
    answer = subprocess.run(
        [*command, str(many)], env=environment, check=True, capture_output=True, text=True
    )
    print(f"resident process after 5000 judgements: {int(answer.stdout) / 1024:.0f} MiB RSS")
    print(
        f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
