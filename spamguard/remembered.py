"""Messages that have gone on: what can be learnt of them from the history alone.

Must never take features for comparable that another extractor or another key has made.
"""

from __future__ import annotations

from spamguard.engine import Filter
from spamguard.errors import LedgerError, UsageError
from spamguard.history import Row
from spamguard.model.fold import features_of
from spamguard.prepare import Teaching
from spamguard.records import EXTRACTOR


def lesson(spam_filter: Filter, row: Row) -> Teaching:
    """Everything that teaching the message needs. UsageError: as `digest`, or another extractor has read it."""
    name = digest(spam_filter, row)
    if row.extractor != EXTRACTOR:
        read = f"{row.id}: was read by another version (extractor {row.extractor}, this is {EXTRACTOR}), so the message itself is needed"
        raise UsageError(f"{read}: name its file (learn, explain), hand it over on the page, or move it between watched folders")
    try:
        return Teaching(name, features_of([row.packed])[0])
    except LedgerError as error:
        raise UsageError(f"{row.id}: what is kept of it is damaged ({error})") from error


def digest(spam_filter: Filter, row: Row) -> bytes:
    """Which message it is. UsageError: it was not scanned, or with the key of another filter."""
    if not row.was_scanned:
        raise UsageError(f"{row.id}: was not scanned, so nothing is known of what it says")
    if row.fingerprint != spam_filter.ledger.fingerprint:
        raise UsageError(f"{row.id}: was read with key {row.fingerprint}, this filter has {spam_filter.ledger.fingerprint}")
    return row.digest
