"""One joined ledger, used by several processes at once: who casts, who carries, and who reads."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from spamguard.errors import LedgerError
from spamguard.ledger.events import encode_event
from spamguard.ledger.sqlite import SqliteLedger
from tests.contract.ledgers import LogFile, fold, foreign_vote, lessons
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]

CASTING = """
import sys
from pathlib import Path
from spamguard.ledger.sqlite import SqliteLedger
from tests.contract.ledgers import new_vote
ledger, me = SqliteLedger.open(Path(sys.argv[1]), "key"), sys.argv[2]
for number in range(int(sys.argv[3])):
    label, digest = ("spam", "ham", None)[number % 3], b"%d" % (number % 17)
    ledger.append([new_vote(label, digest, me), new_vote("ham", f"{me} {number}".encode(), me)])
    print(number, flush=True)
"""


def start(ledger: Path, name: str, number: int) -> subprocess.Popen:
    line = [sys.executable, "-c", CASTING, str(ledger), name, str(number)]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def joined(path: Path) -> SqliteLedger:
    with SqliteLedger.open(path, "key") as ledger:
        ledger.join()
    return SqliteLedger.open(path, "key")


@pytest.mark.slow
def test_a_reader_folds_each_event_once_whatever_happens_meanwhile(tmp_path):
    log = LogFile(tmp_path / "log")
    reader, carrier = joined(tmp_path / "a"), SqliteLedger.open(tmp_path / "a", "key")
    shared, tables, seq, generation, moved, clock = carrier.shared, {}, 0, 1, 0, 0
    casting = [start(tmp_path / "a", name, 150) for name in ("anna", "ben")]
    deadline = time.monotonic() + PATIENCE
    while any(process.poll() is None for process in casting) or shared.waiting()[0]:
        assert time.monotonic() < deadline
        clock += 1
        if clock % 3 == 0:  # another node is heard of
            log.append([encode_event(foreign_vote("spam", b"%d" % (clock % 17), clock=clock))])
        log.append(shared.read_pending(5, 1 << 20))
        shared.apply(log.read(shared.head().position)[:7])
        try:
            if reader.generation != generation:
                tables, seq, generation = {}, 0, reader.generation
            seq = fold(tables, reader.changes_after(seq, generation=generation)) or seq
        except LedgerError:
            tables, seq, generation, moved = {}, 0, reader.generation, moved + 1
    for process in casting:
        process.communicate()
        assert process.returncode == 0
    if reader.generation != generation:
        tables, seq = {}, 0
    fold(tables, reader.changes_after(seq))
    assert tables == lessons(reader)
    votes = [vote for vote in reader.all_votes() if vote.user]
    assert len(votes) == len({(vote.digest, *vote.version) for vote in votes})
    assert sum(vote.digest.startswith((b"anna", b"ben")) for vote in votes) == 300
    for ledger in (reader, carrier):
        ledger.close()


def test_what_was_acknowledged_survives_a_kill(tmp_path):
    joined(tmp_path / "a").close()
    process = start(tmp_path / "a", "anna", 100_000)
    for _ in range(20):
        last = int(process.stdout.readline())
    process.kill()
    last = max([last, *map(int, process.communicate()[0].split())])
    with SqliteLedger.open(tmp_path / "a", "key") as ledger:
        votes = {vote.digest for vote in ledger.all_votes()}
        assert votes >= {b"anna %d" % number for number in range(last + 1)}
        waiting = ledger.shared.waiting()[0]
        assert waiting >= len(votes)  # the last ones may not be released yet
        log = LogFile(tmp_path / "log")
        log.append(ledger.shared.read_pending(10_000, 1 << 30))
        ledger.shared.apply(log.read(0))
        assert ledger.shared.waiting() == (0, 0)
        arrived = [vote.digest for vote in ledger.all_votes()]
        assert set(arrived) >= votes
        assert len(arrived) == waiting
