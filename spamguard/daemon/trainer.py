"""A short-lived process that settles a filter (`python -m spamguard.daemon.trainer STATE [first]`), out of the way of the mail, at low
priority, also one whose tables are damaged; then it removes what processes that were killed have left beside it. first: the daemon has
only begun, so lessons that an upgrade has left behind are told.

Must never be needed for judging: if it dies, the next one does its work.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spamguard import log, renewal
from spamguard.engine import Filter
from spamguard.errors import LedgerError, SpamguardError, TableError
from spamguard.files import sweep_drafts
from spamguard.model import loss

_log = logging.getLogger("spamguard.daemon")


def main(arguments: Sequence[str]) -> int:
    """Settle, if it is still due."""

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log.configure(os.environ)
    os.nice(10)
    state, *first = arguments
    begun = time.monotonic()
    try:
        done = _settled(state)
        sweep_drafts(Path(state))
        if first:
            _tell_missing(state, settled=done)
    except (SpamguardError, OSError) as error:
        _log.error("cannot settle: %s", error)
        return 1
    if done:
        _log.info("settled in %.1f s", time.monotonic() - begun)
    return 0


def _settled(state: str) -> bool:
    """Settle, if it is still due, or if tables cannot be used as they are: nothing is judged until they are made anew."""
    try:
        with Filter.open(state) as spam_filter:
            due = spam_filter.settling_due()
    except (LedgerError, TableError) as error:
        _log.error("%s; trying to make all tables anew", error)
        due = True
    if due:
        with Filter.open(state, load=False) as spam_filter:  # which reads the ledger alone, and once: it may be all that fails
            spam_filter.settle()
    return due


def _tell_missing(state: str, *, settled: bool) -> None:
    """Lessons of no use and events that are lost, for those who never ask for a status. settled: that has told of a loss already."""
    with Filter.open(state, load=False) as spam_filter:
        number, lost = renewal.left_behind(spam_filter.ledger), spam_filter.loss()
    if number:
        _log.warning("%s; %s", renewal.told(number), renewal.REMEDY)
    if lost is not None and not settled:
        _log.error("%s: %s", loss.describe(lost), loss.REMEDY)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
