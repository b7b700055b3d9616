"""The writer of the history: rows arrive in batches, and its errors stay with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from spamguard.config.options import Policy
from spamguard.proxy.history import HistoryWriter
from spamguard.proxy.history_search import HistoryFilter, HistorySearch
from spamguard.proxy.scorer import decode_answer, encode_answer
from spamguard.proxy.transaction import DeliveryRecord, decide_copies
from spamguard.records import MAX_LINE, Scan
from spamguard.smtp.envelope import Client, Envelope, Sender
from tests.support.waiting import eventually
from tests.unit.filters import opened
from tests.unit.proxy.history_rows import recent, row
from tests.unit.proxy.transactions import before_queue


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def writing(place: Path) -> Iterator[HistoryWriter]:
    writer = HistoryWriter(place, 64 << 20, 30)
    yield writer
    assert writer.close(30)


def kept(place: Path) -> int:
    with HistorySearch.open(place, 64 << 20, 30) as history:
        return len(recent(history, 100_000))


def test_what_is_not_to_be_kept_never_reaches_the_disk(place: Path) -> None:
    writer = HistoryWriter(place, 64 << 20, 30, private=True)
    assert writer.put(
        row(
            1,
            sender="secretsender@x",
            author="secret <secret@x>",
            subject="secretsubject",
            recipients=("secretrecipient@x",),
            client="secret",
            line="secret text",
        )
    )
    assert writer.close(30)
    assert kept(place) == 1
    assert b"secret" not in b"".join(path.read_bytes() for path in place.parent.iterdir())


def test_a_line_of_the_text_is_kept(tmp_path: Path, place: Path) -> None:
    """Of what readers see, in one line that no terminal acts on."""
    raw = (
        b"Subject: offer\nContent-Type: text/html\n\n"
        b"<style>p { color: red }</style>\n<p>Cheap\x1b[2J roofs,\n\n &lt;b&gt; today</p>"
        + b" and so on"
        * 50
    )
    with opened(tmp_path / "state") as spam_filter:
        scan = decode_answer(encode_answer(spam_filter.scan(raw)))
    record = DeliveryRecord(before_queue(), Envelope(Sender("a@x"), (), Client()), 9)
    assert isinstance(scan, Scan)
    record.split(decide_copies(scan, [], Policy(), separate_copies=False))
    writer = HistoryWriter(place, 64 << 20, 30)
    assert writer.put(record.row("0123456789abcdef"))
    assert writer.close(30)
    with HistorySearch.open(place, 64 << 20, 30) as history:
        (found,) = history.find_page(HistoryFilter(), 1, with_words=True).rows
    assert found.line.startswith("cheap\ufffd[2j roofs, <b> today and so on")
    assert len(found.line) == MAX_LINE


def test_closing_writes_what_waits_and_then_takes_no_more(
    writing: HistoryWriter, place: Path
) -> None:
    assert all(writing.put(row(number)) for number in range(1000))
    assert writing.close(30)
    assert (kept(place), writing.dropped) == (1000, 0)
    assert not writing.put(row(1001))
    assert writing.dropped == 1
    assert writing.close()


@pytest.mark.slow
def test_trouble_is_logged_once_and_ends_by_itself(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    place.write_bytes(b"x" * 5000)
    writing = HistoryWriter(place, 64 << 20, 30)
    for number in range(3):
        assert writing.put(row(number))
        eventually(lambda number=number: writing.dropped == number + 1)
    assert len(caplog.records) == 1
    assert "history.sqlite" in caplog.text
    place.unlink()
    writing.put(row(4))
    assert writing.close(30)
    assert (kept(place), writing.dropped) == (1, 3)


def test_a_row_that_cannot_be_written_is_no_end(writing: HistoryWriter, place: Path) -> None:
    writing.put(row(1, size=2**70))
    eventually(lambda: writing.dropped == 1)
    writing.put(row(2))
    writing.close(30)
    assert kept(place) == 1
