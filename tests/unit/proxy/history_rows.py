"""Rows for tests of the history."""

from __future__ import annotations

from typing import Any

from spamguard.keys import new_id
from spamguard.proxy.history import History, HistoryRow, row_values
from spamguard.proxy.history_search import HistoryFilter, HistorySearch
from spamguard.records import EXTRACTOR, Word

START = 1_700_000_000.0


def row(number: int, **values: Any) -> HistoryRow:
    """A row that another number makes otherwise; seconds apart."""
    when = START + number
    usual: dict[str, Any] = {
        "id": new_id(when, number.to_bytes(4, "big")),
        "time": when,
        "listener": "smtp://127.0.0.1:10025",
        "client": "192.0.2.1",
        "sender": f"a{number}@example.org",
        "recipients": ("b@example.org", "ü@example.org"),
        "subject": f"Grüße {number}",
        "size": 5000,
        "digest": number.to_bytes(16, "big"),
        "label": "spam",
        "probability": 0.99,
        "log_odds": 4.6,
        "action": "tag",
        "reply": "250 2.0.0 Ok",
        "packed": bytes([number % 256]) * 3000,
        "words": (Word(1 << 31, "viagra", 1.25), Word(2, "наш адрес", -0.5)),
        "extractor": EXTRACTOR,
        "fingerprint": "0123456789abcdef",
        "personal": {"anna": "spam", "ben@example.org": "ham"},
    }
    return HistoryRow(**usual | values)


def append(history: History, *rows: HistoryRow) -> None:
    history.append([row_values(row) for row in rows])


def recent(history: HistorySearch, limit: int, before: str = "") -> list[HistoryRow]:
    """The newest rows, whole, newest first; those of them older than `before`, an id."""
    found = (
        history.find(row.id) for row in history.find_page(HistoryFilter(before=before), limit).rows
    )
    return [one for one in found if one is not None]
