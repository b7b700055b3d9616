"""Search in the history: every condition, page by page, whatever the case."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spamguard.errors import HistoryError
from spamguard.proxy import history_search
from spamguard.proxy.delivery_log import redact_row
from spamguard.proxy.history import HISTORY_FILE, HistoryRow
from spamguard.proxy.history_search import HistoryFilter, HistorySearch, recipient_pattern
from spamguard.records import Word
from tests.unit.proxy.history_rows import START, row


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistorySearch]:
    with HistorySearch.open(tmp_path / HISTORY_FILE, 64 << 20, 30) as one:
        yield one


def numbers(history: HistorySearch, limit: int = 50, **wanted: Any) -> list[int]:
    """Seconds of the rows that are found."""
    return [int(row.time - START) for row in history.find_page(HistoryFilter(**wanted), limit).rows]


def test_texts_are_found_anywhere_and_in_any_case(history: HistorySearch) -> None:
    history.append(
        [
            row(
                1,
                sender="Anna@Example.ORG",
                subject="Grüße aus KÖLN",
                recipients=('"B"@example.org',),
            ),
            row(
                2,
                sender="ben@example.org",
                subject="Straße",
                recipients=("ÄRGER@example.org", "c@example.org"),
            ),
            row(3, sender="", subject="100 % sure_", recipients=()),
        ]
    )
    assert numbers(history, sender="ANNA@ex") == [1]
    assert numbers(history, sender="example") == [2, 1]
    assert numbers(history, subject="köln") == numbers(history, subject="GRÜSSE") == [1]
    assert numbers(history, subject="STRASSE") == [2]
    assert numbers(history, subject="Ko\u0308ln") == [1]
    assert numbers(history, subject="%") == numbers(history, subject="sure_") == [3]
    assert numbers(history, recipient="ärger") == numbers(history, recipient="c@example") == [2]
    assert numbers(history, recipient='"b"@') == [1]
    assert numbers(history, recipient="\\") == []
    assert numbers(history, sender="ben", subject="köln") == []


def test_a_sender_is_found_by_either(history: HistorySearch) -> None:
    """In the envelope or in From, whatever the case, in letters beyond A to Z too."""
    history.append(
        [
            row(1, sender="bounce@mailer.example", author="Sunny ROOFS <Hello@roofs.example>"),
            row(2, sender="Sunny@mailer.example"),
            row(3, sender="", author="ÄRZTE ohne Grenzen <x@y.example>"),
        ]
    )
    assert (
        numbers(history, sender="sunny roofs <hello@") == numbers(history, sender="BOUNCE") == [1]
    )
    assert numbers(history, sender="sunny") == numbers(history, sender="mailer") == [2, 1]
    assert numbers(history, sender="ärzte OHNE") == [3]
    assert numbers(history, sender="sunny", subject="nothing") == []


def test_by_label_and_time(history: HistorySearch) -> None:
    history.append(
        [row(number, label=("spam", "ham", "unsure")[number % 3]) for number in range(9)]
    )
    assert numbers(history, label="ham") == [7, 4, 1]
    assert numbers(history, since=START + 3, until=START + 6) == [5, 4, 3]
    assert numbers(history, label="not-scanned") == []
    assert numbers(history, first=row(7).id) == [8, 7]


def test_page_by_page_everything_once(
    history: HistorySearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_search, "WINDOW_ROWS", 10)
    history.append(
        [row(number, label="ham" if number % 7 == 0 else "spam") for number in range(100)]
    )
    found: list[int] = []
    wanted, looked = HistoryFilter(label="ham", first=row(20).id), 0
    while True:
        seen = history.find_page(wanted, 2)
        found += [int(row.time - START) for row in seen.rows]
        looked += 1
        if not seen.next_before:
            break
        wanted = wanted._replace(before=seen.next_before)
    assert found == [98, 91, 84, 77, 70, 63, 56, 49, 42, 35, 28, 21]
    assert looked < 20


def test_what_is_large_is_left_where_it_is(history: HistorySearch) -> None:
    history.append([row(1)])
    (found,) = history.find_page(HistoryFilter(), 5).rows
    assert (found.packed, found.words) == (b"", ())
    assert found == row(1, packed=b"", words=())


def test_parts_of_addresses(history: HistorySearch) -> None:
    history.append(
        [
            row(number, recipients=(f"{name}@example.org", "list@example.net"))
            for number, name in enumerate(("anna", "joanna", "ANNA+x"))
        ]
    )
    assert numbers(history, parts=[recipient_pattern("anna@", at_start=True)]) == [0]
    assert numbers(
        history,
        parts=[
            recipient_pattern("Anna@", at_start=True),
            recipient_pattern("anna+", at_start=True),
        ],
    ) == [2, 0]
    assert numbers(history, parts=[recipient_pattern("@example.net", at_end=True)]) == [2, 1, 0]
    assert numbers(history, parts=[recipient_pattern('a"b', at_start=True)]) == []
    assert (
        len(
            numbers(
                history,
                parts=[recipient_pattern(f"{number}@", at_start=True) for number in range(1000)],
            )
        )
        == 3
    )  # who asks looks at each


def test_search_by_lesson(history: HistorySearch) -> None:
    history.append([row(number, label="unsure") for number in range(10)])
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


def test_counts_by_hour(history: HistorySearch) -> None:
    hours = (0.1, 0.9, 1.1, 1.2, 5.0)
    history.append(
        [
            row(int(3600 * hour), label="spam" if hour < 1.15 else "ham", recipients=(f"{hour}@x",))
            for hour in hours
        ]
    )
    assert sorted(history.count_by_hour(START, HistoryFilter(since=START))) == [
        (0, "spam", (), 2),
        (1, "ham", (), 1),
        (1, "spam", (), 1),
        (5, "ham", (), 1),
    ]
    assert history.count_by_hour(
        START, HistoryFilter(parts=[recipient_pattern("1.2@", at_start=True)])
    ) == [(1, "ham", ("1.2@x",), 1)]


def test_verdicts_of_given_messages(history: HistorySearch) -> None:
    history.append([row(1), row(2, label="ham", personal={}), row(3)])
    asked = [row(2).digest, row(1).digest, row(2).digest, b"nobody"]
    assert sorted(history.find_verdicts(asked)) == [
        (row(1).digest, "spam", dict(row(1).personal)),
        (row(2).digest, "ham", {}),
    ]
    assert list(history.find_verdicts([])) == []


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
    history.append([row(1)])
    db = sqlite3.connect(tmp_path / HISTORY_FILE)
    db.execute("UPDATE judgements SET recipients = '[\"b@example.org', personal = '{'")
    db.commit()
    db.close()
    with pytest.raises(HistoryError, match=r"history\.sqlite: "):
        ask(history)


def test_a_search_blocks_no_writer(history: HistorySearch, tmp_path: Path) -> None:
    with HistorySearch.open(tmp_path / HISTORY_FILE, 64 << 20, 30) as other:
        other.set_lessons({b"x": "spam"})
        history.append([row(1)])
        assert numbers(other) == [1]


def test_what_is_not_to_be_kept() -> None:
    words = tuple(
        Word(number, text, 1.0)
        for number, text in enumerate(
            (
                "offer",
                "subject:offer",
                "letters:_offe",
                "from:anna",
                "address:a-at-b b",
                "to:ben",
                "received:for anna",
                "tags:font",
            )
        )
    )
    whole: HistoryRow = row(1, words=words, author="Anna <anna@example.org>")
    bare = redact_row(whole)
    assert (
        bare.subject,
        bare.sender,
        bare.recipients,
        bare.client,
        bare.reply,
        dict(bare.personal),
    ) == ("", "", (), "", "250", {})
    assert bare.author == ""
    assert [word.text for word in bare.words] == ["offer", "tags:font"]
