"""What the shared log costs mail, and how soon a lesson counts on another node.

    python -m tests.bench.bench_courier [--seconds 10] [--rounds 3] [--lessons 100] [--copy 0]

Two real daemons share a log in a PostgreSQL of Debian's package, on one machine and disk. Mail of
5 kB goes through one of them by SMTP, from 4 clients to Postfix's smtp-sink, while its database is
healthy, silent (it accepts and never answers), dead (it refuses) or flapping (dead and healthy by
turns of a second), and through a daemon without `shared`. Two lessons a second are taught beside
that. The ways take turns, so that whatever else the machine does hits all of them alike.

With --copy, a filter of so many lessons joins an empty log, and then an empty filter joins that.

Two cores with nothing else to do, which PostgreSQL, both nodes, clients and next hop share:

    from a lesson to others' verdicts   p50 15 ms, p99 54 ms (200 lessons)
    alone       23,029 messages   2.61 ms of a core for each   p50 7 ms, p99 14 ms (10 × 4 s)
    healthy     22,044            2.87 ms                      p50 7 ms, p99 17 ms
    silent      23,094            2.75 ms                      p50 7 ms, p99 13 ms
    dead        23,087            2.70 ms                      p50 7 ms, p99 15 ms
    flapping    23,308            2.54 ms                      p50 6 ms, p99 15 ms
    not scanned 0; memory of the courier 64 MB

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
from pathlib import Path

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
        node = site.join(more=listener.format(ports["node"], sink))
        file = site.root / "alone.yaml"
        file.write_text("workers: 1\n" + listener.format(ports["alone"], sink))
        state = daemon.taught(site.root / "alone")
        single = stack.enter_context(
            daemon.running(state, "--config", str(file), port=ports["alone"])
        )
        alone = stack.enter_context(Filter.open(state))
        site.converge()
        processor: dict[str, list[float]] = {mode: [] for mode in _MODES}
        rates: dict[str, list[float]] = {mode: [] for mode in _MODES}
        times: dict[str, list[float]] = {mode: [] for mode in _MODES}
        for _ in range(rounds):
            for mode in _MODES:
                teacher = alone if mode == "alone" else node.teacher
                with in_state(node.proxy, mode), teaching(teacher):
                    time.sleep(1)
                    port = ports["alone" if mode == "alone" else "node"]
                    master = single if mode == "alone" else node.running
                    workers = mail_processes(master.process.pid)
                    before = processor_seconds(workers)
                    taken = run_client(port, seconds)
                processor[mode].append((processor_seconds(workers) - before) / len(taken))
                rates[mode].append(len(taken) / seconds)
                times[mode] += taken
                if mode != "alone":
                    node.proxy.pass_on()
                    site.converge()
        print(f"memory of the courier              {memory(node):.0f} MB")
        for mode in _MODES:
            cost = statistics.median(processor[mode]) * 1e3
            rate, delay = statistics.median(rates[mode]), _milliseconds(times[mode])
            print(f"{mode:10} {rate:6.1f}/s  {cost:.2f} ms of a core each  {delay}")
        _, metrics = node.ask("/metrics")
        for line in metrics.splitlines():
            if line.startswith("spamguard_messages_total") and "not-scanned" in line:
                print(line)


def memory(node: SharedNode) -> float:
    """The most that the courier ever had, in MB."""
    status = Path(f"/proc/{node.courier_pid()}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def mail_processes(master: int) -> list[int]:
    """The workers and scorers of a daemon."""
    workers = children(master, "spamguard.daemon.worker")
    return [*workers, *(scorer for worker in workers for scorer in children(worker))]


def processor_seconds(processes: list[int]) -> float:
    """Processor time that they have used so far."""
    ticks = 0
    for pid in processes:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
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
def teaching(teacher: Filter) -> Iterator[None]:
    """Teach messages that were never taught, two a second."""
    ending = threading.Event()
    mail = _NEW_MAIL

    def teach() -> None:
        with Filter.open(teacher.directory) as spam_filter:
            while not ending.wait(1 / _LESSONS_PER_SECOND):
                label, raw = next(mail)
                spam_filter.learn(raw, label)

    thread = threading.Thread(target=teach)
    thread.start()
    yield
    ending.set()
    thread.join()


_NEW_MAIL = iter(list(synthetic.generate(2000, 99)))


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
