"""Search in the history: every condition, page by page, whatever the case."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spamguard.errors import HistoryError
from spamguard.proxy import history_search
from spamguard.proxy.history import HISTORY_FILE
from spamguard.proxy.history_search import HistoryFilter, HistorySearch
from tests.unit.proxy.history_rows import START, append, row


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistorySearch]:
    with HistorySearch.open(tmp_path / HISTORY_FILE, 64 << 20, 30) as one:
        yield one


def numbers(history: HistorySearch, limit: int = 50, **wanted: Any) -> list[int]:
    """Seconds of the rows that are found."""
    return [int(row.time - START) for row in history.find_page(HistoryFilter(**wanted), limit).rows]


def test_search_by_lesson(history: HistorySearch) -> None:
    append(history, *(row(number, label="unsure") for number in range(10)))
    history.set_lessons(
        {row(1).digest: "spam", row(2).digest: "ham", row(3).digest: "spam", b"other": "ham"}
    )
    assert numbers(history, taught="any") == [3, 2, 1]
    assert numbers(history, taught="spam") == [3, 1]
    assert sorted(history.count_verdicts_and_lessons(HistoryFilter())) == [
        ("unsure", "ham", (), 1),
        ("unsure", "spam", (), 2),
    ]
    history.set_lessons({row(1).digest: None, row(2).digest: "spam"})
    assert numbers(history, taught="spam") == [3, 2]
    history.set_lessons({row(5).digest: "ham"}, replace_all=True)
    assert numbers(history, taught="any") == [5]


@pytest.mark.parametrize(
    "ask",
    [
        lambda found: found.find_page(HistoryFilter(), 50),
        lambda found: found.count_by_hour(START, HistoryFilter(parts=["b@example.org"])),
        lambda found: found.find_verdicts([row(1).digest]),
    ],
)
def test_damaged_rows_are_errors(
    history: HistorySearch, tmp_path: Path, ask: Callable[[history_search.HistorySearch], object]
) -> None:
    """In one line, as everywhere: else it would be called a fault of the program."""
    append(history, row(1))
    db = sqlite3.connect(tmp_path / HISTORY_FILE)
    db.execute("UPDATE judgements SET recipients = '[\"b@example.org', personal = '{'")
    db.commit()
    db.close()
    with pytest.raises(HistoryError, match=r"history\.sqlite: "):
        ask(history)
