"""The process that learns from what people do in their folders (`python -m spamguard.daemon.watching CHANNEL SETTINGS MASTER COUNTERS`).

Started by the master, apart from the mail: if it dies, mail flows on, and the next one sees what has happened meanwhile. SIGTERM
ends it at once, and so does the end of the master: whenever that happens, what is in the ledger is the truth.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from math import inf

from spamguard.daemon import parent
from spamguard.engine import Filter
from spamguard.errors import SpamguardError
from spamguard.folders import reach
from spamguard.folders.watcher import Watcher
from spamguard.metrics.counters import WATCHER, Slot
from spamguard.settings import Settings

_log = logging.getLogger("spamguard.folders")


def main(arguments: Sequence[str]) -> int:
    """Watch until ended."""
    with parent.begun(arguments) as (settings, to_master, board):
        os.nice(5)  # mail that flows goes first
        try:
            with Filter.open(settings.state) as spam_filter:
                _watch(settings, spam_filter, to_master, board.slot(WATCHER))
        except (SpamguardError, OSError) as error:
            _log.error("%s", error)
    return 1


def _watch(settings: Settings, spam_filter: Filter, to_master: socket.socket, slot: Slot) -> None:
    """For ever."""
    with (
        closing(reach.mailboxes_of(settings.watch, settings.watch_socket)) as mailboxes,
        closing(Watcher(spam_filter, settings, mailboxes, parent.wish_to_settle(to_master))) as watcher,
    ):
        while True:
            watcher.turn(inf)
            slot.beat(time.monotonic_ns())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
