"""The history keeps judgements within its size and age, and finds them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spamguard.errors import HistoryError
from spamguard.proxy import history_search
from spamguard.proxy.history import HISTORY_FILE, MIN_BYTES
from spamguard.proxy.history_search import HistoryFilter, HistorySearch
from tests.unit.proxy.history_rows import START, append, recent, row


def opened(directory: Path, size: int = 64 << 20, days: int = 30) -> HistorySearch:
    return HistorySearch.open(directory / "history.sqlite", size, days)


def taken(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_what_was_kept_is_found_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        append(history, row(1), row(2))
        assert history.find(row(2).id) == row(2)
        assert history.find(row(3).id) is None
    with opened(tmp_path) as history:
        assert history.find(row(1).id) == row(1)


# ---- bounds


def test_a_clock_that_was_behind_costs_nothing_but_its_own_rows(tmp_path: Path) -> None:
    """A machine may start in 1970 until its clock is set: earlier rows are no older for it."""
    with opened(tmp_path, days=30) as history:
        append(history, *(row(number, time=1e9 + number) for number in range(300)))
        append(history, *(row(number, time=number) for number in range(300, 600)))
        for number in range(600, 700):
            append(history, row(number, time=1e9 + number))
        kept = {int(row.time - 1e9) for row in recent(history, 1000)}
    assert kept >= set(range(300)) | set(range(600, 700))


@pytest.mark.slow
def test_a_file_that_has_become_too_large_shrinks_step_by_step(tmp_path: Path) -> None:
    with opened(tmp_path) as history:
        for start in range(0, 10_000, 500):
            append(history, *(row(number) for number in range(start, start + 500)))
    before = taken(tmp_path)
    assert before > 30 << 20
    with opened(tmp_path, MIN_BYTES) as history:
        sizes = []
        for number in range(10_000, 10_000 + 400):
            append(history, row(number))
            sizes.append(taken(tmp_path))
        assert sizes[0] > before / 2  # not at once: each step is short
        assert sizes[-1] <= MIN_BYTES
        assert recent(history, 1) == [row(10_399)]


# ---- trouble


def spoil_header(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def spoil_program(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA application_id = 99")
    db.close()


def spoil_table(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("DROP TABLE judgements")
    db.close()


def spoil_words(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE contents SET words = '[1'")
    db.commit()
    db.close()


@pytest.mark.parametrize("spoil", [spoil_header, spoil_program, spoil_table, spoil_words])
def test_a_file_that_is_no_history_is_one_line_of_error(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    with opened(tmp_path) as history:
        append(history, row(1))
    spoil(tmp_path / "history.sqlite")

    def use() -> None:
        with opened(tmp_path) as history:
            history.find(row(1).id)

    with pytest.raises(
        HistoryError, match=r"history\.sqlite: .*(move it away|cannot be read)"
    ) as error:
        use()
    assert "\n" not in str(error.value)


# ---- search


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
