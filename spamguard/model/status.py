"""What a filter knows, and how full it is. Only reads."""

from __future__ import annotations

from pathlib import Path

from spamguard.ledger import SqliteLedger
from spamguard.model.directory import bytes_of_tables
from spamguard.model.store import TableStore
from spamguard.records import EXTRACTOR, TOKEN_SETS, Status


def status(place: Path, ledger: SqliteLedger, store: TableStore, unwanted: frozenset[str]) -> Status:
    """As far as the store has folded its ledger."""
    tables = store.tables
    quarter = len(tables.rows) // len(tables.vocabulary)
    return Status(
        dict.fromkeys(ledger.classes(), 0) | dict(zip(tables.classes, tables.messages.tolist(), strict=True)),
        unwanted,
        len(tables.rows),
        dict(zip(TOKEN_SETS, tables.vocabulary.tolist(), strict=True)),
        dict(zip(TOKEN_SETS, (tables.vocabulary / quarter).tolist(), strict=True)),
        ledger.last_seq(),
        store.unsettled,
        ledger.size(),
        bytes_of_tables(place),
        EXTRACTOR,
        ledger.fingerprint,
    )
