"""The process that speaks IMAP.

The master starts it where there are accounts. It alone speaks to the Internet; it reads IMAP and
never takes a message apart. What it knows lies in a directory of its own. The scanner door judges,
and the learner sees the accounts as mailboxes over a socket, as those of the mailbox broker.

SIGTERM or the end of the master end the process at once, at any moment: what it was about to do is
on the disk before it is done.
"""

from __future__ import annotations

import logging
import os
import ssl
import sys
import threading
from contextlib import closing
from pathlib import Path

from spamguard import process
from spamguard.config.options import ACCOUNTS_DIRECTORY, ACCOUNTS_SOCKET, Settings
from spamguard.daemon.children import Channel, Message
from spamguard.errors import SpamguardError
from spamguard.imap.hub import Hub

_log = logging.getLogger("spamguard.imap")

_SYSTEM = (  # what every program reads, names of servers included
    *("/usr", "/lib", "/lib64", "/etc", "/proc/self", "/dev/null", "/dev/urandom"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd"),
)


def main(settings: Settings, channel: Channel) -> int:
    """Keep the accounts in step until this process is ended."""
    channel.begin_service()
    try:
        _confine(settings)
        with (
            closing(Hub(settings.state, settings.accounts)) as hub,
            process.listen_at(settings.state / ACCOUNTS_SOCKET, 0o600) as listening,
        ):
            threading.Thread(target=hub.serve, args=(listening,), daemon=True).start()
            hub.run(lambda: channel.send(Message(task="accounts")))
    except (SpamguardError, OSError) as error:
        _log.error("%s", error)
    return 1


def _confine(settings: Settings) -> None:
    """Keep to the files of this process, its programs and its secrets.

    A command that prints a password may need any file of its user.
    """
    own = settings.state / ACCOUNTS_DIRECTORY
    own.mkdir(mode=0o700, exist_ok=True)
    if any(account.password_command for account in settings.accounts):
        return
    authorities = ssl.get_default_verify_paths()
    tokens = [account.oauth for account in settings.accounts if account.oauth]
    readable: list[str | Path | None] = [*_SYSTEM, sys.prefix, sys.base_prefix, *sys.path]
    readable.append(Path(__file__).parents[1])
    readable += [authorities.cafile, authorities.capath, os.environ.get("CREDENTIALS_DIRECTORY")]
    secrets = [account.password_file for account in settings.accounts]
    secrets += [each.client_secret_file for each in tokens]
    # Where they lie, as a new one may come in the place of each.
    readable += [
        file and (file.parent if file.parent != settings.state else file) for file in secrets
    ]
    writable = [own, *(each.token_file.parent for each in tokens)]
    process.confine_files([Path(each) for each in readable if each], writable)
