"""The process that speaks IMAP (`python -m spamguard.daemon.imap`).

The master starts it where there are accounts. It alone speaks to the Internet; it reads IMAP and
never takes a message apart. What it knows lies in a directory of its own. The scanner door judges,
and the learner sees the accounts as mailboxes over a socket, as those of the mailbox broker.

SIGTERM or the end of the master end the process at once, at any moment: what it was about to do is
on the disk before it is done.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import closing

from spamguard import process
from spamguard.config.options import ACCOUNTS_SOCKET
from spamguard.daemon.children import Message, service_context
from spamguard.errors import SpamguardError
from spamguard.imap.hub import Hub

_log = logging.getLogger("spamguard.imap")


def main(arguments: Sequence[str]) -> int:
    """Keep the accounts in step until this process is ended."""
    with service_context(arguments) as (settings, channel):
        try:
            with (
                closing(Hub(settings.state, settings.accounts)) as hub,
                process.listen_at(settings.state / ACCOUNTS_SOCKET, 0o600) as listening,
            ):
                threading.Thread(target=hub.serve, args=(listening,), daemon=True).start()
                hub.run(lambda: channel.send(Message(task="accounts")))
        except (SpamguardError, OSError) as error:
            _log.error("%s", error)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
