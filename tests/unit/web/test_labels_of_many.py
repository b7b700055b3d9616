"""The classes in the history of a node that shares its lessons with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from spamguard.config.options import Settings
from spamguard.ledger.events import encode_event
from spamguard.ledger.shared import LogRow
from spamguard.ledger.sqlite import SqliteLedger
from spamguard.web import workers
from spamguard.web.workers import ReadConnection
from tests.contract.ledgers import foreign_vote, new_vote, push

DIGESTS = [bytes([number]) * 16 for number in range(12)]


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_BATCH_SIZE", 3)
    opened = ReadConnection.open(Settings(tmp_path, ()))
    opened.close()
    with SqliteLedger.open(tmp_path / "ledger.sqlite", opened.ledger.fingerprint) as ledger:
        ledger.join()
    opened = ReadConnection.open(Settings(tmp_path, ()))
    yield opened
    opened.close()


def labels(reading: ReadConnection) -> dict[bytes, str | None]:
    """What the history knows, which is what the ledger says of messages with lessons."""
    reading.catch_up()
    rows = reading.history._db.query("SELECT * FROM temp.taught")
    known = dict(rows)
    expected = {lesson.digest: lesson.label for lesson in reading.ledger.lessons()}
    assert {digest: label for digest, label in known.items() if label} == expected
    return expected


def test_labels_follow_votes_that_get_a_position(reading: ReadConnection) -> None:
    ledger, rows = reading.ledger, list[LogRow]()
    log = ledger.shared
    assert log is not None
    ledger.append([new_vote("spam", digest) for digest in DIGESTS[:8]])
    assert len(labels(reading)) == 8
    push(rows, [encode_event(foreign_vote("ham", DIGESTS[0], clock=90))])
    push(rows, [encode_event(foreign_vote("ham", DIGESTS[9], clock=91))])
    log.apply(rows)
    assert labels(reading)[DIGESTS[0]] == labels(reading)[DIGESTS[9]] == "ham"
    push(rows, log.read_pending(99, 1 << 20))
    log.apply(rows[2:])
    assert len(labels(reading)) == 9
    del rows[3:]  # another server took over
    push(rows, [encode_event(foreign_vote(None, DIGESTS[1], clock=95))])
    push(rows, [encode_event(foreign_vote("ham", DIGESTS[10], clock=96))])
    log.cut(3)
    log.apply(rows[3:])
    assert DIGESTS[1] not in labels(reading)
    assert labels(reading)[DIGESTS[10]] == "ham"
    rows.clear()  # and one without anything
    log.cut(0)
    assert len(labels(reading)) == 9
    push(rows, log.read_pending(99, 1 << 20))
    log.apply(rows)
    ledger.append([new_vote("news", DIGESTS[11])])
    assert labels(reading)[DIGESTS[11]] == "news"
