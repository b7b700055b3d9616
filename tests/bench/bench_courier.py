"""What the shared log costs mail, and how soon a lesson counts on another node.

    python -m tests.bench.bench_courier [--seconds 10] [--rounds 3] [--lessons 100] [--copy 0]

Real daemons share a log in a PostgreSQL of Debian's package, on one machine and disk. Mail of 5 kB
goes through one of them by SMTP, from 4 clients to Postfix's smtp-sink, while its database is
healthy, silent (it accepts and never answers), dead (it refuses) or flapping (dead and healthy by
turns of a second), and through a daemon without `shared`. Two lessons a second are taught beside
that. The measured daemons have one core for themselves; the database, the other nodes, clients and
next hop share the others, as on other machines. The ways take turns in random order.

The speed of a core of a machine that others share changes by a third within seconds, and numbers of
messages with it. The shares of the core tell more: what the courier takes, mail lacks. Settling is
what a single machine does as well, once in a minute.

With --copy, a filter of so many lessons joins an empty log, and then an empty filter joins that.

Two cores (12 rounds of 4 s):

    from a lesson to others' verdicts   p50 15 to 26 ms, p99 42 to 64 ms (four runs)
              of the core: mail, courier, settling
    alone        96.6 %   0.6 %   1.5 %   1.000 × the messages   p50 12 ms, p99 25 ms
    healthy      95.2 %   2.0 %   2.1 %   0.926                  p50 13 ms, p99 26 ms
    silent       94.6 %   0.5 %   3.0 %   0.998                  p50 12 ms, p99 25 ms
    dead         97.7 %   0.3 %   1.1 %   0.995                  p50 12 ms, p99 23 ms
    flapping     95.1 %   2.0 %   1.0 %   1.018                  p50 11 ms, p99 26 ms
    not scanned 0; memory of the courier 63 MB

Two runs before gave 0.968 and 0.905 × the messages healthy, 0.967 and 0.933 silent, 1.002 and 0.961
dead, 0.947 and 0.907 flapping.

On a machine where four to eight times as much ran as it can do: a lesson 1,016 ms at the median and
1,093 ms at the 99th percentile where no notices arrive; 100,000 lessons pushed in 150 s and copied
in 22 s, with 62 MB of memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import smtplib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from operator import sub
from pathlib import Path
from random import Random

from corpora import synthetic
from spamguard.engine.filter import Filter
from spamguard.ledger import codec
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.records import EXTRACTOR, Vote
from tests.e2e import daemon
from tests.e2e.ports import free_port
from tests.e2e.shared_nodes import FINGERPRINT, SharedNode, SharedSite, shared_site
from tests.support.partition import Partition, partition
from tests.support.postgres import running_server
from tests.support.processes import children
from tests.support.sinks import smtp_sink
from tests.support.waiting import eventually
from tests.unit.filters import READER

_CLIENTS = 4
_LESSONS_PER_SECOND = 2.0
_MEASURED_CORE = min(os.sched_getaffinity(0))
_MODES = ("alone", "healthy", "silent", "dead", "flapping")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=10)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--lessons", type=int, default=100)
    options.add_argument("--copy", type=int, default=0)
    options.add_argument("--client", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.client:
        send_mail(given.client, given.seconds)
        return
    if len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {_MEASURED_CORE})
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server() as server,
        server.database() as database,
        shared_site(Path(directory), database) as site,
    ):
        if given.copy:
            measure_copy(site, given.copy)
            return
        a, b = site.join(), site.join()
        site.converge()
        measure_lessons(a, b, given.lessons)
        measure_mail(site, given.seconds, given.rounds)


# ---- lessons


def measure_lessons(a: SharedNode, b: SharedNode, count: int) -> None:
    """From the beginning of a lesson on a to another verdict of b."""
    times, asks = [], []
    for _, raw in itertools.islice(synthetic.generate(count, 77), count):
        before = b.score(raw)
        begin = time.perf_counter()
        a.teach(raw, "ham" if before > 0 else "spam")
        while True:
            asked = time.perf_counter()
            if b.score(raw) != before:
                break
            asks.append(time.perf_counter() - asked)
            if asked - begin > 20:
                raise SystemExit("a lesson does not arrive")
        times.append(time.perf_counter() - begin)
    print(f"a verdict alone                    {_milliseconds(asks)}")
    print(f"from a lesson to others' verdicts  {_milliseconds(times)}")


def _milliseconds(times: list[float]) -> str:
    if not times:
        return "none: every lesson was there at once"
    half, most = statistics.median(times), sorted(times)[int(0.99 * len(times))]
    return f"p50 {half * 1e3:5.0f} ms, p99 {most * 1e3:5.0f} ms  ({len(times)})"


# ---- a whole log


def measure_copy(site: SharedSite, count: int) -> None:
    """Push so many lessons into an empty log, and copy them to an empty node."""
    full = daemon.taught(site.root / "full", 10)
    packed = [codec.pack(READER.read_example(raw).features) for _, raw in synthetic.generate(50, 5)]
    with SqliteLedger.open(full / "ledger.sqlite", FINGERPRINT, durable=False) as ledger:
        ledger.merge(
            Vote(b"%16d" % number, "", number + 1, "elsewhere", ("ham", "spam")[number % 2],
                 packed[number % 50], b"", "folder", 1_700_000_000, EXTRACTOR)
            for number in range(count)
        )  # fmt: skip
    empty = daemon.taught(site.root / "empty", 10)
    for state, verb in ((full, "push"), (empty, "copy")):
        with SqliteLedger.open(state / "ledger.sqlite", FINGERPRINT) as ledger:
            ledger.join()
        proxy = site.stack.enter_context(partition(site.database.server.port))
        begin = time.perf_counter()
        node = site.start(state, proxy)
        eventually(lambda node=node: node.status().position >= count, verb, 1200)
        eventually(lambda node=node: node.status().waiting == 0, verb, 1200)
        seconds = time.perf_counter() - begin
        print(f"{verb} {count:,} lessons: {seconds:.0f} s; courier {memory(node):.0f} MB")


# ---- mail


def measure_mail(site: SharedSite, seconds: float, rounds: int) -> None:
    """Send mail through a node in each state of its database, and through a single machine."""
    with ExitStack() as stack:
        sink = stack.enter_context(smtp_sink())
        ports = {name: free_port() for name in ("node", "alone")}
        listener = (
            "listeners:\n  - {{listen: 'smtp://127.0.0.1:{}', position: after-queue, "
            "next_hop: {}}}\n"
        )
        file = site.root / "alone.yaml"
        file.write_text("workers: 1\n" + listener.format(ports["alone"], sink))
        state = daemon.taught(site.root / "alone")
        with measured_machine():
            node = site.join(more=listener.format(ports["node"], sink))
            single = stack.enter_context(
                daemon.running(state, "--config", str(file), port=ports["alone"])
            )
        alone = stack.enter_context(Filter.open(state))
        site.converge()
        shares: dict[str, list[tuple[float, ...]]] = {mode: [] for mode in _MODES}
        times: dict[str, list[float]] = {mode: [] for mode in _MODES}
        order = Random(1)
        for mode in (mode for _ in range(rounds) for mode in order.sample(_MODES, len(_MODES))):
            is_alone = mode == "alone"
            teachers = [alone, node.teacher] if is_alone else [node.teacher, alone]
            master = single if is_alone else node.running
            with in_state(node.proxy, mode), teaching(teachers[0]) as lessons:
                time.sleep(1)
                mail = mail_processes(master.process.pid)
                groups = [mail, [node.courier_pid()], [master.process.pid]]
                before = list(map(processor_seconds, groups))
                times[mode] += run_client(ports["alone" if is_alone else "node"], seconds)
                used = map(sub, map(processor_seconds, groups), before)
                shares[mode].append(tuple(each / seconds for each in used))
            for label, raw in lessons:  # both know as much
                teachers[1].learn(raw, label)
            node.proxy.pass_on()
            site.converge()
        print(f"memory of the courier              {memory(node):.0f} MB")
        for mode in _MODES:
            mail, courier, settling = map(statistics.mean, zip(*shares[mode], strict=True))
            print(
                f"{mode:10} mail {mail:.1%}, courier {courier:.1%}, settling {settling:.1%} "
                f"of the core; {len(times[mode]) / len(times['alone']):.3f} × the messages, "
                f"{_milliseconds(times[mode])}"
            )
        _, metrics = node.ask("/metrics")
        for line in metrics.splitlines():
            if line.startswith("spamguard_messages_total") and "not-scanned" in line:
                print(line)


@contextmanager
def measured_machine() -> Iterator[None]:
    """Have what this thread starts, and the thread itself, run on the core of the measured node."""
    others = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_MEASURED_CORE})
    try:
        yield
    finally:
        os.sched_setaffinity(0, others)


def memory(node: SharedNode) -> float:
    """The most that the courier ever had, in MB."""
    status = Path(f"/proc/{node.courier_pid()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def mail_processes(master: int) -> list[int]:
    """The workers and scorers of a daemon."""
    workers = children(master, "spamguard.daemon.worker")
    return [*workers, *(scorer for worker in workers for scorer in children(worker))]


def processor_seconds(processes: list[int]) -> float:
    """Processor time that they have used so far, with that of their children that have ended."""
    ticks = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def in_state(proxy: Partition, mode: str) -> Iterator[None]:
    """Bring the database into a state."""
    ending = threading.Event()

    def flap() -> None:
        while not ending.wait(1.0):
            proxy.refuse()
            if ending.wait(1.0):
                break
            proxy.pass_on()
        proxy.pass_on()

    flapping = threading.Thread(target=flap)
    {"silent": proxy.swallow, "dead": proxy.refuse, "flapping": flapping.start}.get(mode, int)()
    yield
    ending.set()
    if mode == "flapping":
        flapping.join()


@contextmanager
def teaching(teacher: Filter) -> Iterator[list[tuple[str, bytes]]]:
    """Teach messages that were never taught, two a second; yields them."""
    ending = threading.Event()
    lessons: list[tuple[str, bytes]] = []

    def teach() -> None:
        with measured_machine(), Filter.open(teacher.directory) as spam_filter:
            while not ending.wait(1 / _LESSONS_PER_SECOND):
                label, raw = next(_NEW_MAIL)
                spam_filter.learn(raw, label)
                lessons.append((label, raw))

    thread = threading.Thread(target=teach)
    thread.start()
    yield lessons
    ending.set()
    thread.join()


_NEW_MAIL = iter(list(synthetic.generate(5000, 99)))


def run_client(port: int, seconds: float) -> list[float]:
    """The seconds that each message took, sent by a process of its own."""
    line = [sys.executable, "-m", "tests.bench.bench_courier", "--client", str(port)]
    done = subprocess.run(
        [*line, "--seconds", str(seconds)], check=True, capture_output=True, text=True
    )
    return [float(word) for word in done.stdout.split()]


def send_mail(port: int, seconds: float) -> None:
    """Send messages from several clients, and print how long each took."""
    raws = [raw.ljust(5000, b"x") for _, raw in synthetic.generate(50, 5)]
    times: list[float] = []
    end = time.perf_counter() + seconds

    def send() -> None:
        with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
            for raw in itertools.cycle(raws):
                begin = time.perf_counter()
                if begin > end:
                    return
                client.sendmail("a@example.org", ["b@example.net"], raw)
                times.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=send) for _ in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*(f"{each:.5f}" for each in times))


if __name__ == "__main__":
    main()
