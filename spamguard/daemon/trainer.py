"""A short-lived process that settles a filter (`python -m spamguard.daemon.trainer STATE`), out of the way of the mail, at low priority;
then it removes what processes that were killed have left beside it.

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

from spamguard import log
from spamguard.engine import Filter
from spamguard.errors import SpamguardError
from spamguard.files import sweep_drafts

_log = logging.getLogger("spamguard.daemon")


def main(arguments: Sequence[str]) -> int:
    """Settle, if it is still due."""

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log.configure(os.environ)
    os.nice(10)
    (state,) = arguments
    begun = time.monotonic()
    try:
        with Filter.open(state) as spam_filter:
            done = spam_filter.settle_if_due()
        sweep_drafts(Path(state))
    except (SpamguardError, OSError) as error:
        _log.error("cannot settle: %s", error)
        return 1
    if done:
        _log.info("settled in %.1f s", time.monotonic() - begun)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
