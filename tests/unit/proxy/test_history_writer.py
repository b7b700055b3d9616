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


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def writing(place: Path) -> Iterator[HistoryWriter]:
    writer = HistoryWriter(place, 64 << 20, 30)
    yield writer
    writer.close(30)


def kept(place: Path) -> int:
    with HistorySearch.open(place, 64 << 20, 30) as history:
        return len(recent(history, 100_000))


def test_what_is_not_to_be_kept_never_reaches_the_disk(place: Path) -> None:
    writer = HistoryWriter(place, 64 << 20, 30, private=True)
    writer.put(
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
    writer.close(30)
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
    record = DeliveryRecord("smtp://127.0.0.1:1", Envelope(Sender("a@x"), (), Client()), 9)
    assert isinstance(scan, Scan)
    (copy,) = decide_copies(scan, [], Policy(), separate_copies=False)
    record.set_copy(copy)
    writer = HistoryWriter(place, 64 << 20, 30)
    writer.put(record.row("0123456789abcdef"))
    writer.close(30)
    with HistorySearch.open(place, 64 << 20, 30) as history:
        (found,) = history.find_page(HistoryFilter(), 1, with_words=True).rows
    assert found.line.startswith("cheap\ufffd[2j roofs, <b> today and so on")
    assert len(found.line) == MAX_LINE


def test_closing_writes_what_waits_and_then_takes_no_more(
    writing: HistoryWriter, place: Path
) -> None:
    for number in range(1000):
        writing.put(row(number))
    writing.close(30)
    assert kept(place) == 1000
    writing.put(row(1001))
    writing.close(30)
    assert kept(place) == 1000


@pytest.mark.slow
def test_trouble_is_logged_once_and_ends_by_itself(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    place.write_bytes(b"x" * 5000)
    writing = HistoryWriter(place, 64 << 20, 30)
    writing.put(row(0))
    eventually(lambda: caplog.records)
    writing.put(row(1))
    eventually(lambda: not writing._rows)
    assert len(caplog.records) == 1
    assert "history.sqlite" in caplog.text
    place.unlink()
    writing.put(row(4))
    writing.close(30)
    assert kept(place) == 1


def test_a_row_that_cannot_be_written_is_no_end(
    writing: HistoryWriter, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writing.put(row(1, size=2**70))
    eventually(lambda: caplog.records)
    writing.put(row(2))
    writing.close(30)
    assert kept(place) == 1
