"""The process that learns from users' folders: `python -m spamguard.daemon.learner CHANNEL SETTINGS
MASTER COUNTERS`.

The master starts it apart from the mail. If it dies, mail flows on, and the next one notices what
has happened meanwhile. SIGTERM or the end of the master end it at once, at any moment: the ledger
alone says what has been learnt.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from math import inf

from spamguard import process
from spamguard.counters import WATCHER_SLOT
from spamguard.engine.filter import Filter
from spamguard.errors import SpamguardError
from spamguard.folders import broker
from spamguard.folders.watcher import Watcher

_log = logging.getLogger("spamguard.folders")


def main(arguments: Sequence[str]) -> int:
    """Watch the folders until this process is ended."""
    with process.child_context(arguments) as (settings, to_master, board):
        os.nice(5)  # mail that flows goes first
        request_settling = process.settle_requester(to_master)
        try:
            with (
                Filter.open(settings.state) as spam_filter,
                closing(broker.make_mailboxes(settings.watch, settings.watch_socket)) as mailboxes,
                closing(Watcher(spam_filter, settings, mailboxes, request_settling)) as watcher,
            ):
                while True:
                    watcher.run_once(inf)
                    board.slot(WATCHER_SLOT).beat(time.monotonic_ns())
        except (SpamguardError, OSError) as error:
            _log.error("%s", error)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
