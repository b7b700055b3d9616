"""How fast the history is written and looked through, and how fast the service behind the page
answers, when there is much of both.

    python -m tests.bench.bench_history [--rows 100000] [--receipts 50000] [DIRECTORY]

Rows have some 3 kB of features each; receipts are of made-up mail. DIRECTORY keeps them for the
next run (default: a temporary one). Printed are the median of nine times, and the first, for which
the service has just been started: by the clock, and of the processor, which a busy machine changes
less. The files are in the page cache: nothing here measures disks.

100,000 rows (280 MB), 50,000 receipts; ms of the processor, since the two cores had six times as
much to do as they can. Where marked *, the first one catches up with the ledger:

                                  usually    first
    newest page                         1        5
    a rare subject                     16       23
    a sender, a subject, a label
    that is nowhere: all rows       27-42    31-36
    of one user in 200                  8       10
    of a user without mail             54       51    all rows
    taught as anything                 10      651 *
    taught as what nothing is          51      705 *
    today, of all                      63      759 *
    today, of a user                   19      675 *
    the model                          85       77

    With a million rows (3.2 GB), 5,000 receipts: newest page 3, a rare subject 180, what is
    nowhere 220-370 (or what was found within two seconds, by the clock), of one user in 200 8, of
    a user without mail 310, today 230, of a user 135, the model 29; writing 33 µs a row.

    writing, batches of 256: 22 µs a row (of the processor), 2,803 bytes; with all in one table, as
    before: 24 and 26 µs in turns, 3,731 bytes against 3,739 with other rows, written to the disk
    8,192 against 8,365; in batches of 4: 55-67 µs against 63-74, 26,208 bytes against 30,518
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from corpora.synthetic import generate
from spamguard.config.options import Hop, Listener, Position, Scoring, Settings, parse_endpoint
from spamguard.engine.filter import Filter
from spamguard.keys import RANDOM_BYTES, new_id
from spamguard.ledger.votes import NewVote
from spamguard.proxy.history import HISTORY_FILE, History, HistoryRow
from spamguard.records import EXTRACTOR, Scan
from spamguard.web.auth import Person
from spamguard.web.queries import Search
from spamguard.web.service import Service

_TIMES = 9
_USERS = 200
_BATCH = 256
MESSAGES = 2000  # whose features all rows and receipts share
_SECONDS_BETWEEN = 20.0
OPERATOR, PERSON, NOBODY = Person("root", operator=True), Person("user7"), Person("nobody")


def rows(number: int, scans: list[Scan], fingerprint: str, now: float) -> Iterator[HistoryRow]:
    """Rows of the history, the oldest first."""
    dice = Random(1)
    for at in range(number):
        when, scan = now - (number - at) * _SECONDS_BETWEEN, scans[at % len(scans)]
        yield HistoryRow(
            id=new_id(when, at.to_bytes(RANDOM_BYTES, "big")),
            time=when,
            listener="smtp://127.0.0.1:10025",
            client="192.0.2.1",
            sender=f"somebody{dice.randrange(5000)}@mail{dice.randrange(300)}.example.com",
            recipients=(f"user{dice.randrange(_USERS)}@example.org",),
            subject=(
                f"Re: {'Grüße aus Köln' if at % 5 == 0 else 'Minutes of the meeting'} number {at}"
            ),
            size=5000,
            digest=scan.digest if at % 50 == 0 else dice.randbytes(16),
            label=scan.verdict.label,
            probability=scan.verdict.probability,
            log_odds=scan.verdict.log_odds,
            action="tag",
            reply="250 2.0.0 Ok: queued as 4XyZ",
            packed=scan.packed,
            words=scan.words,
            extractor=EXTRACTOR,
            fingerprint=fingerprint,
        )


def fill(state: Path, number: int, receipts: int) -> None:
    """Make the rows and receipts."""
    (state / "spool").mkdir(parents=True, exist_ok=True)
    with Filter.open(state, _durable=False) as spam_filter:
        short = list(generate(MESSAGES + 2, 5))
        mail = [
            (label, b"\n".join((raw, short[at + 1][1], short[at + 2][1])))
            for at, (label, raw) in enumerate(short[:MESSAGES])
        ]
        scans = [spam_filter.scan(raw) for _, raw in mail]
        found = list(rows(number, scans, spam_filter.ledger.fingerprint, time.time()))
        teach(
            spam_filter,
            [(label, scan.packed) for (label, _), scan in zip(mail, scans, strict=True)],
            found,
            receipts,
        )
    with History.open(state / HISTORY_FILE, 4 << 30, 365) as history:
        begun = time.perf_counter(), time.process_time()
        for start in range(0, number, _BATCH):
            history.append(found[start : start + _BATCH])
        elapsed, used = time.perf_counter() - begun[0], time.process_time() - begun[1]
    print(
        f"{number:,} rows in batches of {_BATCH}: {number / elapsed:,.0f} rows/s, "
        f"{1e6 * used / number:.0f} µs of processor each"
    )
    print(f"{(state / HISTORY_FILE).stat().st_size / number:,.0f} bytes per row")


def teach(
    spam_filter: Filter, mail: list[tuple[str, bytes]], passed: list[HistoryRow], receipts: int
) -> None:
    """Receipts of 200 users over a month; every hundredth is on a message that has passed."""
    dice, now = Random(2), int(time.time())
    for start in range(0, receipts, _BATCH):
        votes = []
        for at in range(start, min(start + _BATCH, receipts)):
            label, packed = mail[at % len(mail)]
            digest = passed[at % len(passed)].digest if at % 100 == 0 else dice.randbytes(16)
            user, when = (
                f"user{dice.randrange(_USERS)}",
                now - (receipts - at) * 30 * 86_400 // receipts,
            )
            votes.append(NewVote(digest, user, label, packed, b"", "folder Junk", when, EXTRACTOR))
        spam_filter.ledger.append(votes)
    begun = time.perf_counter()
    spam_filter.settle()
    print(f"{receipts:,} receipts settled in {time.perf_counter() - begun:.0f} s")


@dataclass(frozen=True)
class Asked:
    """One question to measure."""

    name: str
    work: Callable[[Service], Awaitable[object]]


def questions() -> Iterator[Asked]:
    """Questions of operators, and of one of 200 users."""
    for name, wanted in {
        "newest page": Search(),
        "a sender that is nowhere": Search(sender="nobody@nowhere"),
        "a subject that is nowhere": Search(subject="GRÜSSE nowhere"),
        "three that are nowhere": Search(sender="zz", recipient="yy", subject="xx"),
        "a rare subject": Search(subject="number 5"),
        "a label that is nowhere": Search(label="news"),
        "taught as anything": Search(taught="any"),
        "taught as what nothing is": Search(taught="news"),
    }.items():
        yield Asked(f"operator: {name}", partial(_search, OPERATOR, wanted))
    for person in (PERSON, NOBODY):
        yield Asked(f"{person.name}: newest page", partial(_search, person, Search()))
        yield Asked(
            f"{person.name}: taught as anything", partial(_search, person, Search(taught="any"))
        )
    for person in (OPERATOR, PERSON):
        yield Asked(f"{person.name}: today", partial(_today, person))
    yield Asked("model", _model)


async def _search(person: Person, wanted: Search, service: Service) -> object:
    return await service.history(person, wanted)


async def _today(person: Person, service: Service) -> object:
    service._clear_cache()
    return await service.today(person)


async def _model(service: Service) -> object:
    service._clear_cache()
    return await service.model(OPERATOR)


async def measure(state: Path) -> None:
    """Ask each question in turn, several times; the first time apart, as of a process that has just
    started.
    """
    listener = Listener(
        parse_endpoint("smtp://127.0.0.1:10025"),
        Position.AFTER_QUEUE,
        Hop(parse_endpoint("maildir:/nonexistent")),
    )
    for asked in questions():
        service = Service(
            Settings(state, (listener,), scoring=Scoring(20.0, 1)), lambda: None, lambda: None
        )
        await service.start()
        taken, used = [], []
        for _ in range(_TIMES + 1):
            begun = time.perf_counter(), time.process_time()
            await asked.work(service)
            taken.append(1e3 * (time.perf_counter() - begun[0]))
            used.append(1e3 * (time.process_time() - begun[1]))
        await service.close()
        elapsed, processor = statistics.median(taken[1:]), statistics.median(used[1:])
        print(
            (
                f"{asked.name:38} {elapsed:7.1f} ms, of processor {processor:6.1f}; the first "
                f"{taken[0]:7.1f}, {used[0]:6.1f}"
            ),
            flush=True,
        )


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--receipts", type=int, default=50_000)
    parser.add_argument("directory", nargs="?", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        state = options.directory or Path(temporary) / "state"
        if not (state / HISTORY_FILE).exists():
            fill(state, options.rows, options.receipts)
        asyncio.run(measure(state))


if __name__ == "__main__":
    main()
