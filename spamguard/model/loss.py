"""Events that the ledger has lost, as far as tables beside it prove: the name of a snapshot holds the number of its last event.

SQLite recovers a damaged log (ledger.sqlite-wal) up to its first bad frame and reports nothing. What is found is noted in the ledger
when settling replaces the snapshot that proves it, and stays noted until somebody has run `rebuild`.

Event numbers that are lost are given again to new events. That is safe: a snapshot counts only by its line in the ledger, and that
line is lost together with the events, or `TableStore` refuses it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spamguard.ledger import SqliteLedger
from spamguard.records import EXTRACTOR
from spamguard.times import moment

MENDED_BY = "restore a backup made later (`spamguard restore`), or teach that mail again (`spamguard teach-folders`, `spamguard learn`)"
REMEDY = f"{MENDED_BY}; then `spamguard rebuild` ends this message"

_KEY = "loss"
_SNAPSHOT = re.compile(rf"tables-{EXTRACTOR}-([0-9]+)-[0-9a-f]+\.bin")


@dataclass(frozen=True, slots=True)
class Loss:
    """snapshot: file that holds more events than the ledger. events: how many are missing, at least. since, until: seconds since
    1970 of the last event that is left (0: none is) and of that snapshot."""

    snapshot: str
    events: int
    since: int
    until: int


def describe(loss: Loss) -> str:
    """Say in one line what is missing; what to do about it is `REMEDY`."""
    events = "1 event is" if loss.events == 1 else f"{loss.events:,} events are"
    between = f"between {moment(loss.since, exact=True)} and" if loss.since else "before"
    return f"at least {events} missing from the ledger, taught {between} {moment(loss.until, exact=True)}: it or its log (-wal) was damaged"


def find(directory: Path, ledger: SqliteLedger) -> Loss | None:
    """What is noted, and what a snapshot proves that is not noted yet; None: nothing is known to be missing."""
    newest = _newest_snapshot(directory)  # before the ledger is asked: events are committed before a snapshot holds them
    noted = _noted(ledger)
    last = ledger.last_seq()
    if newest is None or newest.events <= last or (noted and noted.snapshot == newest.snapshot):
        return noted
    proven = replace(newest, events=newest.events - last, since=ledger.last_time())
    return proven if noted is None else replace(proven, events=proven.events + noted.events, since=noted.since)


def note(directory: Path, ledger: SqliteLedger) -> Loss | None:
    """Keep in the ledger what is found; None: nothing that was not noted before."""
    loss = find(directory, ledger)
    if loss is None or loss == _noted(ledger):
        return None
    ledger.set_meta(_KEY, json.dumps(asdict(loss)))
    return loss


def forget(ledger: SqliteLedger) -> None:
    """Drop the note: somebody has read it."""
    ledger.drop_meta([_KEY])


def _newest_snapshot(directory: Path) -> Loss | None:
    """The one of the highest number, its `events` being that number; None: there is none."""
    paths = directory.glob(f"tables-{EXTRACTOR}-*.bin")
    snapshots = [(int(name[1]), path) for path in paths if (name := _SNAPSHOT.fullmatch(path.name))]
    if not snapshots:
        return None
    seq, path = max(snapshots)
    try:
        return Loss(path.name, seq, 0, int(path.stat().st_mtime))
    except FileNotFoundError:  # another process has replaced it: it was current, so nothing is missing
        return None


def _noted(ledger: SqliteLedger) -> Loss | None:
    line = ledger.get_meta(_KEY)
    return None if line is None else Loss(**json.loads(line))
